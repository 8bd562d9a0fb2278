"""Describe how metrics are taken from what an unchanged program prints or writes.

The platform checks a manifest's `metrics` with this module, and the sidecar (`sidecar.collect`) acts on them. Patterns
are those of RE2, whose time is linear in the length of a line: no pattern can keep a sidecar from its heartbeat.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from updraft_learner import contract
from updraft_learner.contract import Collector

REGEX, TENSORBOARD, JSONL = "regex", "tensorboard", "jsonl"
# Where `source` may begin besides the code's folder: variables of the program's environment.
FOLDERS = {
    "MODEL_DIR": contract.CODE_DIR,
    "RESULT_DIR": contract.RESULT_DIR,
    "CHECKPOINT_DIR": contract.CHECKPOINT_DIR,
    "LOG_DIR": contract.LOG_DIR,
    "JOB_STATE_DIR": contract.IO_DIR,
}
# FfDL's names, and its way to write them in a pattern: %{FLOAT}, or %{FLOAT:loss} for (?P<loss>%{FLOAT}).
MACROS = {
    "FLOAT": r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?)",
    "INT": r"[-+]?\d+",
    "INT_ANY": r"[-+]?(?:0[xX][0-9A-Fa-f]+|\d+)",
    "HEX": r"[-+]?(?:0[xX])?[0-9A-Fa-f]+",
    "TIMESTAMP": r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[-+]\d{2}:?\d{2})?",
    "GLOG_STAMP": r"[EFIW]\d{4}\s+\d{2}:\d{2}:\d{2}\.\d+",
}
STEP_FIELDS = ("step", "global_step", "iteration", "iter", "epoch")
TIME_FIELDS = ("time", "timestamp", "t")
_MACRO = re.compile(r"%\{(\w+)(?::(\w+))?\}")
_FOLDER = re.compile(r"\$(?:\{(\w+)\}|(\w+))(?:/|$)")
_REFUSED = re.compile(r"[^/\w.\- :]")
EARLIEST, LATEST = 1e9, 1e11  # seconds since 1970 that a field of time may have; others are not times


class BadPattern(ValueError):
    """A pattern cannot be used. The message says why."""


def metric_name(collector: Collector, name: str) -> str:
    """Return the metric's name in MLflow: with the collector's prefix, and with `_` for what MLflow refuses."""
    parts = [part for part in (*collector.prefix.split("/"), *name.split("/")) if part not in ("", ".", "..")]
    return _REFUSED.sub("_", "/".join(parts)).strip()[: contract.NAME_CHARACTERS] or "_"


def split_source(source: str) -> tuple[str, str]:
    """Return the folder, as a path of the contract, and the glob below it. Raises KeyError for an unknown variable."""
    found = _FOLDER.match(source)
    if found is None:
        return contract.CODE_DIR, source
    return FOLDERS[found[1] or found[2]], source[found.end() :]


def expand(pattern: str) -> str:
    """Return the pattern with its macros written out. Raises BadPattern for an unknown one."""

    def replace(found: re.Match[str]) -> str:
        if found[1] not in MACROS:
            raise BadPattern(f"%{{{found[1]}}} does not exist; there are {', '.join(MACROS)}")
        text = MACROS[found[1]]
        return f"(?P<{found[2]}>{text})" if found[2] else f"(?:{text})"

    return _MACRO.sub(replace, pattern)


def compiled(pattern: str) -> Any:
    """Return the pattern compiled by RE2; `.` also matches the end of a line, for patterns that span several.

    Raises BadPattern with RE2's reason.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    options.max_mem = 8 << 20
    try:
        return re2.compile(expand(pattern), options=options)
    except re2.error as exc:
        reason = exc.args[0] if exc.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadPattern(text) from None


def metric_groups(collector: Collector, groups: Mapping[str, int]) -> dict[str, str]:
    """Return the metric's name for each group that holds a value: `values` if it is given, else every named group but
    that of the step."""
    if collector.values:
        return dict(collector.values)
    step = collector.step or "step"
    return {group: group for group in groups if group != step}


def number(text: str) -> float | None:
    """Return a number that was printed, in decimal, hexadecimal (with 0x) or scientific form; None if it is none."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(int(text, 16 if "x" in text.lower() else 10))
    except (ValueError, OverflowError):
        return None


def whole(value: float | None) -> int | None:
    """Return a step; None for what is none."""
    return int(value) if value is not None and math.isfinite(value) and abs(value) < 2**62 else None


@dataclass(frozen=True)
class Point:
    """Values at one step. `step` None: the source names none. `t` None: nor a time."""

    values: dict[str, float]
    step: int | None = None
    t: float | None = None


def parse_json(collector: Collector, line: bytes) -> Point | None:
    """Return what one line of JSON reports; None if it has no numbers.

    An object of FfDL's form ({"etimes": {"iteration": {"value": 5}}, "values": {"loss": {"value": 0.1}},
    "grouplabel": "test"}) or a plain one; in a plain one, objects within it give names with slashes.

    Raises ValueError if it is no JSON object.
    """
    try:
        raw = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(raw, dict):
        raise ValueError("it is no object")
    if isinstance(raw.get("values"), dict) and isinstance(raw.get("etimes"), dict):
        return _ffdl(collector, raw)
    flat = dict(_flat(raw, ""))
    wanted = (collector.step,) if collector.step else STEP_FIELDS
    step_field = next((name for name in wanted if name in flat), None)
    step = whole(flat.pop(step_field)) if step_field is not None else None
    t = None
    for name in TIME_FIELDS:
        if EARLIEST < flat.get(name, 0.0) < LATEST:
            t = flat.pop(name) if t is None else t
    return Point(flat, step, t) if flat else None


def _ffdl(collector: Collector, raw: Mapping[str, Any]) -> Point | None:
    label = raw.get("grouplabel")
    prefix = f"{label}/" if isinstance(label, str) and label else ""
    values = {f"{prefix}{name}": found for name, item in raw["values"].items() if (found := _value(item)) is not None}
    times = {name: found for name, item in raw["etimes"].items() if (found := _value(item)) is not None}
    wanted = (collector.step,) if collector.step else STEP_FIELDS
    step = next((times[name] for name in wanted if name in times), None)
    return Point(values, whole(step)) if values else None


def _value(item: object) -> float | None:
    value = item.get("value") if isinstance(item, Mapping) else item
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return number(value) if isinstance(value, str) else _float(value)


def _flat(raw: Mapping[str, Any], prefix: str, depth: int = 0) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in raw.items():
        if isinstance(value, dict) and depth < 4:
            found += _flat(value, f"{prefix}{name}/", depth + 1)
        elif isinstance(value, int | float) and not isinstance(value, bool) and (real := _float(value)) is not None:
            found.append((f"{prefix}{name}", real))
    return found


def _float(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None
