"""`python bench/faults [--runs N] [--seed S] [--kinds A,B] ...`: do what is planned and not done yet, then report.

Called by `make faults`, whose variables are these options. Exit status 1 when a run failed, 2 when the lab itself did.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.stack import PREPARED, BenchmarkError

from faults import every, outcomes, report
from faults.jobs import LIVES
from faults.kinds import KINDS
from faults.kinds.base import AIMS
from faults.lab import Lab, check_environment, running_lab
from faults.outcomes import Provenance, RunRecord, ViolationRecord
from faults.plan import Planned, cover, is_stack_wide, paired, plan, rotation
from faults.run import perform

LANES = 4  # faults that meet one job only come side by side
BUNDLES = PREPARED / "faults-failed"
POLLUTING = frozenset({"lost", "orphan", "unmet"})  # after these the next runs get a fresh platform


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python bench/faults", description="Breaks a platform and proves what holds.")
    made.add_argument("--runs", type=int, default=1, metavar="N", help="runs of each kind (default 1)")
    made.add_argument("--seed", type=int, default=1, metavar="S", help="of the first run; the next has S + 1")
    made.add_argument("--kinds", default="", metavar="A,B+C", help="kinds, or pairs of them; default: all, and pairs")
    made.add_argument("--scale", type=float, default=1.0, metavar="F", help="multiplies the durations of faults")
    made.add_argument("--minutes", type=float, metavar="M", help="start no run after so many minutes")
    made.add_argument("--home", type=Path, default=PREPARED / "faults", help="folder of the lab's own platform")
    made.add_argument("--results", type=Path, default=outcomes.FILE, help="JSON lines, appended")
    made.add_argument("--lanes", type=int, default=LANES, help="runs at once, of faults that meet one job only")
    made.add_argument("--again", action="store_true", help="also what is done already for this code")
    made.add_argument("--in-pairs", action="store_true", help="all kinds; those of the whole platform two to a run")
    made.add_argument("--no-pairs", action="store_true", help="single faults only")
    made.add_argument(
        "--selection", action="store_true", help="for a short time: small jobs or, for an even seed, whole life cycles"
    )
    made.add_argument("--cover", type=int, metavar="N", help="N runs of what was tried least: kind and moment, or pair")
    made.add_argument("--aim", default="", metavar="STATE", help=f"moment of the fault: {', '.join(AIMS)}")
    made.add_argument("--program", choices=LIVES, default=LIVES[0], help="what the job runs, with --aim")
    made.add_argument(
        "--every", action="store_true", help="kill each process of the tree once, during whole life cycles"
    )
    made.add_argument("--place", action="append", default=[], metavar="KEY", help="with --every: this process only")
    made.add_argument("--report", action="store_true", help="only write the report of the results")
    made.add_argument("--list", action="store_true", help="only say which kinds there are")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.list:
        for kind in KINDS.values():
            print(f"{kind.name:22} {kind.text}")
        return 0
    published = options.results.resolve() == outcomes.FILE.resolve()
    if options.report:
        return _report(options.results, published)
    if options.every:
        return _kill_every(options, published)
    chosen = [name for name in options.kinds.split(",") if name]
    try:
        if options.selection:
            runs = rotation(KINDS, options.seed)
        elif options.cover:
            tried = outcomes.tried(outcomes.load(options.results))
            runs = cover(KINDS, tried, runs=options.cover, seed=options.seed, chosen=chosen)
        elif options.in_pairs and not chosen:
            runs = paired(KINDS, runs=options.runs, seed=options.seed)
        else:
            runs = plan(KINDS, chosen, runs=options.runs, seed=options.seed, pairs=not options.no_pairs)
    except ValueError as exc:
        made.error(str(exc))
    if options.aim:
        runs = [replace(planned, aim=options.aim, program=options.program) for planned in runs]
    code = outcomes.code_digest()
    known = (
        set() if options.again or options.cover else outcomes.done(outcomes.load(options.results), code, options.scale)
    )
    todo = [planned for planned in runs if (planned.kind, planned.seed) not in known]
    print(f"{len(runs)} runs, {len(runs) - len(todo)} of them done already for this code ({code})", flush=True)
    # The platform is ended in a `finally`: a polite end must reach it.
    signal.signal(signal.SIGTERM, _interrupt)
    records: list[RunRecord] = []
    try:
        for record in carry_out(todo, options):
            records.append(record)
            outcomes.append(options.results, record)
            tell(record)
    except KeyboardInterrupt:
        print("interrupted; a later call goes on from here", file=sys.stderr)
    except BenchmarkError as exc:
        print(f"the lab cannot go on: {exc}", file=sys.stderr)
        return 2
    if records or published:
        _report(options.results, published)
    failed = [record for record in records if record.outcome == "failed"]
    print(f"{len(records)} runs, {len(failed)} failed")
    for record in failed:
        print(f"  {record.command}")
    return 1 if failed else 0


def _kill_every(options: argparse.Namespace, published: bool) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    deadline = _deadline(options)
    provenance = Provenance.of_checkout()
    known = set() if options.again else outcomes.killed_places(outcomes.load(options.results), provenance.code)
    print(f"{len(known)} processes were killed already at this code ({provenance.code})", flush=True)
    sweep = every.Sweep(options.seed, spared=known, chosen=options.place)
    met: list[RunRecord] = []
    try:
        while not sweep.over and not _over(deadline):
            with _lab(options.home, options.scale) as lab:
                for record in sweep.on(lab, provenance, BUNDLES, until=deadline):
                    met.append(record)
                    outcomes.append(options.results, record)
                    tell(record)
    except KeyboardInterrupt:
        print("interrupted; a later call goes on from here", file=sys.stderr)
    except BenchmarkError as exc:
        print(f"the lab cannot go on: {exc}", file=sys.stderr)
        return 2
    if met or published:
        _report(options.results, published)
    failed = [record for record in met if record.outcome == "failed"]
    print(f"{len(met)} processes killed, {len(failed)} failed; {'all' if sweep.over else 'not all'} were met")
    for record in failed:
        print(f"  {record.command}")
    if sweep.missed:
        print(f"seen, and gone before they could be killed: {', '.join(sorted(sweep.missed))}")
    return 1 if failed else 0


def carry_out(todo: Sequence[Planned], options: argparse.Namespace) -> Iterator[RunRecord]:
    """The runs' records as they come; a platform that a run has spoilt is replaced."""
    provenance = Provenance.of_checkout()
    deadline = _deadline(options)
    left = batches(todo, options.lanes)

    def do(lab: Lab, planned: Planned) -> RunRecord:
        try:
            return perform(lab, planned, provenance, BUNDLES)
        except Exception as exc:  # noqa: BLE001 - outermost line of a run: the other runs are still done
            traceback.print_exc()
            return failed_lab(planned, options.scale, provenance, exc)

    while left and not _over(deadline):
        with _lab(options.home, options.scale) as lab, ThreadPoolExecutor(options.lanes) as pool:
            spoilt = False
            while left and not spoilt and not _over(deadline):
                check_environment(lab.home)
                for record in pool.map(lambda planned: do(lab, planned), left.pop(0)):
                    spoilt = spoilt or any(v.kind in POLLUTING for v in record.violations)
                    yield record


