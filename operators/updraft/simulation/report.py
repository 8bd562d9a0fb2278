"""Write what simulations show as a page with pictures."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from updraft.simulation.engine import Run
from updraft.simulation.outcome import Outcome, percentile

COLUMNS = (
    "policy", "completed", "dropped", "mean time", "median", "95 %", "slowdown, median", "95 %", "devices used",
    "jobs waiting", "resizes", "last end",
)  # fmt: skip
STYLE = """\
body { font: 15px sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse }
tr + tr { border-top: 1px solid #ddd }
td, th { padding: .2em .7em; text-align: right; white-space: nowrap }
td:first-child, th:first-child { text-align: left }
svg { max-width: 100%; height: auto }
"""


def rows(outcomes: Mapping[str, Outcome]) -> list[tuple[str, ...]]:
    """Return a row of text for each policy, in the order of `COLUMNS`."""
    return [
        (
            name,
            f"{each.completed:,}",
            f"{each.dropped:,}",
            *(
                hours(value)
                for value in (each.mean, percentile(each.completion, 0.5), percentile(each.completion, 0.95))
            ),
            *(f"{percentile(each.slowdowns, part):.2f}" for part in (0.5, 0.95)),
            f"{each.used:.0%}",
            f"{each.waiting:,.1f}",
            f"{each.resizes:,}",
            hours(each.ended),
        )
        for name, each in outcomes.items()
    ]


def hours(seconds: float) -> str:
    """Return a time in minutes below two hours, in hours from there on."""
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def write(folder: Path, runs: Mapping[str, Run], facts: Sequence[tuple[str, str]]) -> Path:
    """Write `index.html` below the folder, which is made if it is missing; return its path.

    Raises:
        ImportError: matplotlib is not installed.
    """
    outcomes = {name: Outcome.of(run) for name, run in runs.items()}
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        "<!doctype html><meta charset=utf-8><title>Simulation</title>",
        f"<style>{STYLE}</style>",
        "<h1>Simulation</h1>",
    ]
    parts += ["<p>", "; ".join(f"{html.escape(name)}: {html.escape(value)}" for name, value in facts), "</p>"]
    parts += [_table(outcomes), _picture(runs, outcomes)]
    path = folder / "index.html"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _table(outcomes: Mapping[str, Outcome]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(outcomes)
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _picture(runs: Mapping[str, Run], outcomes: Mapping[str, Outcome]) -> str:
    """Return one SVG: completion times, slowdowns, devices in use and jobs that wait."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "updraft"  # the same runs give the same file
    figure = Figure(figsize=(12, 8), layout="constrained")
    times, slow, used, waiting = figure.subplots(2, 2).flat
    for name, outcome in outcomes.items():
        for axes, values, unit in ((times, outcome.completion, 3600.0), (slow, outcome.slowdowns, 1.0)):
            if values:
                parts = [(n + 1) / len(values) for n in range(len(values))]
                axes.step([value / unit for value in values], parts, where="post", label=name)
        hours_ = [at / 3600 for at, _, _ in runs[name].usage]
        used.step(hours_, [devices for _, devices, _ in runs[name].usage], where="post", label=name, linewidth=0.8)
        waiting.step(hours_, [jobs for _, _, jobs in runs[name].usage], where="post", label=name)
    for axes, title, x, y in (
        (times, "Completion time", "hours from arrival to end", "part of the jobs"),
        (slow, "Slowdown", "completion time / training alone at the fixed size", "part of the jobs"),
        (used, "Devices in use", "hours", "devices"),
        (waiting, "Jobs that wait", "hours", "jobs"),
    ):
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
    for axes in (times, slow):
        axes.set_xscale("log")
    times.legend(fontsize="small")
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("?>")[2]
