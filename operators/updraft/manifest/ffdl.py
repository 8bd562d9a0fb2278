"""Convert a V1 manifest of FfDL, as FfDL's users wrote it, to a manifest of Updraft.

Where FfDL guessed silently, a warning says what FfDL would have done and what Updraft does. Where FfDL accepted an
invalid value (a memory amount without a number, for instance), there is an error. Credentials are taken out of the
manifest and returned separately; the submitter stores them as a secret, and no message contains them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from updraft.manifest.errors import (
    HIDDEN,
    NO_SUCH_FIELD,
    FieldError,
    ManifestError,
    is_sensitive,
    join_path,
    nearest,
    one_of,
    redact,
    show,
)  # fmt: skip
from updraft.manifest.explain import field_errors
from updraft.manifest.ffdl_metrics import convert_metrics
from updraft.manifest.limits import REPORTED
from updraft.manifest.model import Manifest
from updraft.manifest.sources import parse_source
from updraft.manifest.units import format_memory, nearest_memory, parse_memory
from updraft.manifest.values import NAME_LENGTH, slug

BUNDLED_STORE = "http://s3.default.svc.cluster.local"
BUNDLED_USER = BUNDLED_PASSWORD = "test"
S3_TYPES = ("mount_cos", "s3_datastore", "s3")
VOLUME_TYPES = ("mount_volume",)
INSTEAD_OF_HOST = "our own manifest, with data[].source as a folder beside it, s3://bucket/prefix or pvc://claim/folder"

_FIELDS = (
    "name", "description", "version", "cpus", "gpus", "gpu_type", "learners", "memory", "storage", "data_stores",
    "framework", "evaluation_metrics",
)  # fmt: skip
_FRAMEWORK_FIELDS = ("name", "version", "image_tag", "command")
_STORE_FIELDS = ("id", "type", "training_data", "training_results", "connection")
_CONNECTION_FIELDS = (
    "auth_url", "user_name", "password", "region", "type", "name", "path", "domain_name", "project_id",
)  # fmt: skip
_MEMORY = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt])(i)?(b)?\s*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Converted:
    """The result of converting an FfDL manifest. `secrets` maps a secret's name to keys and values, which are never
    shown."""

    manifest: Manifest
    warnings: tuple[str, ...]
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


def is_ffdl(mapping: Mapping[str, Any]) -> bool:
    """Return whether this is FfDL's form and not ours: the command lies inside `framework`, or it has data stores."""
    if "command" in mapping or "resources" in mapping:
        return False
    framework = mapping.get("framework")
    inside = isinstance(framework, Mapping) and "command" in framework
    return inside or "data_stores" in mapping or "evaluation_metrics" in mapping


def convert(mapping: Mapping[str, Any], *, code: str | None = None, source: str = "manifest") -> Converted:
    """Convert FfDL's V1 manifest. `code`: where its program is, which FfDL's own manifest does not say.

    Raises ManifestError with all that is wrong, at the paths of FfDL's manifest.
    """
    work = _Conversion(mapping)
    raw = work.run(code)
    if work.errors:
        raise ManifestError(work.errors, source)
    try:
        manifest = Manifest.model_validate(raw)
    except ValidationError as exc:
        raise ManifestError(field_errors(exc), source) from None
    return Converted(manifest, tuple(work.warnings), work.secrets)


