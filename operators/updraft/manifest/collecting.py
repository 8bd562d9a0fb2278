"""Define and check `metrics`: how metrics are taken from what an unchanged program prints or writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from updraft.manifest.adopting import PATTERN_CHARACTERS
from updraft.manifest.errors import VALUE, FieldError, show, wrong
from updraft.manifest.part import Part, Text
from updraft.manifest.values import check_metric_name
from updraft_learner.collectors import FOLDERS, JSONL, REGEX, TENSORBOARD, BadPattern, compiled, split_source
from updraft_learner.contract import Collector

MOST_COLLECTORS = 20
MOST_LINES = 20
MOST_VALUES = 50
PATTERN_EXAMPLE = "epoch %{INT:step}: loss %{FLOAT:loss}"
PATTERN_ALLOWED = "a regular expression of RE2 with a named group for each value, such as (?P<loss>%{FLOAT})"
SOURCE_ALLOWED = (
    "a glob below the program's working directory, or below one of "
    + ", ".join(f"${name}" for name in FOLDERS)
    + ", with *, ? and [], without '..' and '**'"
)


def check_source(value: str) -> str:
    """Return the glob. Raises PydanticCustomError if it could match outside the job's folders."""
    try:
        _, pattern = split_source(value)
    except KeyError:
        raise wrong(f"{VALUE} begins with an unknown variable", SOURCE_ALLOWED, "$LOG_DIR/*.txt", value=value) from None
    parts = pattern.rstrip("/").split("/") if pattern else []
    bad = any(part in ("", ".", "..") for part in parts) or any(text in pattern for text in ("**", "\\", "$"))
    if bad or len(value) > PATTERN_CHARACTERS or not value.isprintable() or value != value.strip() or value[0] == "~":
        raise wrong(f"{VALUE} is no glob below a folder of the job", SOURCE_ALLOWED, "runs/*", value=value)
    return value.rstrip("/")


def check_regex(value: str) -> str:
    """Return the pattern. Raises PydanticCustomError with RE2's reason if it cannot be used."""
    if len(value) > PATTERN_CHARACTERS:
        raise wrong(f"has {len(value)} characters", f"at most {PATTERN_CHARACTERS}", PATTERN_EXAMPLE)
    try:
        pattern = compiled(value)
    except BadPattern as exc:
        raise wrong(f"{VALUE} is refused: {exc}", PATTERN_ALLOWED, PATTERN_EXAMPLE, value=value) from None
    if not pattern.groupindex:
        raise wrong(f"{VALUE} names no group", PATTERN_ALLOWED, PATTERN_EXAMPLE, value=value)
    return value


def check_values(value: object) -> dict[str, str]:
    """Return the mapping of metrics' names to groups. Raises PydanticCustomError for what is none."""
    allowed = "metric: group of the pattern, for instance {val/loss: loss}"
    if not isinstance(value, Mapping) or not all(isinstance(x, str) for item in value.items() for x in item):
        raise wrong(f"{VALUE} is not a mapping of names to groups", allowed, "{val/loss: loss}", value=value)
    if len(value) > MOST_VALUES:
        raise wrong(f"has {len(value)} entries", f"at most {MOST_VALUES}")
    return {check_metric_name(name): group for name, group in value.items()}


class MetricsSource(Part):
    """One way to take metrics from what the program prints or writes, without a change to the program."""

    type: Literal["regex", "tensorboard", "jsonl"] = Field(
        description="regex: numbers in lines of text; tensorboard: the scalars of event files; jsonl: numbers in lines "
        "of JSON"
    )
    source: Annotated[Text, AfterValidator(check_source)] | None = Field(
        None,
        alias="from",
        description="Glob of files (for tensorboard also of folders) below the working directory, or below "
        "$RESULT_DIR, $LOG_DIR, $CHECKPOINT_DIR or $JOB_STATE_DIR. Without it, regex and jsonl read what the program "
        "prints",
        examples=["runs/*"],
    )
    pattern: Annotated[Text, AfterValidator(check_regex)] | None = Field(
        None,
        description="For regex: an expression of RE2, looked for in each line; each named group with a number is a "
        "metric. %{FLOAT:loss} stands for (?P<loss>...) around a number; there are FLOAT, INT, INT_ANY, HEX, TIMESTAMP "
        "and GLOG_STAMP",
        examples=[PATTERN_EXAMPLE],
    )
    values: Annotated[
        dict[str, str],
        PlainValidator(check_values),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    ] = Field(
        {},
        description="For regex: metric's name to the group that holds its value; without it, every named group but the "
        "step's is a metric",
        examples=[{"val/loss": "loss"}],
    )
    step: Text | None = Field(
        None,
        description="Group, or field of the JSON object, that holds the step; without it, step (in JSON also "
        "global_step, iteration, iter, epoch). Where there is none, the n-th match is step n, from 0",
        examples=["iteration"],
    )
    lines: Annotated[int, Field(strict=True)] = Field(
        1, ge=1, le=MOST_LINES, description="For regex: how many lines the pattern may span", examples=[4]
    )
    prefix: Annotated[Text, AfterValidator(check_metric_name)] | None = Field(
        None, description="Put before each metric's name, with a slash", examples=["test"]
    )

    def collector(self) -> Collector:
        """Return what the sidecar acts on."""
        return Collector(
            self.type, self.source, self.pattern, dict(self.values), self.step, self.lines, self.prefix or ""
        )


def collecting_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the fields of `metrics` that miss something, or mean nothing beside the type."""
    found = raw.get("metrics")
    for number, item in enumerate(found if isinstance(found, list | tuple) else ()):
        if isinstance(item, Mapping) and item.get("type") in (REGEX, TENSORBOARD, JSONL):
            yield from _errors(item, f"metrics[{number}]")


def _errors(item: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind = item["type"]
    for field in ("pattern", "values") + (() if item.get("lines") in (None, 1) else ("lines",)):
        if kind != REGEX and item.get(field):
            yield FieldError(f"{path}.{field}", show(item[field]), f"means nothing for {kind}", "only with type regex")
    if kind == TENSORBOARD:
        if item.get("source", item.get("from")) is None:
            problem = "is missing: the folder of the event files"
            yield FieldError(f"{path}.from", None, problem, SOURCE_ALLOWED, "runs/*")
        if item.get("step") is not None:
            problem = "means nothing for tensorboard: each event has its step"
            yield FieldError(f"{path}.step", show(item["step"]), problem, "no step")
    if kind == REGEX:
        yield from _group_errors(item, path)


def _group_errors(item: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    pattern = item.get("pattern")
    if pattern is None:
        yield FieldError(f"{path}.pattern", None, "is missing", PATTERN_ALLOWED, PATTERN_EXAMPLE)
        return
    try:
        groups = list(compiled(pattern).groupindex) if isinstance(pattern, str) else []
    except BadPattern:
        return  # told by the field itself
    known = "a group of the pattern: " + ", ".join(groups)
    step, values = item.get("step"), item.get("values")
    if isinstance(step, str) and step not in groups:
        yield FieldError(f"{path}.step", show(step), f"{show(step)} is no group of the pattern", known)
    if isinstance(values, Mapping):
        for name, group in values.items():
            if group not in groups:
                problem = f"{show(group)} is no group of the pattern"
                yield FieldError(f"{path}.values.{name}", show(group), problem, known)
    if not values and not [group for group in groups if group != (step or "step")]:
        yield FieldError(f"{path}.pattern", None, "has a group for the step alone", PATTERN_ALLOWED, PATTERN_EXAMPLE)
