"""`python bench/faults [--runs N] [--seed S] [--kinds A,B] ...`: do what is planned and not done yet, then report.

Called by `make faults`, whose variables are these options. Exit status 1 when a run failed, 2 when the lab itself did.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType

from benchmarks.stack import PREPARED, BenchmarkError

from faults import every, outcomes, report
from faults.jobs import LIVES
from faults.kinds import KINDS
from faults.kinds.base import AIMS
from faults.lanes import carry_out, fresh_lab, is_past
from faults.outcomes import Provenance, RunRecord
from faults.packing import Tally, packed
from faults.plan import Planned, cover, paired, plan, rotation
from faults.summary import GOAL_RUNS, ages, newest

LANES = 4  # faults that meet one job only come side by side
MANY_LANES = 8  # where those jobs are the cheap ones
BUNDLES = PREPARED / "faults-failed"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python bench/faults", description="Breaks a platform and proves what holds.")
    made.add_argument("--runs", type=int, metavar="N", help="runs of each kind (default 1), or rounds of --packed")
    made.add_argument("--seed", type=int, default=1, metavar="S", help="of the first run; the next has S + 1")
    made.add_argument("--kinds", default="", metavar="A,B+C", help="kinds, or pairs of them; default: all, and pairs")
    made.add_argument("--scale", type=float, default=1.0, metavar="F", help="multiplies the durations of faults")
    made.add_argument("--minutes", type=float, metavar="M", help="start no run after so many minutes")
    made.add_argument("--home", type=Path, default=PREPARED / "faults", help="folder of the lab's own platform")
    made.add_argument("--results", type=Path, default=outcomes.FILE, help="JSON lines, appended")
    made.add_argument("--lanes", type=int, help=f"runs at once that meet one job only ({LANES}; packed {MANY_LANES})")
    made.add_argument("--again", action="store_true", help="also what is done already for this code")
    made.add_argument("--in-pairs", action="store_true", help="all kinds; those of the whole platform two to a run")
    made.add_argument("--packed", action="store_true", help="many faults to a run, until each kind has its goal")
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
    try:
        runs = _planned(options)
    except ValueError as exc:
        made.error(str(exc))
    if options.aim:
        runs = [replace(planned, aim=options.aim, program=options.program) for planned in runs]
    code = outcomes.code_digest()
    known = (
        set()
        if options.again or options.cover or options.packed
        else outcomes.done(outcomes.load(options.results), code, options.scale)
    )
    todo = [planned for planned in runs if (planned.kind, planned.seed) not in known]
    print(f"{len(runs)} runs, {len(runs) - len(todo)} of them done already for this code ({code})", flush=True)
    # The platform is ended in a `finally`: a polite end must reach it.
    signal.signal(signal.SIGTERM, _interrupt)
    records: list[RunRecord] = []
    try:
        lanes = options.lanes or (MANY_LANES if options.packed else LANES)
        for record in carry_out(todo, options.home, options.scale, lanes, _deadline(options), BUNDLES):
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


def _planned(options: argparse.Namespace) -> list[Planned]:
    """Return the planned runs. Raises ValueError for a kind that does not exist."""
    chosen = [name for name in options.kinds.split(",") if name]
    records, seed, runs = outcomes.load(options.results), options.seed, options.runs or 1
    if options.packed:
        return packed(_tally(records, seed), rounds=options.runs)
    if options.selection:
        return rotation(KINDS, seed)
    if options.cover:
        return cover(KINDS, outcomes.tried(records), runs=options.cover, seed=seed, chosen=chosen)
    if options.in_pairs and not chosen:
        return paired(KINDS, runs=runs, seed=seed)
    return plan(KINDS, chosen, runs=runs, seed=seed, pairs=not options.no_pairs)


def _kill_every(options: argparse.Namespace, published: bool) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    deadline = _deadline(options)
    provenance = Provenance.of_checkout()
    known = set() if options.again else outcomes.killed_places(outcomes.load(options.results), provenance.code)
    print(f"{len(known)} processes were killed already at this code ({provenance.code})", flush=True)
    sweep = every.Sweep(options.seed, spared=known, chosen=options.place)
    met: list[RunRecord] = []
    try:
        while not sweep.over and not is_past(deadline):
            with fresh_lab(options.home, options.scale) as lab:
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


def tell(record: RunRecord) -> None:
    hit = ", ".join(f"{job.hit}→{job.state}" for job in record.jobs)
    name = f"packed: {record.kind}" if record.packed else record.kind
    aim = f" at {record.aim} of {record.program}" if record.aim else f" {record.place}" if record.place else ""
    print(f"{record.outcome:7} {name}{aim} seed {record.seed}: {record.seconds:.0f} s; {hit}", flush=True)
    for violation in record.violations:
        print(f"        {violation.kind}: {violation.job}: {violation.text}")
    if record.outcome == "failed":
        for strike in record.strikes if record.packed else ():
            late = ", too late" if strike.too_late else ""
            print(f"        {strike.kind} at {strike.aim} of {strike.job} ({strike.program}): met {strike.hit}{late}")
        for command in record.commands:
            print(f"        again: {command}")
        print(f"        kept:  {BUNDLES / str(record.bundle)}", flush=True)


def _tally(records: Sequence[RunRecord], seed: int) -> Tally:
    """Return what was done with durations as they are."""
    own = newest([record for record in records if record.scale == 1])
    found = ages(own, KINDS, outcomes.position())
    return Tally(
        kinds=KINDS,
        runs=Counter({age.kind: age.runs for age in found}),
        stale={age.kind for age in found if age.stale},
        tried=outcomes.tried(records),
        used={(record.kind, record.aim, record.seed) for record in records},
        rng=Random(f"packed:{seed}"),
        first_seed=seed,
        goal=GOAL_RUNS,
    )


def _deadline(options: argparse.Namespace) -> float | None:
    return None if options.minutes is None else time.monotonic() + 60 * options.minutes


def _report(results: Path, published: bool) -> int:
    folder = report.FOLDER if published else results.with_suffix("")
    cluster = outcomes.load(outcomes.CLUSTER_FILE) if published else []
    page = report.PAGE if published else folder / "faults.md"
    print(f"written to {report.write(outcomes.load(results), cluster, folder, page=page)}")
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
