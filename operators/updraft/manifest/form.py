"""Make the trigger form: the manifest's single values as flat fields in sections, and a box for the rest.

The form is made from the model's JSON Schema, without Airflow; the DAGs wrap each `FormField` into a Param. A field
that is left empty is not set, so the form of a DAG without a manifest starts empty, and its descriptions name the
defaults.

Properties of Airflow's form shape this one. It first shows only the fields without a section, so these are the ones
that users change: the program's params, or else the job's own fields. A field whose type does not include `null` must
be filled in before the form can be sent. Number fields drop the `e` of `1e-3`, so a numeric param is written as text
and parsed here. `examples` give a field one line instead of six.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from updraft.manifest.errors import NO_SUCH_FIELD, FieldError, ManifestError, nearest
from updraft.manifest.explain import model_in, names_of
from updraft.manifest.ffdl import convert, is_ffdl
from updraft.manifest.limits import REPORTED
from updraft.manifest.model import Manifest
from updraft.manifest.reading import Loaded, parse
from updraft.manifest.schema import json_schema, leaf
from updraft.manifest.sizes import SIZES
from updraft.manifest.strategy import strategy_warnings
from updraft.manifest.text import plain_mapping, read_mapping
from updraft.manifest.typed import KINDS, PATTERNS, typed

BOX = "manifest"
PARAM_PREFIX = "params_"
JOB_SECTION = "Job"
NOT_SET = "not set"  # Airflow's form would show `null`
INTERNAL = ("submitted_by",)  # keys that the platform's clients send beside the form's fields
_SECTIONS = {name: name.capitalize() for name in ("resources", "checkpoints", "evaluate", "budget", "export")}
_BOX_ONLY = {
    "environment",
    "schedule",
    "gate",
    "init_from",
    "notify",
    "annotations",
    "code_secret",
    "elastic",
    "data",
    "secrets",
    "env",
    "params",
    "failures",
    "metrics",
    "pod",
    "results",
}
_SIZED = ("cpus", "memory", "gpus", "gpu_type")


@dataclass(frozen=True)
class FormField:
    """One field of the trigger form: its name, default value and JSON Schema.

    The schema contains what Airflow's form reads: type, title, description, section, bounds. All calls share it: copy
    it before you change it.
    """

    name: str
    default: Any
    schema: dict[str, Any]

    @property
    def section(self) -> str | None:
        """Return the title of the field's section; None in the part of the form that is open at first."""
        return self.schema.get("section")


def form_fields(base: Manifest | None = None) -> dict[str, FormField]:
    """Return the fields of the trigger form by name. `base` gives the default values; without it, the form is empty."""
    raw = base.given() if base else {}
    own = [_param_field(name, value) for name, value in (base.params if base else {}).items()]
    fields = [*own, *(_field(path, _get(raw, path), schema) for path, schema in _schemas().items())]
    if base and base.resources.size:  # the size sets these; a second value could only contradict it
        names = {f"resources_{name}" for name in _SIZED}
        fields = [FormField(f.name, None, f.schema) if f.name in names else f for f in fields]
    box = {
        "type": ["object", "null"],
        "title": "Manifest",
        "section": JOB_SECTION,
        "description": "Everything that has no field of its own here: data, env, secrets, export.promote_if ... "
        "May also hold a whole manifest, ours or FfDL's; what a field says wins.",
    }
    fields.append(FormField(BOX, _rest(raw, base), box))
    return {field.name: field if own else _opened(field) for field in fields}


def from_form(
    conf: Mapping[str, Any], base: Manifest | None = None, *, defaults: Mapping[str, Any] | None = None
) -> Manifest:
    """Return the manifest that a filled-in form means.

    Args:
        conf: values of the form's fields by name, as a DAG run's params hold them.
        base: the manifest that the form was made for.
        defaults: the form's values before a user changed them, if they are known; by default those of `base`.

    With `base` or `defaults`, a value that the user did not change gives way to the box `manifest` and to a size that
    the user chose; without both, every value counts. A box that has a `name` is a whole manifest, to which no unchanged
    value is added.

    Raises ManifestError, which names every wrong field.
    """
    return read_form(conf, base, defaults=defaults).manifest


