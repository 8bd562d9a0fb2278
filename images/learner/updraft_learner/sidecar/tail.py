"""Follow the metrics file to which the program appends (format: `contract`), line by line, each line once."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from updraft_learner import contract
from updraft_learner.record.journal import Entry, Journal
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.followed import READ_BYTES, FollowedFile, lines_of
from updraft_learner.sidecar.recorder import NAMES_ALLOWED, Recorder, is_name

METRICS_PATH = str(Path(contract.METRICS_FILE).relative_to(contract.ROOT_DIR))
KINDS = frozenset({"metrics", "params", "progress", "scaling", "tags", "training"})
MOST_PAIRS = 16  # of measurements in one line


class BadLine(ValueError):
    """A line cannot be used. The message is the reason, without the line's content."""


class MetricsTail:
    """The tail of the metrics file. The journal stores the position with the points, so none is lost or read twice."""

    def __init__(self, root: Path, journal: Journal, recorder: Recorder, warnings: Warnings) -> None:
        self._recorder, self._warnings = recorder, warnings
        generation, offset = journal.read_at.get(METRICS_PATH, (0, 0))
        self._file = FollowedFile(
            root, METRICS_PATH, (generation, offset), on_cut=self._tell_cut, on_long_line=self._tell_long_line
        )
        self._line = 0  # counted in this process, for messages

    def poll(self, *, final: bool = False) -> None:
        """Record all complete new lines; with `final` also a last line without a newline.

        Raises:
            OSError: the file or the journal cannot be used now; the next call continues.
        """
        for block in self._file.blocks(final=final):
            self._take(block)

    def _tell_cut(self) -> None:
        self._warnings.add("metrics file", "metrics file: it was cut or replaced; it is read anew")

    def _tell_long_line(self) -> None:
        self._recorder.count_bad_line(
            f"a line is longer than {READ_BYTES} bytes and was not read; write fewer values to a line, each line "
            "with its own `step`"
        )

    def _take(self, block: bytes) -> None:
        entries: list[Entry] = []
        offset, line_number = self._file.offset, self._line
        bad: list[str] = []
        for line in lines_of(block):
            offset += len(line)
            line_number += 1
            if not line.strip():
                continue
            try:
                new = self._parse(line)
            except BadLine as exc:
                bad.append(f"line {line_number} of this process: {exc}")
                continue
            for entry in new:
                entry["read_at"] = {METRICS_PATH: [self._file.generation, offset]}
            entries += new
        self._recorder.record(entries)
        for reason in bad:
            self._recorder.count_bad_line(reason)
        self._line = line_number

    def _parse(self, line: bytes) -> list[Entry]:
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            raise BadLine("it is not JSON") from None
        if not isinstance(raw, dict) or not raw.keys() & KINDS:
            raise BadLine(f"it is no object with one of {', '.join(sorted(KINDS))}")
        t = _number(raw["t"], "t") if "t" in raw else time.time()
        if not 0 <= t < 1e11:
            raise BadLine("`t` is no time in seconds since 1970")
        entries: list[Entry] = []
        if "metrics" in raw:
            values = {name: _number(value, f"metric {name}") for name, value in _object(raw, "metrics").items()}
            entries += self._recorder.metrics_entries(t, _whole(raw.get("step"), "step"), values, "file")
        if "params" in raw:
            entries += self._recorder.params_entries(t, _texts(_object(raw, "params")), "file")
        if "tags" in raw:
            entries += self._recorder.tags_entries(t, _texts(_object(raw, "tags")), "file")
        if "progress" in raw:
            done = _object(raw, "progress")
            known = ("step", "total", "epoch", "epochs")
            self._recorder.set_progress({name: _whole(done[name], name) for name in known if name in done})
        if "training" in raw:
            done = _object(raw, "training")
            numbers = {name: _amount(done.get(name), name) for name in ("work", "seconds")}
            self._recorder.set_training({"step": _whole(done.get("step"), "step"), **numbers})
        if "scaling" in raw:
            self._recorder.set_scaling(_scaling(_object(raw, "scaling")))
        return entries


def _object(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = raw[name]
    if not isinstance(value, dict):
        raise BadLine(f"`{name}` is no object")
    if any(not key or len(key) > 250 for key in value):
        raise BadLine(f"a name in `{name}` is empty or longer than 250 characters")
    if any(not is_name(key) for key in value):
        raise BadLine(f"a name in `{name}` is refused: {NAMES_ALLOWED}")
    return value


def _scaling(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the program has measured of its own scaling; see `contract`, "The metrics file"."""
    found: dict[str, Any] = {}
    for name in ("follows_batch", "noise", "gradient_bytes"):
        if name in raw:
            found[name] = _positive(raw[name], name)
    for name in ("timings", "exchange"):
        if name in raw:
            pairs = raw[name]
            if not isinstance(pairs, list) or len(pairs) > MOST_PAIRS:
                raise BadLine(f"`{name}` is no list of at most {MOST_PAIRS} pairs")
            if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                raise BadLine(f"`{name}` is no list of pairs of numbers")
            found[name] = [[_positive(value, name) for value in pair] for pair in pairs]
    return found


def _positive(value: Any, name: str) -> float:
    number = _number(value, name)
    if not 0 < number < 1e18:
        raise BadLine(f"`{name}` is not above 0, or not finite")
    return number


def _number(value: Any, name: str) -> float:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadLine(f"`{name[:80]}` is no number")
    try:
        return float(value)
    except OverflowError:
        raise BadLine(f"`{name[:80]}` is too large") from None


def _amount(value: Any, name: str) -> float:
    found = _number(value, name)
    if not 0 <= found < math.inf:
        raise BadLine(f"`{name}` is negative or not finite")
    return found


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -(2**63) < value < 2**63:
        raise BadLine(f"`{name}` is missing or no whole number")
    if int(value) != value:
        raise BadLine(f"`{name}` is no whole number")
    return int(value)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
