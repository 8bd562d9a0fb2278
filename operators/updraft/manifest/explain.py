"""Convert pydantic's errors to `FieldError`s: what is wrong, what is allowed, what was perhaps meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from updraft.manifest.errors import NO_SUCH_FIELD, VALUE, FieldError, filled, join_path, nearest, one_of, shown_key
from updraft.manifest.model import Manifest

# Field names of other systems, and the fields of this manifest that correspond to them.
ELSEWHERE = {
    "cmd": "command", "args": "command", "entrypoint": "command", "script": "command", "run": "command",
    "environment": "env", "parameters": "params", "hyperparameters": "params", "nodes": "resources.learners",
    "replicas": "resources.learners", "workers": "resources.learners", "cpu": "resources.cpus",
    "gpu": "resources.gpus", "mem": "resources.memory", "ram": "resources.memory", "disk": "resources.disk",
    "storage": "resources.disk", "timeout": "budget.max_runtime",
    "cron": "schedule.cron", "dataset": "data", "datasets": "data", "data_stores": "data", "docker_image": "image",
    "queue": "tenant", "team": "tenant", "namespace": "tenant", "labels": "annotations", "tags": "annotations",
    "retries": "budget.app_attempts", "model_name": "export.register_as",
}  # fmt: skip


def field_errors(exc: ValidationError, root: type[BaseModel] = Manifest) -> Iterator[FieldError]:
    """Yield all of them, in the order of the fields of `root`, the model that the error is about."""
    for error in exc.errors(include_url=False):
        yield from _explain(error, root)


def _explain(error: ErrorDetails, root: type[BaseModel]) -> Iterator[FieldError]:
    path = path_of(error["loc"])
    context = error.get("ctx", {})
    if error["type"] == "updraft":
        for field, value in context["fields"]:
            yield filled(field, join_path(path, field.path), value)
    elif error["type"] == "extra_forbidden":
        yield _unknown(error["loc"], path, root)
    elif error["type"] == "missing":
        info = _field(error["loc"], root)
        yield FieldError(path, None, "is missing", _meaning(info), example_of(info))
    else:
        problem, allowed = _problem(error["type"], context)
        info = _field(error["loc"], root)
        guess = example_of(info)
        if error["type"] == "literal_error":
            names = literals(info)
            allowed, guess = one_of(names), nearest(error["input"], map(str, names))
        yield filled(FieldError("", None, problem, allowed, guess), path, error["input"])


def _meaning(info: FieldInfo | None) -> str:
    """Return what a missing field is for, to follow "write"."""
    text = info.description.split(";")[0] if info and info.description else "a value"
    return f"the {text[:1].lower()}{text[1:]}" if text[:1].isupper() else text


def _problem(kind: str, context: dict[str, Any]) -> tuple[str, str]:
    whole = "a whole number"
    table = {
        "string_type": (f"{VALUE} is not text", "text (in quotes)"),
        "int_type": (f"{VALUE} is not a whole number", whole),
        "float_type": (f"{VALUE} is not a number", "a number"),
        "finite_number": (f"{VALUE} is not a finite number", "a finite number"),
        "greater_than_equal": (f"{VALUE} is too small", f"a number of at least {context.get('ge')}"),
        "less_than_equal": (f"{VALUE} is too large", f"a number of at most {context.get('le')}"),
        "string_too_long": ("is too long", f"at most {context.get('max_length')} characters"),
        "too_long": ("lists too many", f"a list with at most {context.get('max_length')}"),
        "too_short": ("lists nothing", f"a list with at least {context.get('min_length')}"),
        "literal_error": (f"{VALUE} is not allowed here", ""),
        "dict_type": (f"{VALUE} is not a mapping", "a mapping"),
        "tuple_type": (f"{VALUE} is not a list", "a list"),
        "model_type": (f"{VALUE} is not a mapping of fields", "a mapping of fields"),
        "model_attributes_type": (f"{VALUE} is not a mapping of fields", "a mapping of fields"),
    }
    return table.get(kind, (f"{VALUE} is not valid ({kind.replace('_', ' ')})", "a valid value"))


def _unknown(location: tuple[int | str, ...], path: str, root: type[BaseModel]) -> FieldError:
    """Return what other systems' name stands for; or the nearest name among the siblings, then anywhere in a
    manifest."""
    name = str(location[-1])
    siblings = names_of(_model_at(location[:-1], root))
    prefix = path[: -len(shown_key(name))]
    guess = nearest(name, siblings)
    known = ELSEWHERE.get(name.lower()) if root is Manifest and len(location) == 1 else None
    suggestion = known or (f"{prefix}{guess}" if guess else None)
    if suggestion is None and root is Manifest:
        everywhere = dict(_leaves(Manifest, ""))
        guess = nearest(name, everywhere)
        suggestion = ELSEWHERE.get(name.lower()) or (everywhere[guess] if guess else None)
    return FieldError(path, None, NO_SUCH_FIELD, ", ".join(siblings), suggestion)


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, info in model.model_fields.items():
        key = info.alias or name
        inner = model_in(info.annotation)
        is_list = "tuple" in str(info.annotation)
        if inner and not is_list:
            yield from _leaves(inner, f"{prefix}{key}.")
        elif prefix and not is_list:
            yield key, f"{prefix}{key}"


def path_of(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if part == "[key]":  # pydantic's mark of an error in the key itself
            continue
        path = join_path(path, part if isinstance(part, int) else shown_key(part))
    return path


def names_of(model: type[BaseModel]) -> list[str]:
    """Return the model's fields as a manifest writes them."""
    return [info.alias or name for name, info in model.model_fields.items()]


def _model_at(location: tuple[int | str, ...], root: type[BaseModel]) -> type[BaseModel]:
    model = root
    for part in location:
        info = _find(model, part) if isinstance(part, str) else None
        model = (model_in(info.annotation) if info else None) or model
    return model


def _field(location: tuple[int | str, ...], root: type[BaseModel]) -> FieldInfo | None:
    names = [part for part in location if isinstance(part, str)]
    return _find(_model_at(tuple(names[:-1]), root), names[-1]) if names else None


def _find(model: type[BaseModel], name: str) -> FieldInfo | None:
    return next((info for key, info in model.model_fields.items() if name in (key, info.alias)), None)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `X | None`, `tuple[X, ...]` or Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := model_in(inner))), None)


def literals(info: FieldInfo | None) -> list[Any]:
    """Return the values that a Literal inside the field's type allows."""

    def inside(annotation: Any) -> list[Any]:
        arguments = get_args(annotation)
        if arguments and all(isinstance(item, str) for item in arguments):
            return list(arguments)
        return next((found for inner in arguments if (found := inside(inner))), [])

    return inside(info.annotation) if info else []


def example_of(info: FieldInfo | None) -> str | None:
    """Return the field's first example, as YAML would write it on one line."""
    if info is None or not info.examples:
        return None
    example = info.examples[0]
    return (
        f"'{example}'"
        if isinstance(example, str) and " " in example
        else (example if isinstance(example, str) else json.dumps(example))
    )
