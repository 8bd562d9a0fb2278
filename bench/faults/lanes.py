"""Does what is planned, side by side where a run meets one job only. Called by `cli`."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from faults.kinds import KINDS
from faults.lab import Lab, check_environment, running_lab
from faults.outcomes import Provenance, RunRecord, StrikeRecord, ViolationRecord
from faults.plan import Planned, is_stack_wide
from faults.run import perform

POLLUTING = frozenset({"lost", "orphan", "unmet"})  # after these the next runs get a fresh platform


def carry_out(
    todo: Sequence[Planned], home: Path, scale: float, lanes: int, deadline: float | None, bundles: Path
) -> Iterator[RunRecord]:
    """Yield the runs' records as they come; a platform that a run has spoilt is replaced.

    No run is started after `deadline`, in monotonic seconds.
    """
    provenance = Provenance.of_checkout()
    left = deque(todo)
    spoilt = threading.Event()
    while left and not is_past(deadline):
        spoilt.clear()
        with fresh_lab(home, scale) as lab, ThreadPoolExecutor(lanes) as pool:
            for record in in_lanes(
                left,
                lanes,
                pool,
                partial(_do, lab, provenance, bundles),
                before=partial(check_environment, lab.home),
                stop=lambda: spoilt.is_set() or is_past(deadline),
            ):
                if any(violation.kind in POLLUTING for violation in record.violations):
                    spoilt.set()
                yield record


def _do(lab: Lab, provenance: Provenance, bundles: Path, planned: Planned) -> RunRecord:
    try:
        return perform(lab, planned, provenance, bundles)
    except Exception as exc:  # noqa: BLE001 - outermost line of a run: the other runs are still done
        traceback.print_exc()
        return failed_lab(planned, lab.scale, provenance, exc)


def in_lanes(
    left: deque[Planned],
    lanes: int,
    pool: Executor,
    do: Callable[[Planned], RunRecord],
    *,
    before: Callable[[], None],
    stop: Callable[[], bool],
) -> Iterator[RunRecord]:
    """Record in the order of their ends. A lane that is free takes the next run; one of the whole platform waits until
    all are free, and has the platform for itself. Nothing is started once `stop` says so. `before` is called before
    each run that starts on an idle platform, and before every so many others as there are lanes."""
    flying: set[Future[RunRecord]] = set()
    alone, started = False, 0
    while True:
        while left and not alone and len(flying) < lanes and not stop():
            wide = is_stack_wide(KINDS, left[0])
            if wide and flying:
                break
            if not flying or started % lanes == 0:
                before()
            alone = wide
            started += 1
            flying.add(pool.submit(do, left.popleft()))
        if not flying:
            return
        ended, flying = wait(flying, return_when=FIRST_COMPLETED)
        alone = alone and bool(flying)
        for future in ended:
            yield future.result()


def failed_lab(planned: Planned, scale: float, provenance: Provenance, exc: Exception) -> RunRecord:
    """Return the record of a run about which nothing can be said, because the lab itself failed."""
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
        strikes=tuple(StrikeRecord(kind=s.kind, aim=s.aim, program=s.program) for s in planned.packed),
        violations=(ViolationRecord(kind="unmet", job="", text=f"the lab failed: {exc!r}"),),
    )


@contextmanager
def fresh_lab(home: Path, scale: float) -> Iterator[Lab]:
    """Give a fresh lab; its folder is removed when all went well."""
    with running_lab(home, scale) as lab:
        yield lab
    shutil.rmtree(home, ignore_errors=True)


def is_past(deadline: float | None, clock: Callable[[], float] = time.monotonic) -> bool:
    """Return whether that time, in seconds of the clock, has passed."""
    return deadline is not None and clock() > deadline
