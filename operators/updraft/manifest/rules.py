"""Decide whether a new model version becomes the champion, by the rules of `promote_if`.

Pure; the promote operator reads the metrics and moves the alias.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from updraft.manifest.errors import VALUE, wrong

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?"
_RULE = re.compile(
    rf"(?P<op>>=|<=|>|<)\s*(?:(?P<threshold>{_NUMBER})|champion(?:\s*(?P<sign>[-+])\s*(?P<offset>{_NUMBER}))?)",
    re.ASCII,
)
RULE_CHARACTERS = 200
RULE_ALLOWED = "an operator (>=, >, <=, <) and a number or 'champion', which may have + or - a number after it"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True)
class PromotionRule:
    """One rule of `promote_if`: compare the metric `metric` to `threshold` with the operator `op`.

    If `threshold` is None, it is the champion's value of the metric plus `offset`, as in `>= champion + 0.01`.
    """

    metric: str
    op: str
    threshold: float | None = None
    offset: float = 0.0

    def __str__(self) -> str:
        """Return the rule without its metric, as a manifest writes it."""
        if self.threshold is not None:
            return f"{self.op} {_short(self.threshold)!r}"
        if not self.offset:
            return f"{self.op} champion"
        return f"{self.op} champion {'+' if self.offset > 0 else '-'} {_short(abs(self.offset))!r}"


@dataclass(frozen=True)
class Promotion:
    """The decision whether the new version becomes the champion, with the reason."""

    promote: bool
    reason: str


def _short(number: float) -> int | float:
    return int(number) if number == int(number) and abs(number) < 1e15 else number


def parse_rule(metric: str, text: object) -> PromotionRule:
    """Parse a rule such as `>= champion`, `< 0.2` or `>= champion + 0.01`; `champion + 0.01` alone means at least that.

    Raises PydanticCustomError (a `FieldError` in the making).
    """
    written = text.strip() if isinstance(text, str) and len(text) <= RULE_CHARACTERS else ""
    if re.match(r"champion\s*\+", written):
        written = f">= {written}"
    match = _RULE.fullmatch(written)
    if match is None:
        raise wrong(f"{VALUE} is not a rule", RULE_ALLOWED, nearest_rule(text), value=text)
    threshold = None if match["threshold"] is None else float(match["threshold"])
    offset = float(f"{match['offset'] or 0}") * (-1 if match["sign"] == "-" else 1)
    if not math.isfinite(threshold or 0.0) or not math.isfinite(offset):
        raise wrong(f"{VALUE} is not a finite bound", RULE_ALLOWED, "'>= champion'", value=text)
    return PromotionRule(metric, match["op"], threshold, offset)


def nearest_rule(text: object) -> str:
    if isinstance(text, int | float) and not isinstance(text, bool) and math.isfinite(text):
        return f"'>= {text!r}'"
    match = re.search(_NUMBER, text[:200], re.ASCII) if isinstance(text, str) else None
    return f"'>= {match[0]}'" if match and "champion" not in str(text) else "'>= champion'"


def decide(
    rules: Sequence[PromotionRule], metrics: Mapping[str, float], champion_metrics: Mapping[str, float] | None
) -> Promotion:
    """Decide whether a model version becomes the champion: all rules must hold.

    `metrics` are the new version's, `champion_metrics` the champion's, or None when there is no champion; rules that
    compare with it then hold. Without rules, with a missing metric, or with a value that is not finite, nothing is
    promoted.

        decide([Rule("val_accuracy", ">=", 0.9)], {"val_accuracy": 0.93}, None).promote  # True
    """
    if not rules:
        return Promotion(False, "export.promote_if names no rule, so the champion stays as it is")
    reasons: list[str] = []
    for rule in rules:
        value = metrics.get(rule.metric)
        if value is None:
            known = ", ".join(sorted(metrics)) or "none"
            return Promotion(False, f"the run has no metric {rule.metric!r}; its metrics are: {known}")
        if not math.isfinite(value):
            return Promotion(False, f"{rule.metric} is {value}, which is never promoted")
        if rule.threshold is not None:
            bound, name = rule.threshold, f"{rule.threshold:g}"
        elif champion_metrics is None:
            reasons.append(f"{rule.metric} {value:g}: there is no champion yet")
            continue
        else:
            champion = champion_metrics.get(rule.metric)
            if champion is None or not math.isfinite(champion):
                what = "has no metric" if champion is None else f"has the value {champion} of"
                return Promotion(False, f"the champion {what} {rule.metric!r}, so they cannot be compared")
            bound = champion + rule.offset
            name = f"{bound:g} (champion {champion:g}{f' {rule.offset:+g}' if rule.offset else ''})"
        if not _COMPARE[rule.op](value, bound):
            return Promotion(False, f"{rule.metric} {value:g} is not {rule.op} {name}")
        reasons.append(f"{rule.metric} {value:g} {rule.op} {name}")
    return Promotion(True, "; ".join(reasons))
