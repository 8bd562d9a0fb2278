"""Convert FfDL's `evaluation_metrics` to the manifest's `metrics`.

FfDL's collectors followed the file to which it copied the program's output, event files of TensorBoard, or a file of
JSON lines (metrics/log_collectors of IBM/FfDL, commit 548726a). Its regular expressions were Python's; here they are
RE2's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pydantic_core import PydanticCustomError

from updraft.manifest.collecting import MOST_LINES, PATTERN_ALLOWED, PATTERN_EXAMPLE, SOURCE_ALLOWED, check_source
from updraft.manifest.errors import FieldError, join_path, nearest, one_of, show
from updraft.manifest.values import check_metric_name
from updraft_learner.collectors import JSONL, REGEX, STEP_FIELDS, TENSORBOARD, BadPattern, compiled

FIELDS = ("type", "in", "line_lookahead", "linelookahead", "groups", "image_tag", "eventTypes", "event_types")
TYPES = ("logger", "regex_extractor", "tensorboard", "emetrics_file", "optivist", "file")
OUTPUT_FILES = ("training-log.txt", "user_log.txt", "latest-log")  # where FfDL wrote what the program printed
EVENTS_FOLDER = "$LOG_DIR/tb"
LINES_FILE = "$LOG_DIR/evaluation-metrics.txt"
LINES = 4  # FfDL's default of line_lookahead
PATH = "evaluation_metrics"


@dataclass(frozen=True)
class Metrics:
    """What a manifest's `metrics` becomes, and what is wrong."""

    metrics: tuple[dict[str, Any], ...] = ()
    errors: tuple[FieldError, ...] = ()


def convert_metrics(mapping: Mapping[str, Any]) -> Metrics:
    """Convert the mapping of `evaluation_metrics`."""
    unknown = tuple(
        FieldError(join_path(PATH, name), None, "is not a field", ", ".join(FIELDS), nearest(name, FIELDS))
        for name in list(mapping)[:20]
        if name not in FIELDS
    )
    kind = mapping.get("type", "logger")
    if kind not in TYPES:
        problem = f"{show(kind)} is not a known type"
        return Metrics(errors=(*unknown, _error("type", kind, problem, one_of(TYPES), nearest(kind, TYPES))))
    if kind == "logger":
        return Metrics(errors=unknown)
    source, errors = _source(mapping, EVENTS_FOLDER if kind == "tensorboard" else LINES_FILE)
    errors = [*unknown, *errors]
    if kind == "tensorboard":
        found = [{"type": TENSORBOARD, "from": source}]
    elif kind == "regex_extractor":
        is_output = "in" not in mapping or PurePosixPath(str(source)).name in OUTPUT_FILES
        found = list(_groups(mapping, None if is_output else source, errors))
    else:
        found = [{"type": JSONL, "from": source}]
    return Metrics(tuple(found), tuple(errors))


def _error(field: str, value: object, problem: str, allowed: str, suggestion: str | None = None) -> FieldError:
    return FieldError(f"{PATH}.{field}", None if value is None else show(value), problem, allowed, suggestion)


def _source(mapping: Mapping[str, Any], default: str) -> tuple[str, list[FieldError]]:
    source = mapping.get("in", default)
    try:
        return check_source(source if isinstance(source, str) and source else "/"), []
    except PydanticCustomError:
        return default, [_error("in", source, f"{show(source)} is no place of the job", SOURCE_ALLOWED, default)]


def _groups(mapping: Mapping[str, Any], source: str | None, errors: list[FieldError]) -> Iterator[dict[str, Any]]:
    groups, lines = mapping.get("groups"), mapping.get("line_lookahead", mapping.get("linelookahead", LINES))
    if not isinstance(lines, int) or isinstance(lines, bool) or not 0 <= lines <= MOST_LINES:
        errors.append(
            _error("line_lookahead", lines, f"{show(lines)} is no number of lines", f"0 to {MOST_LINES}", "4")
        )
        lines = LINES
    if not isinstance(groups, Mapping) or not groups:
        errors.append(_error("groups", groups, "is missing or no mapping", "a regex, values and etimes for each group"))
        return
    for label, group in list(groups.items())[:20]:
        path = f"groups.{label}"
        if not isinstance(group, Mapping):
            errors.append(_error(path, group, "is not a mapping", "regex, values and etimes"))
            continue
        pattern = group.get("regex")
        try:
            known = set(compiled(pattern).groupindex) if isinstance(pattern, str) else set()
        except BadPattern as exc:
            errors.append(_error(f"{path}.regex", pattern, f"is refused by RE2: {exc}", PATTERN_ALLOWED))
            continue
        if not known:
            errors.append(_error(f"{path}.regex", pattern, "names no group", PATTERN_ALLOWED, PATTERN_EXAMPLE))
            continue
        values = _references(group.get("scalars", group.get("values")), f"{path}.values", known, errors)
        times = _references(group.get("etimes"), f"{path}.etimes", known, errors)
        step = next((times[name] for name in STEP_FIELDS if name in times), next(iter(times.values()), None))
        prefix = str(label)
        try:
            check_metric_name(prefix)
        except PydanticCustomError:
            errors.append(_error(path, None, "is no name", "letters, digits, _, -, . and blanks"))
            continue
        if not values:
            errors.append(_error(f"{path}.values", None, "is missing", "{loss: {type: FLOAT, value: $loss}}"))
            continue
        yield {
            "type": REGEX,
            "from": source,
            "pattern": pattern,
            "values": values,
            "step": step,
            "lines": max(1, lines),
            "prefix": prefix,
        }


def _references(raw: object, path: str, known: set[str], errors: list[FieldError]) -> dict[str, str]:
    """Return the group of each name; FfDL writes it as {"value": "$group"}, and some of its users without the $."""
    found: dict[str, str] = {}
    for name, item in raw.items() if isinstance(raw, Mapping) else ():
        value = item.get("value") if isinstance(item, Mapping) else None
        group = value.removeprefix("$") if isinstance(value, str) else None
        if group in known:
            found[str(name)] = str(group)
        else:
            allowed = "a group of the regex: " + ", ".join(sorted(known))
            errors.append(_error(f"{path}.{name}.value", value, f"{show(value)} is no group of the regex", allowed))
    return found
