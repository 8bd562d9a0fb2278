"""`python bench [NAME ...] [--quick]`, `python bench report`."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType, ModuleType

from benchmarks import machine, report, results
from benchmarks.options import Options
from benchmarks.results import Noise, Result

TRIES = 3
FIGURES = (
    "parse",
    "planning",
    "sharing",
    "admission",
    "sizing",
    "elastic",
    "elastic_jobs",
    "elastic_pause",
    "shared_memory",
    "small_batches",
    "checkpoint_stall",
    "stream",
    "environment",
    "first_model",
    "throughput",
    "heartbeat",
    "orchestration",
    "lineage",
    "recovery",
    "control_plane",
    "pod_start",
    "triggers",
    "queue",
    "rest",
    "demo",
    "demo_cold",
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python bench", description="Measures every published figure.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(FIGURES)} or report; default: all")
    parser.add_argument("--quick", action="store_true", help="short smoke runs; their results are not published")
    parser.add_argument("--rounds", type=int, metavar="N", help="pairs of a comparison")
    parser.add_argument("--seconds", type=float, metavar="S", help="length of one run of throughput, and of rest")
    parser.add_argument("--tries", type=int, default=TRIES, metavar="N", help=f"of a noisy run; default {TRIES}")
    parser.add_argument("--empty-cache", action="store_true", help="demo_cold: download everything again")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in (*FIGURES, "report")]:
        parser.error(f"{unknown[0]!r} is no figure; there are {', '.join(FIGURES)} and report")
    if options.names == ["report"]:
        return _report()
    # `down` is in the `finally` of each figure: a polite end must reach it.
    signal.signal(signal.SIGTERM, _interrupt)
    chosen = Options(options.quick, options.rounds, options.seconds, options.empty_cache)
    failed = []
    for name in options.names or FIGURES:
        print(f"== {name}", flush=True)
        try:
            result = run_until_quiet(name, chosen, 1 if options.quick else options.tries)
        except Exception as exc:  # noqa: BLE001 - outermost line: the other figures are still measured
            print(f"{name} could not be measured: {exc}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        print(report.section(result))
        print(f"written to {results.save(result)}\n", flush=True)
    if not chosen.quick:
        _report()
    return 1 if failed else 0


def run(name: str, options: Options) -> Result:
    """Measure one figure, with the noise of the machine before and after."""
    figure = figure_of(name)
    commit, changed = machine.commit()
    at, began = datetime.now(UTC), time.monotonic()
    jitter_before, others_before = machine.jitter(), machine.others()
    measured = figure.measure(options)
    noise = Noise(
        jitter_before=jitter_before,
        jitter_after=machine.jitter(),
        others_before=others_before,
        others_after=machine.others(),
    )
    return Result(
        name=name,
        title=figure.TITLE,
        quick=options.quick,
        at=at.isoformat(timespec="seconds"),
        commit=commit,
        changed=changed,
        seconds=round(time.monotonic() - began, 1),
        machine=machine.machine(),
        noise=noise,
        measured=measured,
    )


def run_until_quiet(name: str, options: Options, tries: int, measure: Callable[[str, Options], Result] = run) -> Result:
    """Measure again while the run doubts itself; of several tries the quietest counts, whatever it says."""
    found = [measure(name, options)]
    while found[-1].doubts and len(found) < tries:
        print(f"{name} is measured again: {'; '.join(found[-1].doubts)}", flush=True)
        found.append(measure(name, options))
    return results.quietest(found)


def figure_of(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.figures.{name}")


def _report() -> int:
    report.PAGE.write_text(report.page([(name, figure_of(name).TITLE) for name in FIGURES]), encoding="utf-8")
    print(f"written to {report.PAGE}")
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
