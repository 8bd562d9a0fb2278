"""Kills every process of the platform, one after the other, during jobs of the whole life cycle. Called by `cli`.

One job of each program is under way, side by side, while several processes are killed: the next one when all services
serve again and the jobs that it would meet have come further since their last kill. The process tree is walked anew
before each kill, so the processes of tasks and of containers are met too. A kill passes when each job that it met ends
with its true verdict, nothing is wrong with it, and the verdict comes at most `LATE_SECONDS` later than without the
kill.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import psutil
from benchmarks.stack import BenchmarkError

from faults import pace, parts, places, witness
from faults.aftermath import job_record, settle
from faults.bundle import keep
from faults.checks import Violation
from faults.facts import JobFacts
from faults.jobs import LIFE_STEPS, LIVES, Program, Shape, as_life, manifest
from faults.kinds.base import Rule, Subject, merged
from faults.kinds.control import all_serve, untouched, without_store
from faults.lab import Lab, is_over, state_of
from faults.lanes import POLLUTING, is_past
from faults.outcomes import EVERY, Provenance, RunRecord, ViolationRecord
from faults.pace import Timeline
from faults.places import PlatformProcess
from faults.plan import Planned
from updraft.exceptions import UnavailableError, UpdraftError
from updraft.stack.layout import Home

LATE_SECONDS = 60.0
LOST_SECONDS = 300.0  # without a verdict for so long after the last kill, a job is lost
CALM_JOBS = 3  # of each program: their median is what is usual
LOOKS = 6  # in a row that find nothing new: then each process was killed
PAUSE_SECONDS = (2.0, 8.0)  # from one look to the next
WINDOW_SECONDS = 3.0  # a look lasts so long: many a process lives for two seconds only
AGE_SECONDS = (0.0, 1.0)  # after it was seen, what lives shortly is killed
POLL_SECONDS = 0.5


@dataclass
class Kill:
    """One killed process, and the jobs that it met."""

    place: str
    pid: int
    at: float  # unix seconds
    job: str  # id of the job that the process worked for; empty for a process that serves all jobs
    rule: Rule
    met: tuple[Subject, ...]
    hit: Mapping[str, str]  # state by job
    served_at: float | None = None
    problem: str | None = None

    @property
    def service(self) -> str:
        return self.place.partition(" ")[0]


@dataclass
class Wave:
    """One job of each program, side by side."""

    subjects: Mapping[Program, Subject]
    submitted_at: dict[str, float] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    touched: set[tuple[str, str]] = field(default_factory=set)  # (job, role or task) that was hit already
    held_up: dict[str, tuple[int, int]] = field(default_factory=dict)  # by job: how far it was at its last kill

    def kills_of(self, job_id: str) -> list[Kill]:
        return [kill for kill in self.kills if any(subject.id == job_id for subject in kill.met)]

    def rule(self, subject: Subject) -> Rule:
        return merged(kill.rule for kill in self.kills_of(subject.id))

    def may_meet(self, target: PlatformProcess) -> bool:
        """Return whether all jobs that its kill would meet have come further since their last one: each kill is counted
        for itself."""
        ids = {subject.id for subject in self.subjects.values()}
        met = {target.job} if target.job else ids
        return met <= ids and not met & set(self.held_up) and (target.job, _role(target)) not in self.touched


@dataclass(frozen=True)
class SweepTools:
    """How a sweep sees the platform, kills in it, and keeps time."""

    tree: Callable[[Home], Mapping[str, list[PlatformProcess]]] = places.tree
    send: Callable[[psutil.Process, signal.Signals], bool] = parts.send
    wait_for_services: Callable[[Lab, str, int, float], float] = all_serve
    judge: Callable[[Lab, Sequence[Subject], Callable[[Subject], Rule]], tuple[list[JobFacts], list[Violation]]] = (
        settle
    )
    keep_bundle: Callable[[Lab, Planned, Sequence[JobFacts], Sequence[Violation], Path], Path] = keep
    now: Callable[[], float] = time.time  # unix seconds
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


TOOLS = SweepTools()


class Sweep:
    """Kills what was not killed yet, on one platform after the other. `missed`: what ended before it could be."""

    def __init__(
        self, seed: int, *, spared: Collection[str] = (), chosen: Collection[str] = (), tools: SweepTools = TOOLS
    ) -> None:
        self.over, self._tools = False, tools
        self.missed: set[str] = set()
        self._seed, self._rng = seed, Random(f"every:{seed}")
        self._done, self._chosen = set(spared), frozenset(chosen)
        self._usual: dict[Program, Timeline] = {}
        self._lasting: set[str] = set()
        self._empty = 0  # looks in a row that found nothing new
        self._number = 0

    def on(self, lab: Lab, provenance: Provenance, bundles: Path, *, until: float | None) -> Iterator[RunRecord]:
        """Yield the kills on this platform; ends when it is spoilt, `until` (monotonic) is over or nothing is left.

        Raises BenchmarkError when a job does not complete though nothing was killed.
        """
        self._lasting = {key for key in self._tools.tree(lab.home) if " task " not in key}
        if not self._usual:
            self._usual = self._calm(lab)
        while not self.over and not self._is_past(until):
            wave = self._start(lab, "every")
            self._kill(lab, wave, until)
            found = list(self._judged(lab, wave, provenance, bundles))
            yield from found
            if self._empty >= LOOKS and not wave.kills:
                self.over = True
            if any(v.kind in POLLUTING for record in found for v in record.violations):
                return

    def _calm(self, lab: Lab) -> dict[Program, Timeline]:
        """Return what is usual for each program, beside the others."""
        found: dict[Program, list[Timeline]] = {program: [] for program in LIVES}
        for _ in range(CALM_JOBS):
            wave = self._start(lab, "calm")
            self._wait(lab, wave)
            for program, subject in wave.subjects.items():
                job = lab.job(subject.id)
                if job is None or job.state != "COMPLETED" or job.ended_at is None:
                    raise BenchmarkError(
                        f"{subject.id} did not complete though nothing was killed: {job and job.reason}"
                    )
                sessions, tasks = witness.read(lab.witness / subject.id), lab.task_ends(subject.id)
                submitted, ended = wave.submitted_at[subject.id], job.ended_at.timestamp()
                found[program].append(pace.timeline(submitted, ended, sessions, tasks))
        return {program: pace.median(timelines) for program, timelines in found.items()}

    def _start(self, lab: Lab, stem: str) -> Wave:
        self._number += 1
        wave = Wave({p: Subject(f"{stem}-{self._seed}-{self._number}-{p}", self._shape(p)) for p in LIVES})
        for subject in wave.subjects.values():
            wave.submitted_at[subject.id] = self._submit(lab, subject)
        return wave

    def _submit(self, lab: Lab, subject: Subject) -> float:
        """Return when it was accepted, as unix seconds; asked again while parts are away."""
        deadline = self._tools.monotonic() + LOST_SECONDS
        while True:
            try:
                lab.client.submit(manifest(subject.shape, subject.id, lab.witness), job_id=subject.id)
            except UnavailableError as exc:
                if self._tools.monotonic() > deadline:
                    raise BenchmarkError(f"{subject.id} was not accepted: {exc}") from exc
                self._tools.sleep(POLL_SECONDS)
            else:
                return self._tools.now()

    def _wait(self, lab: Lab, wave: Wave) -> None:
        """Wait for the verdicts of all jobs, or until they are lost."""
        deadline = self._tools.monotonic() + LOST_SECONDS
        while not _all_over(lab, wave) and self._tools.monotonic() < deadline:
            self._tools.sleep(POLL_SECONDS)

    def _is_past(self, deadline: float | None) -> bool:
        return is_past(deadline, self._tools.monotonic)

    def _shape(self, program: Program) -> Shape:
        """Return all of a program take the same time. Their data are judged in a pod each time."""
        return as_life(self._rng, Shape(steps=LIFE_STEPS, new_data=True), program, may_fail=False)

    def _kill(self, lab: Lab, wave: Wave, until: float | None) -> None:
        """Kill one after the other until all jobs have their verdicts, or are lost."""
        last = self._tools.monotonic()
        while not _all_over(lab, wave) and self._tools.monotonic() < last + LOST_SECONDS:
            self._tools.sleep(self._rng.uniform(*PAUSE_SECONDS))
            if self._is_past(until) or (target := self._find(lab, wave)) is None:
                continue
            before = {s.id: _progress(lab, s.id) for s in wave.subjects.values() if target.job in ("", s.id)}
            kill = self._strike(lab, wave, target)
            if kill is None:
                continue
            wave.kills.append(kill)
            wave.held_up |= before
            wave.touched.add((target.job, _role(target)))
            self._done.add(kill.place)
            self.missed.discard(kill.place)
            try:
                kill.served_at = self._tools.wait_for_services(lab, kill.service, kill.pid, kill.at)
            except BenchmarkError as exc:
                kill.problem = str(exc)
                return
            last = self._tools.monotonic()

    def _find(self, lab: Lab, wave: Wave) -> PlatformProcess | None:
        """Return a process that was not killed yet: short-lived ones first, because they may be gone the next time."""
        found: set[str] = set()
        deadline = self._tools.monotonic() + WINDOW_SECONDS
        while True:
            for job, before in list(wave.held_up.items()):
                if is_over(lab, job) or _progress(lab, job) > before:
                    del wave.held_up[job]
            tree = self._tools.tree(lab.home)
            left = {key: tree[key] for key in sorted(tree) if self._wants(key)}
            found |= set(left)
            free = {key: may for key, each in left.items() if (may := [p for p in each if wave.may_meet(p)])}
            short = [key for key in free if key not in self._lasting]
            if short or self._tools.monotonic() > deadline:
                break
            self._tools.sleep(POLL_SECONDS)
        self._empty = 0 if found else self._empty + 1
        self.missed |= found
        if not free:
            return None
        target = self._rng.choice(free[self._rng.choice(short or list(free))])
        if short:
            self._tools.sleep(self._rng.uniform(*AGE_SECONDS))
        return target

    def _wants(self, key: str) -> bool:
        return key not in self._done and (not self._chosen or key in self._chosen)

    def _strike(self, lab: Lab, wave: Wave, target: PlatformProcess) -> Kill | None:
        """Kill the target. Returns None when no job is under way that it could meet, or it has just ended by itself."""
        under_way = [s for s in wave.subjects.values() if not is_over(lab, s.id)]
        met = tuple(s for s in under_way if target.job in ("", s.id))
        hit = {subject.id: state_of(lab, subject.id) for subject in met}
        at = self._tools.now()
        if not met or not self._tools.send(target.process, signal.SIGKILL):
            return None
        return Kill(target.key, target.process.pid, at, target.job, rule_of(target), met, hit)

    def _judged(self, lab: Lab, wave: Wave, provenance: Provenance, bundles: Path) -> Iterator[RunRecord]:
        """Yield what became of the wave's jobs, counted for each kill."""
        if not wave.kills:
            return
        facts, violations = self._tools.judge(lab, list(wave.subjects.values()), wave.rule)
        by_id = {each.id: each for each in facts}
        late = self._late(lab, wave, by_id)
        failed = [
            (kill, found)
            for kill in wave.kills
            if (found := _violations(kill, wave, violations, late.get(id(kill), {})))
        ]
        bundle = None
        if failed:
            all_found = [violation for _, found in failed for violation in found]
            planned = Planned((EVERY,), self._seed)
            bundle = self._tools.keep_bundle(lab, planned, facts, list(dict.fromkeys(all_found)), bundles).name
        wrong = {id(kill): found for kill, found in failed}
        for kill in wave.kills:
            yield self._record(
                lab, wave, kill, by_id, wrong.get(id(kill), []), late.get(id(kill), {}), provenance, bundle
            )

    def _late(self, lab: Lab, wave: Wave, facts: Mapping[str, JobFacts]) -> dict[int, dict[str, float]]:
        """Return seconds by kill (its `id`) and job."""
        found: dict[int, dict[str, float]] = {}
        for program, subject in wave.subjects.items():
            each, submitted, kills = facts[subject.id], wave.submitted_at[subject.id], wave.kills_of(subject.id)
            try:
                tasks = lab.task_ends(subject.id)
            except UpdraftError:
                tasks = {}
            own = pace.timeline(submitted, each.ended_at or self._tools.now(), each.sessions, tasks)
            seconds = pace.late_seconds(self._usual[program], own, [kill.at - submitted for kill in kills])
            for kill, late in zip(kills, seconds, strict=True):
                found.setdefault(id(kill), {})[subject.id] = late
        return found

    def _record(
        self,
        lab: Lab,
        wave: Wave,
        kill: Kill,
        facts: Mapping[str, JobFacts],
        violations: Sequence[Violation],
        late: Mapping[str, float],
        provenance: Provenance,
        bundle: str | None,
    ) -> RunRecord:
        ends = [facts[subject.id].ended_at or self._tools.now() for subject in kill.met]
        program = {subject.shape.program for subject in kill.met}
        notes = {
            "place": kill.place,
            "pid": kill.pid,
            "late_seconds": round(max(late.values(), default=0.0), 1),
            "others": [other.place for other in wave.kills if other is not kill],
        }
        if kill.served_at is not None:
            notes["serves_after_seconds"] = round(kill.served_at - kill.at, 1)
        moments = ", ".join(f"{kill.at - wave.submitted_at[s.id]:.0f} s into {s.shape.program}" for s in kill.met)
        return RunRecord(
            kind=EVERY,
            seed=self._seed,
            scale=lab.scale,
            outcome="failed" if violations else "passed",
            **provenance.fields(),
            at=datetime.fromtimestamp(kill.at, UTC).isoformat(timespec="seconds"),
            seconds=round(max(ends) - kill.at, 1),
            moments={EVERY: f"{kill.place} {moments}"},
            healed_seconds={EVERY: notes["serves_after_seconds"]} if kill.served_at is not None else {},
            jobs=tuple(
                job_record(s, facts[s.id], kill.at, wave.submitted_at.get(s.id), kill.hit.get(s.id, ""))
                for s in kill.met
            ),
            violations=tuple(ViolationRecord(kind=v.kind, job=v.job, text=v.text[:600]) for v in violations),
            notes={EVERY: notes},
            program=program.pop() if len(program) == 1 else "+".join(sorted(program)),
            place=kill.place,
            bundle=bundle if violations else None,
        )


