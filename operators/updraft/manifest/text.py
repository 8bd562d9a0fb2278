"""Text to plain values: YAML (1.2 scalars) or JSON, duplicate keys refused, positions in the errors.

YAML 1.2's scalars are used because editors that follow the published JSON Schema use them: `no` is text, `1e-3` is
a number, `1:30` and dates are text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from updraft.manifest.errors import FieldError, ManifestError, join_path, show, shown_key

TEXT_LIMIT_CHARACTERS = 1024 * 1024
_NODES_LIMIT = 50_000
_DEPTH_LIMIT = 40


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """SafeLoader with YAML 1.2 scalars, which refuses a key that is written twice."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in seen:
                    raise _Duplicate(key.value, line, seen[key.value])
                seen[key.value] = line
        return super().construct_mapping(node, deep=deep)  # type: ignore[no-any-return]

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, "'<<' (merge keys) is not part of YAML 1.2; write the fields out", key.start_mark
                )


class _Duplicate(Exception):
    def __init__(self, key: str, line: int, first_line: int) -> None:
        super().__init__(key, line, first_line)
        self.key, self.line, self.first_line = key, line, first_line


_INT = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+0123456789.")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def read_mapping(text: str, source: str) -> dict[str, Any]:
    """The mapping that `text` (YAML or JSON) holds. Raises ManifestError, with line and column."""
    if len(text) > TEXT_LIMIT_CHARACTERS:
        raise _unreadable(source, "text", f"has more than {TEXT_LIMIT_CHARACTERS} characters", "a shorter manifest")
    return plain_mapping(_read(text, source), source)


def _read(text: str, source: str) -> object:
    if text.lstrip()[:1] == "{":
        try:
            return json.loads(text, object_pairs_hook=_no_duplicates)
        except _Duplicate as exc:
            raise _unreadable(source, exc.key, "the key is there twice", "each key once") from exc
        except (ValueError, RecursionError):
            pass  # YAML's flow mappings start alike
    try:
        return yaml.load(text, Loader=_Loader)
    except _Duplicate as exc:
        problem = f"the key {show(exc.key)} is there twice (first in line {exc.first_line})"
        raise _unreadable(source, f"line {exc.line}", problem, "each key once") from None
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "text"
        raise _unreadable(source, place, str(exc.problem or exc.context), "YAML or JSON") from None
    except yaml.reader.ReaderError as exc:
        problem = "holds a character that is not allowed in YAML"
        raise _unreadable(source, f"character {exc.position + 1}", problem, "printable text") from None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as exc:
        # TypeError: a mapping used as a key; ValueError: a number with thousands of digits.
        problem = "is nested too deeply" if isinstance(exc, RecursionError) else "cannot be read"
        raise _unreadable(source, "text", problem, "YAML or JSON") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise _Duplicate(key, 0, 0)
        seen[key] = value
    return seen


def plain_mapping(value: object, source: str) -> dict[str, Any]:
    """A copy made of JSON's types only. Raises ManifestError for what JSON cannot hold."""
    if not isinstance(value, Mapping):
        problem = "is empty" if value is None else f"{show(value)} is not a mapping of fields"
        raise ManifestError([FieldError("manifest", None, problem, "fields and values", "name: digits-cnn")], source)
    errors: list[FieldError] = []
    budget = [_NODES_LIMIT]
    copied = _plain(value, None, errors, budget, 0)
    if errors:
        raise ManifestError(errors, source)
    assert isinstance(copied, dict)
    return copied


# Where a value stands: its parent's place and its own key or number; None is the whole. Written out for errors only.
_Place = tuple[Any, str | int] | None


def _plain(value: object, place: _Place, errors: list[FieldError], budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if budget[0] < 0 or depth > _DEPTH_LIMIT:
        if budget[0] == -1 or depth > _DEPTH_LIMIT:  # the first one past the limit speaks for all
            errors.append(FieldError(_path(place)[:80], None, "is too large or nested too deeply", "a smaller value"))
        return None
    if isinstance(value, str):
        if not _is_clean(value):
            problem = "holds a character that is not valid text"
            errors.append(FieldError(_path(place), None, problem, "valid Unicode without NUL"))
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict | Mapping):
        copied = {}
        for key, item in value.items():
            if not isinstance(key, str) or not _is_clean(key):
                at = _path(place) or "manifest"
                errors.append(FieldError(at, None, f"the key {show(key)} is not text", "a key of text"))
                continue
            copied[key] = _plain(item, (place, key), errors, budget, depth + 1)
        return copied
    if isinstance(value, list | tuple):
        return [_plain(item, (place, n), errors, budget, depth + 1) for n, item in enumerate(value)]
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int | float):
        problem = f"{show(value)} is not a number that can be kept"
        errors.append(FieldError(_path(place), show(value), problem, "a finite number"))
    else:
        problem = f"{show(value)} cannot be part of a manifest"
        errors.append(FieldError(_path(place), None, problem, "text, number, list, mapping"))
    return None


def _path(place: _Place) -> str:
    if place is None:
        return ""
    parent, part = place
    return join_path(_path(parent), part if isinstance(part, int) else shown_key(part))


def _is_clean(text: str) -> bool:
    if text.isascii():
        return "\0" not in text
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unreadable(source: str, place: str, problem: str, allowed: str) -> ManifestError:
    return ManifestError([FieldError(place, None, problem, allowed)], source, "cannot be read")