def read_form(
    conf: Mapping[str, Any],
    base: Manifest | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    tenant: str | None = None,
) -> Loaded:
    """Return the manifest that a filled-in form means, with the warnings of a conversion from FfDL.

    `tenant` is that of a manifest that names none. `conf`, `base` and `defaults` are as for `from_form`, and so is what
    is raised.
    """
    if defaults is None:
        defaults = {name: field.default for name, field in form_fields(base).items()}
    given = plain_mapping({name: value for name, value in conf.items() if name != BOX}, "form")
    known = {"_".join(path) for path in _paths()} | {name for name in given if name.startswith(PARAM_PREFIX)}
    strange = (name for name in given if name not in known and name not in INTERNAL)
    unknown = [_unknown(name, known) for name in islice(strange, REPORTED + 1)]
    raw, warnings = _box(conf.get(BOX))
    stated = {name: value for name, value in given.items() if name in known and value not in (None, "", [])}
    stated |= {name: "" for name, value in given.items() if _empty_text(name, value, defaults)}
    unread = _read_params(stated, defaults)
    for name, value in _overrides(stated, defaults, raw).items():
        _set(raw, _path_of(name), value)
    if tenant is not None:
        raw.setdefault("tenant", tenant)
    try:
        manifest = parse(raw, source="form")
    except ManifestError as exc:
        raise ManifestError([*unknown, *unread, *exc.fields], "form") from None
    if unknown or unread:
        raise ManifestError([*unknown, *unread], "form")
    return Loaded(manifest, (*warnings, *strategy_warnings(manifest)))


