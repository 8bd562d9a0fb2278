"""Apply the changes that come with a resume: a partial manifest, merged into the job's own and checked as a whole.

Pure. Called by the plugin's route and by the task of the DAG `resume_job`, before the request is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from updraft.manifest.errors import FieldError, ManifestError, nearest, one_of
from updraft.manifest.explain import names_of
from updraft.manifest.model import Manifest
from updraft.manifest.reading import parse
from updraft.manifest.submission import refuse_unsupported
from updraft.manifest.text import plain_mapping
from updraft.manifest.typed import retyped, typed

# All other fields define the job itself: its data, its code and its model's name are already recorded.
Refusals = Callable[[Manifest], Sequence[FieldError]]
CHANGEABLE = ("command", "params", "env", "resources", "budget", "checkpoints", "failures", "priority")
SOURCE = "changes"
_SIZED = ("cpus", "memory", "gpus", "gpu_type")


def revision(
    manifest: Mapping[str, Any], changes: Mapping[str, Any], refusals: Refusals = refuse_unsupported
) -> dict[str, Any] | None:
    """Return what a request to resume carries: `{"manifest", "changes"}`; None if the changes change nothing.

    `refusals` returns what this platform refuses of a manifest that is right by itself. Raises ManifestError as
    `revised`.
    """
    if not changes:
        return None
    after = revised(manifest, changes, refusals)
    return None if after == parse(manifest) else {"manifest": after.canonical(), "changes": dict(changes)}


def revised(
    manifest: Mapping[str, Any], changes: Mapping[str, Any], refusals: Refusals = refuse_unsupported
) -> Manifest:
    """Return the manifest with the changes in it. A mapping in `changes` is merged, null takes a value back to its
    default.

    Raises ManifestError naming every wrong field, and every one that may not change.
    """
    given = dict(plain_mapping(changes, SOURCE))
    known_params = dict(manifest.get("params") or {})
    # A new command may have new params.
    strange = [] if given.get("command") else unknown_params(given.get("params"), known_params)
    if isinstance(given.get("params"), Mapping) and not given.get("command"):
        given["params"], wrong_types = _retyped(given["params"], known_params)
        strange += wrong_types
    known = set(names_of(Manifest)) - set(CHANGEABLE)
    fixed = [_fixed(name) for name in given if name in known]
    merged = _merge(manifest, {name: value for name, value in given.items() if name not in known})
    _agree_on_size(merged, given)
    try:
        result = parse(merged, source=SOURCE)
    except ManifestError as exc:
        raise ManifestError([*fixed, *strange, *exc.fields], SOURCE) from None
    if wrong := [*fixed, *strange, *refusals(result)]:
        raise ManifestError(wrong, SOURCE)
    return result


def unknown_params(given: object, known: Mapping[str, Any]) -> list[FieldError]:
    """Return one error for each parameter that is given a value and that the manifest does not have."""
    names = [name for name in given if name not in known] if isinstance(given, Mapping) else []
    allowed = one_of(sorted(known)) if known else "none: the manifest has no params"
    return [
        FieldError(f"params.{name}", None, "no such parameter in the manifest", allowed, nearest(name, known))
        for name in names
    ]


def _retyped(given: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[dict[str, Any], list[FieldError]]:
    """Return the values with the types of those they replace, and an error for each that cannot be converted."""
    values, wrong = dict(given), []
    for name, value in given.items():
        found = retyped(name, value, known[name]) if name in known else value
        if isinstance(found, FieldError):
            wrong.append(found)
            values[name] = known[name]
        else:
            values[name] = found
    return values, wrong


def with_params(manifest: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of `manifest`, a mapping, with new values for some of its params.

    `given` maps names to values as text; each is read as the type of the value that it replaces. Raises ManifestError
    for names that the manifest does not have and for text that is not of that type.

        with_params({"params": {"epochs": 10}}, {"epochs": "3"})  # {"params": {"epochs": 3}}
    """
    known = dict(manifest.get("params") or {})
    wrong = unknown_params(given, known)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            continue
        value = typed(name, text, known[name])
        if isinstance(value, FieldError):
            wrong.append(value)
        else:
            values[name] = value
    if wrong:
        raise ManifestError(wrong, "--params")
    return {**manifest, "params": {**known, **values}}


def _fixed(name: str) -> FieldError:
    allowed = f"only {', '.join(CHANGEABLE[:-1])} or {CHANGEABLE[-1]}; for anything else submit a new job"
    return FieldError(name, None, "cannot change when a job goes on", allowed)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = _merge(old if isinstance(old, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def _agree_on_size(merged: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop either the size or the single values, whichever was not changed: a size stands for four values."""
    given, resources = changes.get("resources"), merged.get("resources")
    if not isinstance(given, Mapping) or not isinstance(resources, dict):
        return
    if given.get("size") is not None:
        merged["resources"] = {k: v for k, v in resources.items() if k not in _SIZED or k in given}
    elif any(name in given for name in _SIZED):
        merged["resources"] = {k: v for k, v in resources.items() if k != "size"}
