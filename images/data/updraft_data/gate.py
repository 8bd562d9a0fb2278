"""Define the rules of a gate, what a comparison of two models found, and whether the rules hold. Pure.

The pod of the role `compare` makes the comparison (`compare`); the platform reads it and decides by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Metric = Literal["accuracy", "auc", "f1", "log_loss", "brier", "mae", "rmse"]
LESS_IS_BETTER = frozenset({"log_loss", "brier", "mae", "rmse"})
MOST_SLICES = 500  # columns times values of each
TEXT_CHARACTERS = 500

Text = Annotated[str, Field(max_length=TEXT_CHARACTERS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SliceRule(_Frozen):
    """What each value of a column must reach. Without `values`, every value with enough rows is judged."""

    column: Text
    values: tuple[Text, ...] = ()
    threshold: Finite | None = None
    margin: Finite | None = None
    least_rows: int = 30


class GateRules(_Frozen):
    """The rules of a gate, as the manifest's section `export.gate` has them."""

    metric: Metric
    threshold: Finite | None = None
    margin: Finite | None = None
    confidence: Finite = 0.95
    slices: tuple[SliceRule, ...] = ()
    latency_ms: Finite | None = None
    size_bytes: int | None = None
    require: tuple[Literal["validated_data", "verified_model"], ...] = ()
    new_signature: Literal["reject", "accept"] = "reject"

    @property
    def compares(self) -> bool:
        """Return whether a rule compares with the champion's predictions."""
        return self.margin is not None or any(rule.margin is not None for rule in self.slices)


class CompareRequest(_Frozen):
    """What the pod is asked to compare.

    Args:
        champion: The version that the new one is compared with; None: there is no champion.
        problem: Why the champion's model could not be evaluated; None if it was, or need not be.
        validated: Whether all data of the job met a suite of expectations.
        trusted: Whether the model is the program's own, which the platform has not verified.
    """

    rules: GateRules
    model: Text
    champion: Text | None = None
    problem: Text | None = None
    validated: bool = False
    trusted: bool = False


class Score(_Frozen):
    """The metric of some rows, for both models.

    Args:
        better: By how much the challenger is better than the champion, with the ends of its confidence interval:
            positive is better, whatever the metric. None without a champion.
        champion, challenger: None if the metric cannot be computed of these rows.
    """

    rows: int
    challenger: Finite | None = None
    champion: Finite | None = None
    better: Finite | None = None
    low: Finite | None = None
    high: Finite | None = None


class SliceScore(Score):
    """The metric of the rows that have one value in a column."""

    column: Text
    value: Text


class Comparison(_Frozen):
    """What the pod found.

    Args:
        error: Why the new model's predictions cannot be judged at all; the other fields are empty then.
        problem: Why the two models cannot be compared.
        size_bytes, latency_ms: Of the exported model; None if they are not known.
        signature: How the model's signature differs from the champion's; None if it does not, or is not known.
    """

    error: Text | None = None
    problem: Text | None = None
    overall: Score = Score(rows=0)
    slices: Annotated[tuple[SliceScore, ...], Field(max_length=MOST_SLICES)] = ()
    size_bytes: int | None = None
    latency_ms: Finite | None = None
    signature: Text | None = None


@dataclass(frozen=True)
class Check:
    """One rule of the gate, and whether it holds. `text`: the numbers, for people."""

    name: str
    passed: bool
    text: str


def judge(request: CompareRequest, found: Comparison) -> list[Check]:
    """Return each rule of the gate with its result. The gate is passed if all hold.

    all(check.passed for check in judge(request, comparison))
    """
    rules = request.rules
    if found.error is not None:
        return [Check("predictions", False, found.error)]
    checks = [*_thresholds(rules, found)]
    if rules.compares and request.champion is not None:
        checks += _comparisons(rules, found, request.champion)
    checks += _slices(rules, found, request.champion if found.problem is None else None)
    if rules.latency_ms is not None:
        checks.append(_at_most("latency", found.latency_ms, rules.latency_ms, "ms for one call (95th percentile)"))
    if rules.size_bytes is not None:
        size = None if found.size_bytes is None else found.size_bytes / 1e6
        checks.append(_at_most("size", size, rules.size_bytes / 1e6, "MB"))
    if rules.new_signature == "reject" and request.champion is not None:
        text = found.signature or f"the same as that of version {request.champion}, or not known of it"
        checks.append(Check("signature", found.signature is None, text))
    if "validated_data" in rules.require:
        text = "met its expectations" if request.validated else "a data set was not checked against expectations"
        checks.append(Check("validated data", request.validated, text))
    if "verified_model" in rules.require:
        text = "taken unchecked (trust_code)" if request.trusted else "reproduces the program's own output"
        checks.append(Check("verified model", not request.trusted, text))
    return checks


