"""`python -I -m updraft_data.compare`: compare a new model's predictions with the champion's, and write a report.

It runs in the pod of the role `compare`, without credentials. It reads, below DATA_DIR, the request and what the two
evaluations and exports left, and writes RESULT_DIR/comparison.json and RESULT_DIR/report.html. Predictions that cannot
be judged are a result, too: the platform then rejects the version with the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from updraft_data import predictions
from updraft_data.gate import TEXT_CHARACTERS, CompareRequest, Comparison, SliceScore, judge, verdict
from updraft_data.predictions import BadPredictions, Pair
from updraft_learner import runtime
from updraft_learner.contract import (
    CHALLENGER_EXPORT,
    CHALLENGER_PREDICTIONS,
    CHAMPION_EXPORT,
    CHAMPION_PREDICTIONS,
    COMPARE_REQUEST,
    COMPARISON_FILE,
    GATE_REPORT_FILE,
    ExitCode,
)

if TYPE_CHECKING:
    from updraft_data.scores import Measured, Scorer

MOST_VALUES = 50  # of one column
MOST_REPORT_BYTES = 16 * 1024 * 1024  # of an export's report


@dataclass(frozen=True)
class Found:
    """The comparison, and what the report's pictures show besides."""

    comparison: Comparison
    pair: Pair | None = None
    overall: Measured | None = None


def main() -> int:
    """Run the program; return the exit code."""
    folder, target = runtime.data_dir(), runtime.result_dir()
    request = CompareRequest.model_validate_json((folder / COMPARE_REQUEST).read_bytes())
    found = compare(request, folder)
    checks = judge(request, found.comparison)
    passed, reason = verdict(checks)
    for check in checks:
        _say(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.text}")
    _say(f"the gate is {'passed' if passed else f'not passed: {reason}'}")
    from updraft_data.report import render

    _write(target / GATE_REPORT_FILE, render(request, found, checks))
    # Last: it says that all is there.
    _write(target / COMPARISON_FILE, found.comparison.model_dump_json(indent=1))
    return int(ExitCode.DONE)


def compare(request: CompareRequest, folder: Path) -> Found:
    """Return what is found of the files below `folder`. Bad files of the job are an `error` or a `problem` of the
    result."""
    from updraft_data.scores import NoScore

    rules = request.rules
    columns = list(dict.fromkeys(rule.column for rule in rules.slices))
    export = _export(folder / CHALLENGER_EXPORT)
    facts: dict[str, Any] = {
        "size_bytes": export.get("size_bytes"),
        "latency_ms": export.get("latency_ms"),
    }
    if request.champion is not None:
        facts["signature"] = _signature_change(export, _export(folder / CHAMPION_EXPORT))
    problem = request.problem
    try:
        ours = predictions.read(folder / CHALLENGER_PREDICTIONS, columns)
        both = Pair(ours, None)
        if rules.compares and request.champion is not None and problem is None:
            both, problem = _with_champion(ours, folder / CHAMPION_PREDICTIONS)
        overall, slices, unscored = _scores(request, both)
    except (BadPredictions, NoScore) as exc:
        return Found(Comparison(error=str(exc)[:TEXT_CHARACTERS], **facts))
    comparison = Comparison(problem=problem or unscored, overall=overall.score, slices=slices, **facts)
    return Found(comparison, both, overall)


def _with_champion(ours: Any, path: Path) -> tuple[Pair, str | None]:
    try:
        return predictions.pair(ours, predictions.read(path, ())), None
    except BadPredictions as exc:
        return Pair(ours, None), str(exc)[:TEXT_CHARACTERS]


def _scores(request: CompareRequest, both: Pair) -> tuple[Measured, tuple[SliceScore, ...], str | None]:
    """Return the score of all rows and of each slice, and why the champion's predictions have no score."""
    import numpy as np

    from updraft_data.scores import NoScore, measure, scorer

    rules, table = request.rules, both.challenger
    ours = scorer(rules.metric, table["label"].to_numpy(), table["score"].to_numpy())
    theirs: Scorer | None = None
    problem: str | None = None
    if both.champion is not None:
        try:
            theirs = scorer(rules.metric, both.champion["label"].to_numpy(), both.champion["score"].to_numpy())
        except NoScore as exc:
            problem = str(exc)[:TEXT_CHARACTERS]
    _say(f"judging {len(table)} rows")
    overall = measure(rules.metric, ours, theirs, np.arange(len(table)), rules.confidence)
    found: list[SliceScore] = []
    for rule in rules.slices:
        text = table[rule.column].astype("string")
        values = list(rule.values) or sorted(text.dropna().unique())
        if len(values) > MOST_VALUES:
            raise BadPredictions(
                f"slice {rule.column}: it has {len(values)} values, and at most {MOST_VALUES} can be judged; name some "
                "in export.gate.slices[].values, or write a column with fewer"
            )
        for value in values:
            rows = np.flatnonzero((text == value).fillna(False).to_numpy(dtype=bool))
            if rule.values or len(rows) >= rule.least_rows:
                score = measure(rules.metric, ours, theirs, rows, rules.confidence).score
                found.append(SliceScore(column=rule.column, value=value[:TEXT_CHARACTERS], **score.model_dump()))
    return overall, tuple(found), problem


def _export(path: Path) -> dict[str, Any]:
    """Return size, latency and signature of an exported model; empty if its report is not there."""
    try:
        if path.stat().st_size > MOST_REPORT_BYTES:
            return {}
        report = json.loads(path.read_bytes())
        size_bytes = sum(int(file["size"]) for file in report["files"].values())
        times = [float(entry["latency"]["p95_ms"]) for entry in report["formats"].values() if "latency" in entry]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    latency_ms = times[0] if times else None  # of the format that the registry's model has
    return {"size_bytes": size_bytes, "latency_ms": latency_ms, "signature": report.get("signature")}


def _signature_change(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Return how the signature differs from the champion's, for people; None if it does not, or one is not known."""
    one, other = ours.get("signature"), theirs.get("signature")
    if not isinstance(one, dict) or not isinstance(other, dict):
        return None
    changes = []
    for side in ("inputs", "outputs"):
        was, now = _tensors(other.get(side)), _tensors(one.get(side))
        if was != now:
            changes.append(f"{side} were {', '.join(was) or 'none'}, and are {', '.join(now) or 'none'}")
    return f"incompatible: {'; '.join(changes)}"[:TEXT_CHARACTERS] if changes else None


def _tensors(listed: object) -> list[str]:
    if not isinstance(listed, list):
        return []
    tensors = [each for each in listed if isinstance(each, dict)]
    return [f"{each.get('name')} {each.get('dtype')}{list(each.get('shape') or ())}" for each in tensors]


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _say(line: str) -> None:
    print(f"compare: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
