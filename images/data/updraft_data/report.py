"""Render the report of a gate as one HTML page without scripts, its pictures inside it as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from updraft_data.gate import LESS_IS_BETTER, Check, CompareRequest, verdict

mpl.use("svg")  # before pyplot's own choice of a window system
# Names of slices and classes are a tenant's text: none of it is read as a formula.
mpl.rcParams.update(
    {
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 10,
        "svg.fonttype": "none",
        "text.parse_math": False,
    }
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from updraft_data.compare import Found
    from updraft_data.gate import SliceScore

MOST_CLASSES = 20
MOST_SHOWN_SLICES = 40
NEW, OLD, LIMIT = "#0969da", "#8c959f", "#b42318"


@dataclass(frozen=True)
class Figure:
    """A picture of the report."""

    title: str
    caption: str
    svg: Markup


def render(request: CompareRequest, found: Found, checks: Sequence[Check]) -> str:
    """Return the page."""
    pages = Environment(loader=PackageLoader("updraft_data"), autoescape=True, undefined=StrictUndefined)
    pages.filters["number"] = lambda value: "-" if value is None else f"{value:.4g}"
    passed, _ = verdict(checks)
    return pages.get_template("report.html.j2").render(
        request=request,
        found=found,
        checks=checks,
        passed=passed,
        less=request.rules.metric in LESS_IS_BETTER,
        figures=figures(request, found),
    )


def figures(request: CompareRequest, found: Found) -> list[Figure]:
    """Return the pictures that the predictions allow."""
    drawn: list[Figure] = []
    if found.overall is not None and len(found.overall.differences):
        drawn.append(_differences(request, found))
    if found.comparison.slices:
        drawn.append(_slices(request, found.comparison.slices))
    if found.pair is not None and (shape := _predictions(request, found)) is not None:
        drawn.append(shape)
    return drawn


def _differences(request: CompareRequest, found: Found) -> Figure:
    assert found.overall is not None
    score, rules = found.overall.score, request.rules
    figure, axes = _axes(7, 2.6)
    axes.hist(found.overall.differences, bins=40, color=NEW, alpha=0.6)
    for end in (score.low, score.high):
        if end is not None:
            axes.axvline(end, color=NEW, linestyle="--", linewidth=1)
    if rules.margin is not None:
        axes.axvline(rules.margin, color=LIMIT, linewidth=1.5)
    axes.set_xlabel(f"by how much the new model is better ({rules.metric})")
    axes.set_ylabel("resamples")
    caption = f"Paired bootstrap. Dashed: the {rules.confidence:.0%} interval" + (
        "; red: the margin." if rules.margin is not None else "."
    )
    return Figure(f"New model and version {request.champion}", caption, _svg(figure))


def _slices(request: CompareRequest, scores: Sequence[SliceScore]) -> Figure:
    shown = scores[:MOST_SHOWN_SLICES]
    figure, axes = _axes(7, 0.8 + 0.32 * len(shown))
    places = range(len(shown), 0, -1)
    for place, score in zip(places, shown, strict=True):
        if score.challenger is not None and score.champion is not None:
            axes.plot([score.champion, score.challenger], [place, place], color=OLD, linewidth=1)
    for values, color, label in (
        ([score.champion for score in shown], OLD, "champion"),
        ([score.challenger for score in shown], NEW, "new model"),
    ):
        points = [(value, place) for value, place in zip(values, places, strict=True) if value is not None]
        if points:
            axes.scatter([x for x, _ in points], [y for _, y in points], color=color, label=label, zorder=3)
    axes.set_yticks(list(places), [f"{score.column}={score.value[:30]} ({score.rows:,})" for score in shown])
    axes.set_ylim(0.5, len(shown) + 0.5)
    axes.set_xlabel(request.rules.metric)
    axes.legend(loc="best", frameon=False)
    more = f"; the first {len(shown)} of {len(scores)}" if len(scores) > len(shown) else ""
    return Figure("Metric of each slice", f"In brackets: rows{more}.", _svg(figure))


def _predictions(request: CompareRequest, found: Found) -> Figure | None:
    assert found.pair is not None
    metric = request.rules.metric
    if metric in ("accuracy", "f1"):
        return _confusion(found)
    if metric in ("mae", "rmse"):
        return _errors(found)
    return _calibration(found)


def _confusion(found: Found) -> Figure | None:
    import numpy as np

    from updraft_data.scores import as_classes

    assert found.pair is not None
    table = found.pair.challenger
    truth, said = as_classes(table["label"].to_numpy(), table["score"].to_numpy())
    names = np.unique(np.concatenate([truth, said]))
    if len(names) > MOST_CLASSES:
        return None
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (np.searchsorted(names, truth), np.searchsorted(names, said)), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = _axes(2.2 + 0.35 * len(names), 1.8 + 0.35 * len(names))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row in range(len(names)):
        for column in range(len(names)):
            if counts[row, column]:
                color = "white" if shares[row, column] > 0.5 else "#1f2328"
                axes.text(column, row, f"{counts[row, column]:.0f}", ha="center", va="center", color=color, fontsize=7)
    labels = [str(name)[:12] for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=90)
    axes.set_yticks(range(len(names)), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    return Figure("Classes", "The new model: rows of each true class, by the class that it predicts.", _svg(figure))


def _errors(found: Found) -> Figure:
    import numpy as np

    assert found.pair is not None
    figure, axes = _axes(7, 2.6)
    both = [(found.pair.champion, OLD, "champion"), (found.pair.challenger, NEW, "new model")]
    known = [
        (table["score"].to_numpy(dtype=float) - table["label"].to_numpy(dtype=float), color, name)
        for table, color, name in both
        if table is not None
    ]
    edges = np.histogram_bin_edges(np.concatenate([errors for errors, _, _ in known]), bins=40)
    for errors, color, name in known:
        axes.hist(errors, bins=list(edges), color=color, alpha=0.5, label=name)
    axes.set_xlabel("score - label")
    axes.set_ylabel("rows")
    axes.legend(frameon=False)
    return Figure("Errors", "How far the predictions are from the labels.", _svg(figure))


def _calibration(found: Found) -> Figure | None:
    import numpy as np

    assert found.pair is not None
    figure, axes = _axes(4, 3.6)
    axes.plot([0, 1], [0, 1], color=OLD, linewidth=1, linestyle=":")
    for table, color, name in ((found.pair.champion, OLD, "champion"), (found.pair.challenger, NEW, "new model")):
        if table is None:
            continue
        scores, labels = table["score"].to_numpy(dtype=float), table["label"].to_numpy(dtype=float)
        if scores.min() < 0 or scores.max() > 1:  # a ranking, which auc takes too, is no probability
            return None
        bins = np.minimum((scores * 10).astype(int), 9)
        used = [number for number in range(10) if (bins == number).any()]
        said = [scores[bins == number].mean() for number in used]
        true = [labels[bins == number].mean() for number in used]
        axes.plot(said, true, color=color, marker="o", label=name)
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("share of class 1")
    axes.legend(frameon=False)
    return Figure("Calibration", "Rows in ten groups by their predicted probability.", _svg(figure))


def _axes(width: float, height: float) -> tuple[Any, Axes]:
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Any) -> Markup:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return Markup(drawn[drawn.index("<svg") :])