def failed_lab(planned: Planned, scale: float, provenance: Provenance, exc: Exception) -> RunRecord:
    """A run of which nothing can be said, because the lab itself did not come to its end."""
    return RunRecord(
        kind=planned.kind,
        seed=planned.seed,
        scale=scale,
        outcome="failed",
        **provenance.fields(),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        moments={},
        aim=planned.aim,
        program=planned.program,
        violations=(ViolationRecord(kind="unmet", job="", text=f"the lab failed: {exc!r}"),),
    )


def batches(todo: Sequence[Planned], lanes: int) -> list[list[Planned]]:
    """Neighbours that meet one job each are done side by side, all others alone."""
    found: list[list[Planned]] = []
    narrow: list[Planned] = []
    for planned in todo:
        if is_stack_wide(KINDS, planned):
            found.append([planned])
            continue
        narrow.append(planned)
        if len(narrow) == lanes:
            found.append(narrow)
            narrow = []
    return [*found, narrow] if narrow else found


def tell(record: RunRecord) -> None:
    hit = ", ".join(f"{job.hit}→{job.state}" for job in record.jobs)
    aim = f" at {record.aim} of {record.program}" if record.aim else f" {record.place}" if record.place else ""
    print(f"{record.outcome:7} {record.kind}{aim} seed {record.seed}: {record.seconds:.0f} s; {hit}", flush=True)
    for violation in record.violations:
        print(f"        {violation.kind}: {violation.job}: {violation.text}")
    if record.outcome == "failed":
        print(f"        again: {record.command}\n        kept:  {BUNDLES / str(record.bundle)}", flush=True)


@contextmanager
def _lab(home: Path, scale: float) -> Iterator[Lab]:
    with running_lab(home, scale) as lab:
        yield lab
    shutil.rmtree(home, ignore_errors=True)


def _deadline(options: argparse.Namespace) -> float | None:
    return None if options.minutes is None else time.monotonic() + 60 * options.minutes


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _report(results: Path, published: bool) -> int:
    folder = report.FOLDER if published else results.with_suffix("")
    page = report.write(outcomes.load(results), folder, page=report.PAGE if published else folder / "faults.md")
    print(f"written to {page}")
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