def verdict(checks: Sequence[Check]) -> tuple[bool, str]:
    """Return whether the gate is passed, and the reason: the rules that do not hold, or else those about all rows."""
    failed = [check for check in checks if not check.passed]
    said = failed or [check for check in checks if not check.name.startswith(("slice ", "signature"))]
    texts = [f"{check.name}: {check.text}" for check in said]
    if more := 0 if failed else len(checks) - len(said):
        texts.append(f"{more} more {'rule holds' if more == 1 else 'rules hold'}")
    return not failed, "; ".join(texts)


def _thresholds(rules: GateRules, found: Comparison) -> Iterator[Check]:
    if rules.threshold is not None:
        yield _reaches(rules.metric, rules.metric, found.overall, rules.threshold)


def _comparisons(rules: GateRules, found: Comparison, champion: str) -> Iterator[Check]:
    if found.problem is not None:
        yield Check("champion", False, f"cannot be compared with version {champion}: {found.problem}")
    elif rules.margin is not None:
        yield _beats("champion", found.overall, rules.margin, rules.confidence, champion, surely=True)


def _slices(rules: GateRules, found: Comparison, champion: str | None) -> Iterator[Check]:
    for rule in rules.slices:
        of_column = {score.value: score for score in found.slices if score.column == rule.column}
        judged = [value for value in rule.values or of_column if _rows(of_column, value) >= rule.least_rows]
        small = [value for value in rule.values if value not in judged]
        for value in small:
            rows = _rows(of_column, value)
            yield Check(f"slice {rule.column}={value}", False, f"empty: it has {rows} of {rule.least_rows} rows")
        if not judged and not small:
            yield Check(f"slice {rule.column}", False, f"empty: no value has {rule.least_rows} rows")
        for value in judged:
            name, score = f"slice {rule.column}={value}", of_column[value]
            if rule.threshold is not None:
                yield _reaches(name, rules.metric, score, rule.threshold)
            if rule.margin is not None and champion is not None:
                yield _beats(name, score, rule.margin, rules.confidence, champion, surely=False)


def _rows(scores: dict[str, SliceScore], value: str) -> int:
    return scores[value].rows if value in scores else 0


def _reaches(name: str, metric: str, score: Score, threshold: float) -> Check:
    if score.challenger is None:
        return Check(name, False, f"{metric} cannot be computed of its {score.rows} rows")
    less = metric in LESS_IS_BETTER
    passed = score.challenger <= threshold if less else score.challenger >= threshold
    bound = f"{'at most' if less else 'at least'} {threshold:g}"
    return Check(name, passed, f"{metric} {score.challenger:.4g}, {bound} is asked")


def _beats(name: str, score: Score, margin: float, confidence: float, champion: str, *, surely: bool) -> Check:
    """Return whether the challenger is better by `margin`. `surely`: the whole confidence interval must be above it;
    slices are small, so there the estimate decides."""
    if score.better is None or score.low is None or score.high is None:
        return Check(name, False, f"the metric cannot be computed of its {score.rows} rows")
    word = "worse" if score.better < 0 else "better"
    text = (
        f"{word} than version {champion} by {abs(score.better):.4g} ({confidence:.0%} interval of the difference "
        f"{score.low:+.4g} to {score.high:+.4g}, {score.rows} rows, margin {margin:+g})"
    )
    return Check(name, (score.low if surely else score.better) >= margin, text)


def _at_most(name: str, value: float | None, limit: float, unit: str) -> Check:
    if value is None:
        return Check(name, False, "the export did not measure it")
    return Check(name, value <= limit, f"{value:.3g} {unit}, at most {limit:g} is asked")