class _Conversion:
    """One conversion in progress: it collects errors, warnings and secrets."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self.mapping = mapping
        self.errors: list[FieldError] = []
        self.warnings: list[str] = []
        self.secrets: dict[str, dict[str, str]] = {}
        self.notes: dict[str, Any] = {}
        self.results: dict[str, str] | None = None

    def run(self, code: str | None) -> dict[str, Any]:
        self._known(self.mapping, _FIELDS, "")
        raw: dict[str, Any] = {"name": self._name(), "resources": self._resources(), **self._framework()}
        description = self._text(self.mapping, "description", "")
        raw["description"] = (description or "")[:5000]
        if "version" in self.mapping:
            self.notes["ffdl.version"] = self.mapping["version"]
        raw["data"] = self._data(raw["name"] or "job")
        raw["metrics"] = self._metrics()
        raw["results"] = self.results
        if code is not None:
            raw["code"] = code
            self.warn(
                "framework", f"the program is taken from {show(code)}, beside the manifest, unless you name another"
            )
        raw["annotations"] = self.notes
        return raw

    def warn(self, path: str, text: str) -> None:
        self.warnings.append(f"{path}: {text}")

    def wrong(self, path: str, problem: str, allowed: str, suggestion: str | None = None, value: object = None) -> None:
        shown = None if value is None else HIDDEN if is_sensitive(path) else show(value)
        self.errors.append(FieldError(path, shown, problem, allowed, suggestion))

    def _known(self, mapping: Mapping[str, Any], names: tuple[str, ...], path: str) -> None:
        for name in islice((name for name in mapping if name not in names), REPORTED + 1):
            self.wrong(join_path(path, name), NO_SUCH_FIELD, ", ".join(names), nearest(name, names))

    def _mapping(self, parent: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
        value = parent.get(name)
        if isinstance(value, Mapping):
            return value
        if value is not None:
            self.wrong(join_path(path, name), f"{_shown(path, name, value)} is not a mapping", "a mapping of fields")
        return {}

    def _text(self, parent: Mapping[str, Any], name: str, path: str, *, required: str = "") -> str | None:
        value = parent.get(name)
        full = join_path(path, name)
        if isinstance(value, str) and (value.strip() or not required):
            return value
        if value is None or value == "":
            if required:
                self.wrong(full, "is missing", required)
        else:
            self.wrong(full, f"{_shown(path, name, value)} is not text", "text (in quotes)", value=value)
        return None

    def _name(self) -> str | None:
        name = self._text(self.mapping, "name", "", required="a name for the job")
        if name is None:
            return None
        ours = slug(name)
        if ours != name:
            why = f"names here are lower-case letters, digits and hyphens, at most {NAME_LENGTH} characters"
            self.warn("name", f"{show(name)} becomes {ours!r}, because {why}")
        return ours

    def _number(self, name: str, check: Callable[[float], bool], allowed: str) -> float | None:
        value = self.mapping.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not check(value):
            self.wrong(name, f"{show(value)} is not valid", allowed, value=value)
            return None
        return value

    def _resources(self) -> dict[str, Any]:
        cpus = self._number("cpus", lambda n: 0 <= n <= 4096, "a number of CPU cores per learner")
        if not cpus:
            cpus = 5.0
            self.warn("cpus", "not given; FfDL silently took 5 per learner, and so do we")
        learners = self._number("learners", lambda n: 1 <= n <= 1024 and n == int(n), "a whole number of at least 1")
        gpus = self._number("gpus", lambda n: 0 <= n <= 64 and n == int(n), "a whole number of at least 0")
        resources: dict[str, Any] = {
            "cpus": float(cpus), "learners": int(learners or 1), "gpus": int(gpus or 0), **self._memory()
        }  # fmt: skip
        kind = self._text(self.mapping, "gpu_type", "")
        if kind is not None and kind.upper() == "CPU":
            if gpus:
                self.wrong(
                    "gpu_type", "is CPU, but gpus is not 0", "the type of the GPUs, or gpus 0", "nvidia-TeslaV100"
                )
        elif kind and gpus:
            resources["gpu_type"] = kind
        elif kind:
            self.warn("gpu_type", f"{show(kind)} has no effect, because gpus is 0")
        elif gpus:
            self.warn("gpu_type", "not given; FfDL silently took nvidia-TeslaK80, here any type will do")
        if "storage" in self.mapping:
            self.notes["ffdl.storage"] = self.mapping["storage"]
            self.warn("storage", "recorded, but not acted on: resources.disk limits a learner's disk here")
        return resources

    def _memory(self) -> dict[str, str]:
        value = self.mapping.get("memory")
        if value is None or value == "":
            self.warn("memory", "not given; FfDL silently took 512MB, here a learner gets 2GiB")
            return {}
        match = _MEMORY.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            problem = f"{show(value)} is not an amount of memory; FfDL would silently have taken 512MB"
            self.wrong("memory", problem, "a number and a unit", nearest_memory(value), value)
            return {}
        number, letter, binary, byte = match.groups()
        try:
            memory = format_memory(parse_memory(f"{number}{letter.upper()}{'iB' if binary else 'B'}"))
        except PydanticCustomError:
            self.wrong("memory", f"{show(value)} is no memory at all", "an amount above 0", "2GiB", value)
            return {}
        if "." in number or not byte or letter in "kK":
            self.warn("memory", f"FfDL could not read {show(value)} and silently took 512MB; here it is {memory}")
        return {"memory": memory}

    def _framework(self) -> dict[str, Any]:
        framework = self._mapping(self.mapping, "framework", "")
        self._known(framework, _FRAMEWORK_FIELDS, "framework")
        name = self._text(framework, "name", "framework", required="tensorflow, pytorch, custom ...")
        command = self._text(framework, "command", "framework", required="the command that starts the training")
        custom = name is not None and name.lower() == "custom"
        needed = "the whole path of the image, because name is custom" if custom else ""
        version = self._text(framework, "version", "framework", required=needed)
        if framework.get("image_tag") is not None:
            self.notes["ffdl.image_tag"] = framework["image_tag"]
            self.warn("framework.image_tag", "recorded, but not acted on: images are chosen by framework or by image")
        if self.errors and (name is None or command is None):
            return {}
        lines = (command or "").strip().splitlines()
        if len(lines) > 1:
            self.warn("framework.command", "its lines are joined with blanks, as FfDL did")
            command = " ".join(lines)
        if custom:
            return {"image": version, "command": command}
        if version:
            self.notes["ffdl.framework_version"] = version
            self.warn(
                "framework.version",
                f"{show(version)} was the tag of an image of FfDL's; here the platform's version of {name} is used",
            )
        return {"framework": {"name": (name or "").lower()}, "command": command}

    def _data(self, job: str) -> list[dict[str, Any]]:
        stores = self.mapping.get("data_stores")
        if stores is None:
            return []
        if not isinstance(stores, list):
            self.wrong("data_stores", f"{show(stores)} is not a list", "a list with one data store")
            return []
        if len(stores) > 1:
            self.wrong(
                "data_stores", f"lists {len(stores)} data stores", "one, as FfDL demanded, or our own manifest's data"
            )
        found = [self._store(store, f"data_stores[{number}]", job) for number, store in enumerate(stores[:1])]
        return [data for data in found if data]

    def _store(self, store: object, path: str, job: str) -> dict[str, Any] | None:
        if not isinstance(store, Mapping):
            self.wrong(path, "is not a mapping", "id, type, training_data and connection")
            return None
        self._known(store, _STORE_FIELDS, path)
        data = self._mapping(store, "training_data", path)
        self._known(data, ("container",), f"{path}.training_data")
        container = self._text(data, "container", f"{path}.training_data", required="the bucket or folder of the data")
        kind = self._text(store, "type", path, required=one_of((*S3_TYPES, *VOLUME_TYPES)))
        connection = self._mapping(store, "connection", path)
        self._known(connection, _CONNECTION_FIELDS, f"{path}.connection")
        if container is None or kind is None:
            return None
        if kind in S3_TYPES:
            bucket = self._bucket(container, connection, path, job, slug(str(store.get("id") or "data")))
            self._results(store, path, (bucket or {}).get("secret"))
            return bucket
        if kind in VOLUME_TYPES:
            self._volume(container, connection, path)
            return None
        allowed = one_of((*S3_TYPES, *VOLUME_TYPES))
        self.wrong(f"{path}.type", f"{show(kind)} is not supported", allowed, nearest(kind, (*S3_TYPES, *VOLUME_TYPES)))
        return None

    def _results(self, store: Mapping[str, Any], path: str, secret: str | None) -> None:
        """Take the bucket that FfDL wrote the results to, with the secret of the data's."""
        path = f"{path}.training_results"
        results = self._mapping(store, "training_results", path.rpartition(".")[0])
        if not results:
            return
        self._known(results, ("container",), path)
        container = self._text(results, "container", path, required="the bucket of the results")
        if container is None:
            return
        if secret is None:
            self.notes["ffdl.training_results"] = dict(results)
            self.warn(path, "recorded, but not written to: the platform keeps the results itself (updraft download)")
            return
        self.results = {"to": f"s3://{container.strip('/')}/", "secret": secret}
        try:
            parse_source(self.results["to"], git=False)
        except PydanticCustomError:
            self.wrong(
                f"{path}.container", f"{show(container)} is not the name of a bucket", "letters, digits, _ . and -"
            )

    def _bucket(
        self, container: str, connection: Mapping[str, Any], path: str, job: str, store_id: str
    ) -> dict[str, Any] | None:
        data = {"source": f"s3://{container.strip('/')}/", "as": "."}
        at = f"{path}.connection"
        try:
            parse_source(data["source"], git=False)
        except PydanticCustomError:
            full = f"{path}.training_data.container"
            self.wrong(full, f"{show(container)} is not the name of a bucket", "letters, digits, _ . and -", "digits")
        url = self._text(connection, "auth_url", at, required="the URL of the object store")
        user = self._text(connection, "user_name", at, required="the access key")
        password = self._text(connection, "password", at, required="the secret key")
        region = self._text(connection, "region", at)
        if url is None or user is None or password is None:
            return None
        if url.rstrip("/") == BUNDLED_STORE and (user, password) == (BUNDLED_USER, BUNDLED_PASSWORD):
            self.warn(
                at,
                f"FfDL's bundled object store is the platform's own store here; bucket {show(container)} is read there",
            )
            return data
        if not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", url):
            self.wrong(f"{at}.auth_url", "is not the URL of an object store", "http:// or https:// and a host")
            return None
        secret = f"ffdl-{job}-{store_id}"
        self.secrets[secret] = {"endpoint": url, "access_key": user, "secret_key": password}
        if region:
            self.secrets[secret]["region"] = region
        self.warn(at, f"the credentials leave the manifest; they are stored as the secret {secret!r}")
        return {**data, "secret": secret}

    def _volume(self, container: str, connection: Mapping[str, Any], path: str) -> None:
        at = f"{path}.connection"
        kind = self._text(connection, "type", at)
        folder = self._text(connection, "path", at, required="the folder on the host")
        if kind not in (None, "host_mount"):
            self.wrong(f"{at}.type", "is not supported", INSTEAD_OF_HOST)
        elif folder is not None:
            source = f"{folder.rstrip('/')}/{container.strip('/')}"
            self.wrong(at, f"mounts {redact(source)!r} of a node, which no tenant may do here", INSTEAD_OF_HOST)

    def _metrics(self) -> list[dict[str, Any]]:
        metrics = self._mapping(self.mapping, "evaluation_metrics", "")
        converted = convert_metrics(metrics)
        self.errors += converted.errors
        return list(converted.metrics)


def _shown(path: str, name: str, value: object) -> str:
    return HIDDEN if is_sensitive(join_path(path, name)) else show(value)
