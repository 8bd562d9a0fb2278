"""Compute metrics of predictions, and by how much one model is better than another on the same rows.

The interval is that of a paired bootstrap: rows are drawn with replacement, each with its predictions by both models
(Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13: percentile interval).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap, rankdata

from updraft_data.gate import LESS_IS_BETTER, Score

RESAMPLES = 1_000
LEAST_ROWS = 2  # of which a bootstrap can be made
SMALLEST_PROBABILITY = 1e-15
SEED = 20_261_128

Array = np.ndarray[Any, np.dtype[Any]]
Scorer = Callable[[Array], float]  # takes the numbers of rows


class NoScore(ValueError):
    """Predictions that the metric cannot be computed of; the message says why."""


@dataclass(frozen=True)
class Measured:
    """A score, and the bootstrap's differences that its interval was taken from, for pictures."""

    score: Score
    differences: Array


def scorer(metric: str, label: Array, score: Array) -> Scorer:
    """Return the function that computes the metric of some of the rows: NaN if it is not defined for them.

    Args:
        label: What is true, one value for each row.
        score: What the model says: the class (accuracy, f1), the probability of class 1 (auc, log_loss, brier; and
            accuracy and f1, if labels are 0 and 1 and the scores are fractions), or the number (mae, rmse).

    Raises NoScore for values that the metric has no meaning for.
    """
    if metric in ("accuracy", "f1"):
        truth, said = _classes(label, score)
        if metric == "accuracy":
            return _mean((truth == said).astype(float))
        return _macro_f1(truth, said)
    numbers = _numbers("score", score)
    if metric in ("mae", "rmse"):
        error = numbers - _numbers("label", label)
        return _mean(np.abs(error)) if metric == "mae" else _root(_mean(error**2))
    positive = _binary(label)
    if metric == "auc":
        return _auc(positive, numbers)
    if ((numbers < 0) | (numbers > 1)).any():
        raise NoScore(f"{metric} needs a probability from 0 to 1 as score; there is {numbers.min():g} or more")
    if metric == "brier":
        return _mean((numbers - positive) ** 2)
    likely = np.where(positive == 1, numbers, 1 - numbers)
    return _mean(-np.log(np.maximum(likely, SMALLEST_PROBABILITY)))


def measure(metric: str, challenger: Scorer, champion: Scorer | None, rows: Array, confidence: float) -> Measured:
    """Return the metric of `rows` for both models, and by how much the challenger is better."""
    ours = _finite(challenger(rows)) if len(rows) else None
    if champion is None or ours is None:
        return Measured(Score(rows=len(rows), challenger=ours), np.empty(0))
    theirs = _finite(champion(rows))
    sign = -1.0 if metric in LESS_IS_BETTER else 1.0
    if theirs is None or len(rows) < LEAST_ROWS:
        return Measured(Score(rows=len(rows), challenger=ours, champion=theirs), np.empty(0))

    def better(drawn: Array) -> float:
        return sign * (challenger(drawn) - champion(drawn))

    drawn = bootstrap(
        (rows,),
        better,
        n_resamples=RESAMPLES,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).bootstrap_distribution
    defined = drawn[np.isfinite(drawn)]  # a draw of few rows may lack one of the classes
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2]) if len(defined) else (None, None)
    score = Score(
        rows=len(rows),
        challenger=ours,
        champion=theirs,
        better=sign * (ours - theirs),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
    )
    return Measured(score, defined)


def as_classes(label: Array, score: Array) -> tuple[Array, Array]:
    """Return the true and the predicted class of each row, as text."""
    truth, said = _classes(label, score)
    return np.array([_name(each) for each in truth]), np.array([_name(each) for each in said])


def _name(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _classes(label: Array, score: Array) -> tuple[Array, Array]:
    if _is_number(label) and _is_number(score):
        labels, scores = label.astype(float), score.astype(float)
        fractions = bool((scores != np.round(scores)).any())
        if fractions and not np.isin(labels, (0.0, 1.0)).all():
            raise NoScore("score has fractions, and label other classes than 0 and 1; write the predicted class")
        return labels, (scores >= 0.5).astype(float) if fractions else scores
    if _is_number(label) != _is_number(score):
        raise NoScore("label and score are of two types, such as 3 and '3'; write both as numbers, or both as text")
    return label.astype(str), score.astype(str)


def _is_number(values: Array) -> bool:
    return values.dtype.kind in "biuf"


def _numbers(name: str, values: Array) -> Array:
    if not _is_number(values):
        raise NoScore(f"{name} is no number, as this metric needs it")
    return values.astype(float)


def _binary(label: Array) -> Array:
    labels = _numbers("label", label)
    if not np.isin(labels, (0.0, 1.0)).all():
        raise NoScore("label has other values than 0 and 1, as this metric needs it")
    return labels


def _mean(values: Array) -> Scorer:
    return lambda rows: float(values[rows].mean())


def _root(square: Scorer) -> Scorer:
    return lambda rows: float(np.sqrt(square(rows)))


def _auc(positive: Array, numbers: Array) -> Scorer:
    """Return the area under the ROC curve: the probability that a row of class 1 has the higher score (ties count
    half), by the ranks (Hanley and McNeil, Radiology 143, 1982)."""

    def area(rows: Array) -> float:
        ones = positive[rows] == 1
        many, few = int(ones.sum()), int((~ones).sum())
        if not many or not few:
            return float("nan")
        return float((rankdata(numbers[rows])[ones].sum() - many * (many + 1) / 2) / (many * few))

    return area


def _macro_f1(truth: Array, said: Array) -> Scorer:
    """Return the mean of the classes' F1 values, over the classes that occur."""
    names, codes = np.unique(np.concatenate([truth, said]), return_inverse=True)
    true, predicted, size = codes[: len(truth)], codes[len(truth) :], len(names)

    def f1(rows: Array) -> float:
        one, other = true[rows], predicted[rows]
        hits = np.bincount(one[one == other], minlength=size)
        total = np.bincount(one, minlength=size) + np.bincount(other, minlength=size)
        occurs = total > 0
        return float((2 * hits[occurs] / total[occurs]).mean())

    return f1


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
