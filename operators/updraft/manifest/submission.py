"""Decide what is known at submission: the image, fields that this version does not support, local sources.

Pure. The CLI calls it before it submits; the run's first task calls it again, because other clients may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from updraft.manifest.errors import FieldError, ManifestError, nearest, one_of, show
from updraft.manifest.model import Manifest
from updraft.manifest.secretive import secrets_in_env


def refuse_unsupported(manifest: Manifest, tenants: Sequence[str] = ("default",)) -> tuple[FieldError, ...]:
    """Return an error for each value in `manifest` that the platform does not act on: values in `env` that look secret,
    and a tenant that is not one of `tenants`."""
    errors = [*secrets_in_env(manifest.env)]
    if manifest.tenant not in tenants:
        guess = nearest(manifest.tenant, tenants)
        problem = f"{show(manifest.tenant)} is not a tenant of this platform"
        errors.append(FieldError("tenant", show(manifest.tenant), problem, one_of(tenants), guess))
    return tuple(errors)


def unknown_notifiers(manifest: Manifest, known: Sequence[str]) -> tuple[FieldError, ...]:
    """Return an error for each name in `notify.to` that the platform does not know."""
    if manifest.notify is None:
        return ()
    allowed = one_of(sorted(known)) if known else "no name; the platform's operator sets up notifiers"
    return tuple(
        FieldError(
            f"notify.to[{number}]",
            show(name),
            f"{show(name)} is no notifier of this platform",
            allowed,
            nearest(name, known),
        )
        for number, name in enumerate(manifest.notify.to)
        if name not in known
    )


def export_image_of(manifest: Manifest, images: Mapping[str, str], plain: str) -> str:
    """Return the image that exports the model of `manifest`.

    That is the platform's PyTorch image, or `plain` if files are only copied.

    `images` maps frameworks to images, as for `image_of`. Raises ManifestError if it has no PyTorch.
    """
    if manifest.export is not None and manifest.export.trust_code:
        return plain
    found = images.get("pytorch") or next((i for key, i in sorted(images.items()) if key.startswith("pytorch:")), None)
    if found is None:
        problem = "needs the platform's PyTorch image, and UPDRAFT_FRAMEWORK_IMAGES has no pytorch"
        raise ManifestError([FieldError("export", None, problem, "no export on this platform")])
    return found


def named_secrets(manifest: Manifest) -> frozenset[str]:
    """Return the names of all stored secrets that the manifest needs, for code, data and the program."""
    named = {secret.name for secret in manifest.secrets} | {item.secret for item in manifest.data}
    indexes = manifest.environment.secrets() if manifest.environment else ()
    results = manifest.results.secret if manifest.results else None
    return frozenset(name for name in (*named, *indexes, manifest.code_secret, results) if name)


def image_of(manifest: Manifest, images: Mapping[str, str]) -> str:
    """Return the image that runs the program: the manifest's own, or its framework's.

    `images` maps a framework (`pytorch`) or one of its versions (`pytorch:2.14`) to an image. A version fits an image
    whose tag is that version or begins with it; of the images that fit a range (`>=2.10,<3`), the newest is taken.
    Raises ManifestError, which lists the images that exist.
    """
    if manifest.image is not None:
        return manifest.image
    assert manifest.framework is not None  # the model guarantees that one of the two is set
    name, version = manifest.framework.name, manifest.framework.version
    candidates = [image for key, image in images.items() if key.partition(":")[0] == name]
    if not candidates:
        names = sorted({key.partition(":")[0] for key in images})
        problem = f"{show(name)} has no image on this platform"
        allowed = f"{one_of(names)}, or give image in place of framework"
        raise ManifestError([FieldError("framework.name", show(name), problem, allowed, nearest(name, names))])
    if version is None:
        return images.get(name, candidates[0])
    found = images.get(f"{name}:{version}") or _fitting(candidates, version)
    if found is not None:
        return found
    versions = sorted({tag_of(image) for image in candidates})
    problem = f"{show(version)} is not a version of {name} on this platform"
    raise ManifestError(
        [FieldError("framework.version", show(version), problem, f"{one_of(versions)}, or leave it out")]
    )


def _fitting(candidates: Sequence[str], version: str) -> str | None:
    if version[0].isalnum():
        return next((image for image in candidates if f"{tag_of(image)}.".startswith(f"{version}.")), None)
    allowed = SpecifierSet(version)
    tagged = {tag: image for image in candidates if (tag := _version(tag_of(image))) is not None and tag in allowed}
    return tagged[max(tagged)] if tagged else None


def _version(tag: str) -> Version | None:
    try:
        return Version(tag)
    except InvalidVersion:
        return None


def tag_of(image: str) -> str:
    """Return the tag of an image without its digest; empty where it has none."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def local_sources(manifest: Manifest) -> dict[str, str]:
    """Return the local paths in `manifest` that must be uploaded before the job can run, by field: `{"code": "."}`."""
    code = manifest.parsed_code()
    found = {"code": code.path} if code and code.kind == "local" else {}
    for number, data in enumerate(manifest.data):
        if data.parsed().kind == "local":
            found[f"data[{number}].source"] = data.source
    return found


def with_trees(manifest: Manifest, trees: Mapping[str, str]) -> Manifest:
    """Return the manifest with its local sources replaced by uploaded trees.

    `trees` maps fields, named as by `local_sources`, to SHA-256 digests of trees.
    """
    raw = manifest.given()
    for field in local_sources(manifest):
        if field not in trees:
            continue
        if field == "code":
            raw["code"] = f"tree:{trees[field]}"
        else:
            raw["data"][int(field.partition("[")[2].partition("]")[0])]["source"] = f"tree:{trees[field]}"
    return Manifest.model_validate(raw)
