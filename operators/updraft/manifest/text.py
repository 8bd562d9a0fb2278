"""Parse text to plain values: YAML (with YAML 1.2's scalars) or JSON. Duplicate keys are refused; errors have
positions.

Editors that follow the published JSON Schema use YAML 1.2's scalars, so they are used here: `no` is text, `1e-3` is a
number, `1:30` and dates are text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import yaml

from updraft.manifest import limits
from updraft.manifest.errors import FieldError, ManifestError, join_path, show, shown_key


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A SafeLoader with YAML 1.2 scalars, which refuses duplicate keys."""

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
    """Return the mapping that `text` (YAML or JSON) holds. Raises ManifestError, with line and column."""
    if len(text) > limits.TEXT_CHARACTERS:
        raise _unreadable(source, "text", f"has more than {limits.TEXT_CHARACTERS} characters", "a shorter manifest")
    return plain_mapping(_read(text, source), source)


def _read(text: str, source: str) -> object:
    if text.lstrip()[:1] == "{":
        try:
            return json.loads(text, object_pairs_hook=_no_duplicates)
        except _Duplicate as exc:
            raise _unreadable(source, exc.key, "the key is there twice", "each key once") from exc
        except (ValueError, RecursionError):
            pass  # YAML's flow mappings begin in the same way
    try:
        _check_nesting(text, source)
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


def _check_nesting(text: str, source: str) -> None:
    """Refuse what is nested so deeply that libyaml's recursion would end the process (1,000,000 times `[`), and what
    holds too many values to be read."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if number > 2 * limits.VALUES:  # a mapping or list has two events
            raise _unreadable(source, "text", "holds too many values", f"at most {limits.VALUES}")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > limits.DEPTH:
                mark = event.start_mark
                place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "text"
                raise _unreadable(source, place, "is nested too deeply", f"at most {limits.DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise _Duplicate(key, 0, 0)
        seen[key] = value
    return seen


def plain_mapping(value: object, source: str) -> dict[str, Any]:
    """Return a copy made of JSON's types only. Raises ManifestError for what JSON cannot hold."""
    if not isinstance(value, Mapping):
        problem = "is empty" if value is None else f"{show(value)} is not a mapping of fields"
        raise ManifestError([FieldError("manifest", None, problem, "fields and values", "name: digits-cnn")], source)
    copy = _Copy()
    copied = copy.mapping(value)
    if copy.errors:
        raise ManifestError(copy.errors, source)
    return copied


# Where a value is: its parent's place, and its own key or index; None is the whole. Turned into text for errors only.
_Place = tuple[Any, str | int] | None


class _TooLarge(Exception):
    """Stop checking: the value is too large, or has too many errors."""


class _Copy:
    """One copy in progress: its errors, and how much it may still hold."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self._values = limits.VALUES
        self._characters = limits.TOTAL_CHARACTERS

    def mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        try:
            copied = self._plain(value, None, 0)
        except _TooLarge:
            return {}
        assert isinstance(copied, dict)
        return copied

    def _plain(self, value: object, place: _Place, depth: int) -> object:
        self._values -= 1
        if self._values < 0:
            self._stop(place, "is too large or nested too deeply", f"at most {limits.VALUES} values in all")
        if depth > limits.DEPTH:
            self._stop(place, "is too large or nested too deeply", f"at most {limits.DEPTH} levels")
        if isinstance(value, str):
            self._take(value, place)
            if not _is_clean(value):
                self._wrong(place, "holds a character that is not valid text", "valid Unicode without NUL")
            return str(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, dict | Mapping):
            return self._mapping(value, place, depth)
        if isinstance(value, list | tuple):
            if len(value) > limits.ITEMS:
                self._stop(place, f"has {len(value)} items", f"at most {limits.ITEMS}")
            return [self._plain(item, (place, n), depth + 1) for n, item in enumerate(value)]
        if isinstance(value, int) and abs(value) < 2**63:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if isinstance(value, int | float):
            self._wrong(place, f"{show(value)} is not a number that can be kept", "a finite number", show(value))
        else:
            self._wrong(place, f"{show(value)} cannot be part of a manifest", "text, number, list, mapping")
        return None

    def _mapping(self, value: Mapping[Any, Any], place: _Place, depth: int) -> dict[str, Any]:
        if len(value) > limits.KEYS:
            self._stop(place, f"has {len(value)} fields", f"at most {limits.KEYS}")
        copied = {}
        for key, item in value.items():
            if not isinstance(key, str) or not _is_clean(key):
                self._wrong(place, f"the key {show(key)} is not text", "a key of text")
                continue
            self._take(key, place)
            copied[key] = self._plain(item, (place, key), depth + 1)
        return copied

    def _take(self, text: str, place: _Place) -> None:
        self._characters -= len(text)
        if self._characters < 0:
            self._stop(place, "makes the manifest too long", f"at most {limits.TOTAL_CHARACTERS} characters in all")

    def _wrong(self, place: _Place, problem: str, allowed: str, value: str | None = None) -> None:
        self.errors.append(FieldError(_path(place) or "manifest", value, problem, allowed))
        if len(self.errors) > limits.REPORTED:
            raise _TooLarge

    def _stop(self, place: _Place, problem: str, allowed: str) -> NoReturn:
        self.errors.append(FieldError(_path(place)[:80] or "manifest", None, problem, allowed))
        raise _TooLarge


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