def _box(value: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the box's mapping, and warnings; FfDL's form is converted, and must not bring credentials."""
    if value is None or value == "":
        return {}, ()
    raw = read_mapping(value, "form") if isinstance(value, str) else plain_mapping(value, "form")
    if not is_ffdl(raw):
        return raw, ()
    converted = convert(raw, source="form")
    if converted.secrets:
        problem = "holds credentials, and what is written in a form is kept and shown"
        allowed = "no credentials here; submit this manifest with the CLI"
        raise ManifestError([FieldError("data_stores[0].connection", None, problem, allowed)], "form")
    return {name: part for name, part in converted.manifest.given().items() if name != "tenant"}, converted.warnings


def _empty_text(name: str, value: object, defaults: Mapping[str, Any]) -> bool:
    """Return whether the param is a text that is empty; Airflow's form writes null for it."""
    emptied = value is None and isinstance(defaults.get(name), str)
    return name.startswith(PARAM_PREFIX) and (value == "" or emptied)


def _read_params(stated: dict[str, Any], defaults: Mapping[str, Any]) -> list[FieldError]:
    """Convert params that were written as text to the types of their defaults; return an error for each that cannot
    be."""
    wrong = []
    for name, value in stated.items():
        default = defaults.get(name)
        if name.startswith(PARAM_PREFIX) and isinstance(value, str) and default is not None:
            read = typed(name.removeprefix(PARAM_PREFIX), value, default)
            if isinstance(read, FieldError):
                wrong.append(read)
            else:
                stated[name] = read
    return wrong


def _overrides(stated: Mapping[str, Any], defaults: Mapping[str, Any], box: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form's values that a user (or a REST client) set, without defaults that Airflow sent along."""
    changed = {name for name, value in stated.items() if value != defaults.get(name)}
    whole = bool(box.get("name"))
    left = () if whole else (name for name in stated if _get(box, _path_of(name)) is None)
    taken = changed.union(left)
    result = {name: value for name, value in stated.items() if name in taken}
    sized = [f"resources_{name}" for name in _SIZED]
    if "resources_size" in changed:
        for name in sized:
            if name not in changed:
                result.pop(name, None)
    elif "resources_size" in result and changed.intersection(sized):
        size = SIZES.get(result["resources_size"])
        if size:
            del result["resources_size"]
            result = {f"resources_{k}": v for k, v in size.resources().items() if v is not None} | result
    return result


@cache
def _paths() -> tuple[tuple[str, ...], ...]:
    """Return the paths of the single values that have a field of their own."""

    def walk(model: Any, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for (_, info), key in zip(model.model_fields.items(), names_of(model), strict=True):
            path = (*prefix, key)
            inner = model_in(info.annotation)
            if key in _BOX_ONLY or "dict" in str(info.annotation):
                continue
            if inner:
                yield from walk(inner, path)
            else:
                yield path

    return tuple(walk(Manifest, ()))


@cache
def _schemas() -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the schemas of the single values, made once: every DAG of `jobs/` shows the same fields."""
    schema = json_schema()
    return {path: _shown(path, _schema_of(schema, path)) for path in _paths()}


def _shown(path: tuple[str, ...], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema as Airflow's form reads it: type, enum, minimum, maximum, examples, sections; `null` lets a
    field be empty."""
    kept = {
        key: copy.deepcopy(schema[key])
        for key in ("enum", "minimum", "maximum", "examples", "items", "maxLength")
        if key in schema
    }
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kept["type"] = [*(kind for kind in kinds if kind != "null"), "null"]
    description = str(schema.get("description", ""))
    default = schema.get("default")
    if default not in (None, "", [], {}):
        shown = ", ".join(default) if isinstance(default, list) else default
        description += f" (default: {shown})"
    if "enum" in kept:
        kept["enum"] = [*kept["enum"], None]
        kept["values_display"] = {name: name for name in kept["enum"] if name is not None} | {"null": NOT_SET}
    if kept["type"][0] == "array":
        kept["examples"] = list(schema.get("items", {}).get("enum", []))
    elif "enum" in kept:
        kept.pop("examples", None)
    kept["section"] = _SECTIONS.get(path[0], JOB_SECTION)
    kept["title"] = " ".join(path[1:] if path[0] in _SECTIONS else path).replace("_", " ").capitalize()
    kept["description"] = description
    if path == ("command",) or path == ("description",) or path[-1] == "command":
        kept["format"] = "multiline"
    return kept


def _field(path: tuple[str, ...], value: Any, schema: dict[str, Any]) -> FormField:
    """Return the form's field for a value. The form itself requires the name, so that an empty form starts nothing."""
    if path == ("name",):
        return FormField("name", value or "", {**schema, "type": "string"})
    return FormField("_".join(path), value, schema)


def _opened(field: FormField) -> FormField:
    """Return the field in an open section: without params of a program, the job's own fields are open."""
    if field.section != JOB_SECTION:
        return field
    return FormField(field.name, field.default, {k: v for k, v in field.schema.items() if k != "section"})


def _param_field(name: str, value: Any) -> FormField:
    """Return the form's field for a param. A number may be written as text. A text that was empty may stay empty; other
    fields must be filled in."""
    kind = type(value)
    schema: dict[str, Any] = {"title": name, "description": f"Parameter {name} of the program"}
    if kind in PATTERNS:
        schema |= {"type": ["string", "number"], "pattern": PATTERNS[kind], "examples": [value]}
        schema["description"] += f": {KINDS[kind]}"
    elif kind is bool:
        schema["type"] = ["boolean", "null"]
    else:
        schema["type"] = "string" if value else ["string", "null"]
    return FormField(f"{PARAM_PREFIX}{name}", value, schema)


def _schema_of(schema: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of one field of the manifest."""
    node: dict[str, Any] = dict(schema)
    for part in path:
        node = leaf(node["properties"][part], schema["$defs"])
    return node


def _path_of(name: str) -> tuple[str, ...]:
    if name.startswith(PARAM_PREFIX):
        return ("params", name.removeprefix(PARAM_PREFIX))
    return next(path for path in _paths() if "_".join(path) == name)


def _get(raw: Mapping[str, Any], path: tuple[str, ...]) -> object:
    value: object = raw
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _set(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    node = raw
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            if node.get(part) is not None:
                return  # the box contains an invalid value here; the model reports it
            node[part] = {}
        node = node[part]
    node[path[-1]] = value


def _rest(raw: Mapping[str, Any], base: Manifest | None) -> dict[str, Any]:
    """Return what of the manifest has no field, without the defaults."""
    if base is None:
        return {}
    rest = _without_defaults(base.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    for path in [*_paths(), *(("params", name) for name in base.params)]:
        _remove(rest, path)
    return rest


def _without_defaults(raw: dict[str, Any]) -> dict[str, Any]:
    if raw.get("resources", {}).get("size"):
        raw["resources"] = {key: value for key, value in raw["resources"].items() if key not in _SIZED}
    return raw


def _remove(raw: dict[str, Any], path: tuple[str, ...]) -> None:
    """Remove one value, and the mappings that it leaves empty."""
    parents: list[dict[str, Any]] = [raw]
    for part in path[:-1]:
        inner = parents[-1].get(part)
        if not isinstance(inner, dict):
            return
        parents.append(inner)
    parents[-1].pop(path[-1], None)
    for parent, part in zip(reversed(parents[:-1]), reversed(path[:-1]), strict=True):
        if parent.get(part) == {}:
            del parent[part]


def _unknown(name: str, known: set[str]) -> FieldError:
    return FieldError(name, None, NO_SUCH_FIELD, f"the fields of the form and {BOX!r}", nearest(name, [*known, BOX]))