def rule_of(target: PlatformProcess) -> Rule:
    """Return what a job may lose by this kill: a container dies with what it has not stored, a service costs no
    learner."""
    if target.service == places.NODE and target.job:
        return Rule(tail_may_be_lost=True)
    return without_store(None) if target.service == "s3" else untouched(None)


def _violations(kill: Kill, wave: Wave, found: Sequence[Violation], late: Mapping[str, float]) -> list[Violation]:
    """Return the violations of the jobs that the kill met; each says which other kills met the job too."""
    wrong = [Violation("unmet", "", kill.problem)] if kill.problem else []
    met = {subject.id for subject in kill.met}
    for violation in found:
        if violation.job in met or (not violation.job and not kill.problem):
            others = [k.place for k in (wave.kills_of(violation.job) if violation.job else wave.kills) if k is not kill]
            also = f"; also met by a kill of {', '.join(others)}" if others else ""
            wrong.append(Violation(violation.kind, violation.job, violation.text + also))
    wrong += [
        Violation("late", job, f"its verdict came {seconds:.0f} s later than without the kill")
        for job, seconds in late.items()
        if seconds > LATE_SECONDS
    ]
    return wrong


def _role(target: PlatformProcess) -> str:
    """Return the role that a kill hits: a job is hit once in each of its roles and tasks, or its budgets would end it
    rightly."""
    if target.task:
        return target.task
    return target.key.split()[2].partition("/")[0] if target.job else target.key


def _progress(lab: Lab, job_id: str) -> tuple[int, int]:
    """Return the number of tasks that have succeeded, and the furthest step."""
    try:
        tasks = len(lab.task_ends(job_id))
    except UpdraftError:
        tasks = 0
    return tasks, witness.newest_step(lab.witness / job_id)


def _all_over(lab: Lab, wave: Wave) -> bool:
    return all(is_over(lab, subject.id) for subject in wave.subjects.values())
