"""From records of runs to the figures of the report: pure. Called by `report` and `page`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from faults.kinds.base import TASK
from faults.outcomes import JobRecord, RunRecord

GOAL_RUNS = 50  # of each kind
STALE_COMMITS = 50  # a run that is older than so many commits does not speak for the present code
NAMED = {
    "lost": "lost",
    "false_verdict": "false verdicts",
    "orphan": "orphans",
    "doubled": "doubled",
    "unregistered": "registry",
    "undelivered": "results",
}


@dataclass(frozen=True)
class Spread:
    median: float
    largest: float
    count: int

    @classmethod
    def of(cls, samples: Iterable[float]) -> Spread | None:
        found = list(samples)
        return cls(statistics.median(found), max(found), len(found)) if found else None


@dataclass(frozen=True)
class KindSummary:
    """What all runs with one kind of fault say, single ones and pairs."""

    kind: str
    single: int
    pairs: int
    failed: int
    jobs: int
    violations: dict[str, int]  # jobs (or runs) with each kind of violation
    repeated: Spread | None  # steps per lost process
    checkpoint_steps: int | None
    next_step: Spread | None  # seconds, per lost process
    pause: Spread | None  # seconds, of jobs that lost nothing
    late: Spread | None  # seconds from a job's first step to the ledger's PROCESSING
    serves: Spread | None  # seconds until the part serves again

    @property
    def runs(self) -> int:
        return self.single + self.pairs

    @property
    def other(self) -> int:
        return sum(count for kind, count in self.violations.items() if kind not in NAMED)


def newest(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the last result of each run; void ones left out, so that they are done again."""
    found = {(r.kind, r.aim, r.place, r.seed, r.scale): r for r in records if r.outcome != "void"}
    return list(found.values())


def summarise(kind: str, records: Sequence[RunRecord]) -> KindSummary:
    """Summarise a kind. `records`: of runs in which this kind took part."""
    single = [r for r in records if r.kind == kind]
    pairs = [r for r in records if r.kind != kind]
    hit = [job for record in single for job in jobs_hit(record)]
    losses = [loss for job in hit for loss in job.losses]
    violations: dict[str, int] = {}
    for record in records:
        for name, _ in {(v.kind, v.job) for v in record.violations}:
            violations[name] = violations.get(name, 0) + 1
    steps = [job.checkpoint_steps for job in hit]
    return KindSummary(
        kind=kind,
        single=len(single),
        pairs=len(pairs),
        failed=sum(r.outcome == "failed" for r in records),
        jobs=sum(len(r.jobs) for r in records),
        violations=violations,
        repeated=Spread.of(loss.repeated for loss in losses),
        checkpoint_steps=steps[0] if steps else None,
        next_step=Spread.of(loss.next_step_seconds for loss in losses if loss.next_step_seconds is not None),
        pause=Spread.of(job.pause_seconds for job in hit if not job.losses and job.pause_seconds > 0),
        late=Spread.of(max(0.0, job.late_seconds) for job in hit if job.late_seconds is not None),
        serves=Spread.of(
            float(record.notes[kind]["serves_after_seconds"])
            for record in single
            if "serves_after_seconds" in record.notes.get(kind, {})
        ),
    )


@dataclass(frozen=True)
class Age:
    """How many runs of a kind there are, alone and in pairs, how many failed, and how many are of recent code."""

    kind: str
    runs: int
    failed: int
    fresh: int
    commit: str  # of the newest run
    stale: bool  # the newest run is too old to speak for the present code


def ages(records: Sequence[RunRecord], kinds: Iterable[str], head: int | None = None) -> list[Age]:
    """Return the age of every kind, also of those that never ran. Age is counted from `head`, the number of commits up
    to the present one, or from the newest run if that is of a later one."""
    present = max((r.position for r in records if r.position is not None), default=0)
    present = max(present, head or 0)
    found = []
    for kind in kinds:
        own = with_kind(records, kind)
        fresh = [r for r in own if r.position is not None and present - r.position <= STALE_COMMITS]
        last = max(own, key=lambda r: (r.position or 0, r.at), default=None)
        failed = sum(r.outcome == "failed" for r in own)
        found.append(Age(kind, len(own), failed, len(fresh), "" if last is None else last.commit, not fresh))
    return found


def killed(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the newest kill of each process of the tree, by its place."""
    found = {r.place: r for r in sorted(records, key=lambda r: r.at) if r.place and r.outcome != "void"}
    return [found[place] for place in sorted(found)]


def moments(records: Sequence[RunRecord], kind: str) -> Counter[str]:
    """Return how often the target of this kind was in each state when the fault came, and in each task that was aimed
    at."""
    found: Counter[str] = Counter()
    for record in with_kind(records, kind):
        if record.strikes:
            for strike in record.strikes:
                if strike.kind == kind and strike.hit and not strike.too_late:
                    found["PENDING" if strike.hit == "not accepted" else strike.hit] += 1
                    found.update(task for task in strike.tasks if strike.aim == f"{TASK}{task}")
            continue
        if not record.jobs or not record.jobs[0].hit:
            continue
        hit = record.jobs[0].hit
        found["PENDING" if hit == "not accepted" else hit] += 1
        if record.aim.startswith(TASK):
            found[record.aim.removeprefix(TASK)] += 1
    return found


def jobs_hit(record: RunRecord) -> tuple[JobRecord, ...]:
    """Return the jobs that ran or waited when the fault came."""
    return tuple(job for job in record.jobs if job.hit not in ("COMPLETED", "FAILED", "CANCELLED"))


def with_kind(records: Sequence[RunRecord], kind: str) -> list[RunRecord]:
    return [record for record in records if kind in record.kinds]
