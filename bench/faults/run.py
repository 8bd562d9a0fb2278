"""One run: some jobs, one fault or two at their moments, and what is true afterwards. Called by `cli`.

All that is drawn is drawn from the kind and the seed before anything starts, so that the same seed asks for the same
again, however the threads go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.stack import BenchmarkError

from faults import checks, parts, witness
from faults.bundle import keep
from faults.checks import Violation
from faults.facts import JobFacts, collect
from faults.jobs import LIFE_STEPS, STEPS, Shape, as_life, blocker, draw_shape, manifest
from faults.kinds import KINDS
from faults.kinds.base import TASK, TOGETHER, Kind, Moment, Rule, Scene, Subject, TooLateError, merged, wait_for
from faults.lab import Lab, is_over
from faults.moments import allowing, come_to, leave
from faults.outcomes import CurveRecord, JobRecord, LossRecord, Outcome, Provenance, RunRecord, ViolationRecord
from faults.plan import Planned, is_stack_wide
from updraft.exceptions import UnavailableError, UpdraftError

FLEET = 5
FLEET_OF_LIVES = 3  # two others beside a job of the whole life cycle, which needs more of the machine
BLOCKED_SECONDS = 6.0  # after the job that takes all CPUs
SPREAD_SECONDS = 12.0  # within which a fleet is submitted
LONG_STEPS = 400  # about 80 s
EARLY = 0.25  # of the faults of the whole stack come while the first jobs are being launched, the others later
EARLY_SECONDS = (2.0, 15.0)  # after the first submission
LIMIT_SECONDS = 240.0  # from the last fault's end to the end of all jobs; then a job is lost
CALM_SECONDS = 90.0  # in which what is left of an ended job goes away by itself
PATIENCE_SECONDS = 180.0  # for a job to come to the moment of its fault
LOOK_SECONDS = 1.0


@dataclass
class Strike:
    """One fault of a run."""

    kind: Kind
    scene: Scene
    moment: Moment | None  # as the target sees it; None: `delay_seconds` after the start of the run
    delay_seconds: float
    injected_at: float | None = None
    healed_at: float | None = None
    too_late: str | None = None
    problem: str | None = None

    def text(self) -> str:
        return self.moment.text() if self.moment is not None else f"{self.delay_seconds:.1f} s after the first job"


@dataclass
class Scenario:
    """Everything that the seed decides."""

    planned: Planned
    subjects: tuple[Subject, ...]
    offsets: tuple[float, ...]
    strikes: tuple[Strike, ...]
    submitted_at: dict[str, float] = field(default_factory=dict)
    hit: dict[str, str] = field(default_factory=dict)

    def rule(self, subject: Subject) -> Rule:
        """What may happen to this job: all faults of the stack meet it, those of a job only if it is the target."""
        rule = merged(
            strike.kind.rule(subject.shape)
            for strike in self.strikes
            if strike.kind.scope == "stack" or strike.scene.target == subject
        )
        return allowing(rule, self.planned, subject.shape) if subject == self.subjects[0] else rule


def draw(lab: Lab, planned: Planned, *, fleet: int = FLEET) -> Scenario:
    """The jobs, the moments and the choices of a run."""
    rng = Random(f"{planned.kind}:{planned.seed}")
    kinds = [KINDS[name] for name in planned.kinds]
    # Under a fault of many minutes the first job outlasts it, and the others end while it lasts.
    long = lab.scale > 1 and any(kind.lasts for kind in kinds)
    usual = LIFE_STEPS if planned.aim else STEPS
    steps = round(LONG_STEPS * lab.scale) if long else usual
    wide = is_stack_wide(KINDS, planned)
    shaping = [kind for kind in kinds if kind.scope == "job"]
    shaping.sort(key=lambda kind: not kind.special)
    shapes = [shaping[0].shape(rng, steps) if shaping else draw_shape(rng, steps=steps)]
    if planned.aim:
        shapes = [_target(rng, shapes[0], planned, kinds)]
        fleet = FLEET_OF_LIVES
    others = fleet - 1 if wide else 0
    shapes += [draw_shape(rng, steps=usual) for _ in range(others)]
    if planned.aim and others:
        shapes[-1] = as_life(rng, shapes[-1], "shell", may_fail=True)
    if planned.aim == "QUEUED":
        shapes[1] = blocker()
    stem = "-".join(name.replace("_", "-")[:14] for name in planned.kinds)
    token = f"{time.time_ns() // 1_000_000_000 % 16**6:06x}"
    subjects = tuple(Subject(f"{stem}-{planned.seed}-{token}-{n}", shape) for n, shape in enumerate(shapes))
    offsets = (0.0, *sorted(rng.uniform(0, SPREAD_SECONDS) for _ in subjects[1:]))
    if planned.aim == "QUEUED":
        offsets = (BLOCKED_SECONDS, 0.0, *(BLOCKED_SECONDS + offset for offset in offsets[2:]))
    strikes: list[Strike] = []
    for kind in kinds:
        own = Random(f"{planned.kind}:{planned.seed}:{kind.name}")
        early, delay = own.random() < EARLY, own.uniform(*EARLY_SECONDS)
        drawn = kind.moment(own, subjects[0].shape)
        moment: Moment | None = drawn
        if planned.aim:
            moment = _aimed(planned.aim, drawn, strikes)
        elif kind.scope == "stack" and early:
            moment = None
        elif kind.scope == "stack" and long:
            moment = Moment(step=own.randint(1, STEPS // 2))
        strikes.append(Strike(kind, Scene(lab, subjects, subjects[0], own), moment, delay))
    return Scenario(planned, subjects, offsets, tuple(strikes))


def _target(rng: Random, shape: Shape, planned: Planned, kinds: list[Kind]) -> Shape:
    """The job of the whole life cycle that is met. Its data may be wrong if what is aimed at comes before training."""
    early = planned.aim in ("PENDING", f"{TASK}admit", f"{TASK}stage_data", f"{TASK}validate_data")
    plain = replace(shape, fails="", fail_at=0) if not any(kind.special for kind in kinds) else shape
    may_fail = early and not any(kind.special for kind in kinds)
    return as_life(rng, plain, planned.program, may_fail=may_fail)


def _aimed(aim: str, drawn: Moment, strikes: list[Strike]) -> Moment | None:
    """Of a pair that comes together the second takes the first one's moment."""
    if aim == TOGETHER:
        return strikes[0].moment if strikes else drawn
    if aim.startswith(TASK):
        return Moment(task=aim.removeprefix(TASK))
    by_step = aim == "PROCESSING" and drawn.step is not None
    return drawn if by_step else Moment(state=aim)


def perform(lab: Lab, planned: Planned, provenance: Provenance, bundles: Path) -> RunRecord:
    """Do it, and say what became of it."""
    began, at = time.monotonic(), datetime.now(UTC)
    scenario = draw(lab, planned)
    _play(lab, scenario)
    struck_at = min((s.injected_at for s in scenario.strikes if s.injected_at), default=time.time())
    facts, violations = _aftermath(lab, scenario)
    outcome: Outcome = "failed" if violations else "passed"
    if not violations and any(strike.too_late for strike in scenario.strikes):
        outcome = "void"
    bundle = keep(lab, scenario.planned, facts, violations, bundles) if outcome == "failed" else None
    return RunRecord(
        kind=planned.kind,
        seed=planned.seed,
        scale=lab.scale,
        outcome=outcome,
        **provenance.fields(),
        at=at.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        moments={s.kind.name: s.too_late or s.text() for s in scenario.strikes},
        healed_seconds={s.kind.name: round(s.healed_at - struck_at, 1) for s in scenario.strikes if s.healed_at},
        jobs=tuple(
            job_record(
                subject, each, struck_at, scenario.submitted_at.get(subject.id), scenario.hit.get(subject.id, "")
            )
            for subject, each in zip(scenario.subjects, facts, strict=True)
        ),
        violations=tuple(ViolationRecord(kind=v.kind, job=v.job, text=v.text[:600]) for v in violations),
        notes={s.kind.name: s.scene.notes for s in scenario.strikes if s.scene.notes},
        aim=planned.aim,
        program=planned.program,
        bundle=None if bundle is None else bundle.name,
    )


def _play(lab: Lab, scenario: Scenario) -> None:
    """Submit the jobs and let the faults come; returns when all faults are over."""
    threads = [threading.Thread(target=_submit_all, args=(lab, scenario), name="fleet", daemon=True)]
    threads += [
        threading.Thread(target=_strike, args=(lab, scenario, strike), name=strike.kind.name, daemon=True)
        for strike in scenario.strikes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _submit_all(lab: Lab, scenario: Scenario) -> None:
    """As people do: with the same id again until it is accepted."""
    began = time.monotonic()
    for offset, subject in sorted(zip(scenario.offsets, scenario.subjects, strict=True), key=lambda each: each[0]):
        time.sleep(max(0.0, offset - (time.monotonic() - began)))
        deadline = time.monotonic() + LIMIT_SECONDS * max(1.0, lab.scale)
        wanted = manifest(subject.shape, subject.id, lab.witness)
        while time.monotonic() < deadline:
            try:
                lab.client.submit(wanted, job_id=subject.id)
                break
            except UnavailableError:
                time.sleep(2.0)
        scenario.submitted_at[subject.id] = time.time()
        for strike in scenario.strikes:
            if strike.scene.target == subject:
                strike.scene.accepted.set()


def _strike(lab: Lab, scenario: Scenario, strike: Strike) -> None:
    scene = strike.scene
    try:
        come_to(scene, scenario.planned.aim, PATIENCE_SECONDS)
        if strike.moment is not None:
            wait_for(scene, strike.moment, PATIENCE_SECONDS * max(1.0, lab.scale))
        else:
            time.sleep(strike.delay_seconds)
        if not scenario.hit:
            scenario.hit.update({subject.id: _state(lab, subject) for subject in scenario.subjects})
        strike.injected_at = time.time()
        strike.kind.inject(scene)
        if strike.kind.lasts:
            time.sleep(scene.outage_seconds)
    except TooLateError as exc:
        strike.too_late = str(exc)
        return
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = f"{strike.kind.name}: {exc}"
    try:
        if strike.injected_at is not None and (scene.held is not None or strike.problem is None):
            strike.kind.heal(scene)
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = strike.problem or f"{strike.kind.name}: {exc}"
    try:
        leave(scene, scenario.planned.aim)
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = strike.problem or f"after {strike.kind.name}: {exc}"
    strike.healed_at = time.time()


def _state(lab: Lab, subject: Subject) -> str:
    try:
        job = lab.job(subject.id)
    except UpdraftError:
        return "?"
    return "not accepted" if job is None else str(job.state)


def _aftermath(lab: Lab, scenario: Scenario) -> tuple[list[JobFacts], list[Violation]]:
    """Wait for the platform and the jobs, then look at everything."""
    violations = [Violation("unmet", "", strike.problem) for strike in scenario.strikes if strike.problem]
    deadline = time.monotonic() + LIMIT_SECONDS * max(1.0, lab.scale)
    for name in parts.services(lab.home):
        try:
            parts.wait_serves(lab.home, name, since=0.0, seconds=max(1.0, deadline - time.monotonic()))
        except BenchmarkError as exc:
            violations.append(Violation("unmet", "", str(exc)))
    while time.monotonic() < deadline and not all(is_over(lab, subject.id) for subject in scenario.subjects):
        time.sleep(LOOK_SECONDS)
    facts, found = settle(lab, scenario.subjects, scenario.rule)
    violations += found
    violations += [
        item for strike in scenario.strikes for item in _promises(strike.scene.target.id, strike.scene.notes)
    ]
    return facts, violations


def settle(
    lab: Lab, subjects: Sequence[Subject], rule: Callable[[Subject], Rule]
) -> tuple[list[JobFacts], list[Violation]]:
    """What is there of the jobs, and what is wrong with it, once all that goes away by itself is gone."""
    calm_by = time.monotonic() + CALM_SECONDS
    while True:
        facts = [collect(lab, subject) for subject in subjects]
        judged = [(each, s.shape, rule(s)) for each, s in zip(facts, subjects, strict=True)]
        restless = checks.not_calm(judged) or any(each.unread for each in facts)
        if not restless or time.monotonic() > calm_by:
            break
        time.sleep(2 * LOOK_SECONDS)
    violations = [violation for each in judged for violation in checks.judge(*each)]
    return facts, violations + [Violation("unmet", each.id, text) for each in facts for text in each.unread]


def _promises(job_id: str, notes: dict[str, Any]) -> list[Violation]:
    """What a halted job must not hold."""
    halted = notes.get("while_halted")
    if halted is None:
        return []
    found = []
    if halted["processes"]:
        found.append(Violation("orphan", job_id, f"{halted['processes']} processes ran while it was halted"))
    if halted["granted"]:
        found.append(Violation("orphan", job_id, "its grant was held while it was halted"))
    if halted["mlflow"] not in (None, "KILLED"):
        found.append(Violation("disagreement", job_id, f"MLflow said {halted['mlflow']} while it was halted"))
    return found


def job_record(subject: Subject, facts: JobFacts, struck_at: float, submitted: float | None, hit: str) -> JobRecord:
    own = [session for session in facts.sessions if session.learner == 1]
    until = facts.ended_at or time.time()
    return JobRecord(
        id=facts.id,
        text=subject.shape.text(),
        hit=hit,
        state=str(facts.state),
        attempts=sum(a.role == "train" for a in facts.attempts),
        seconds=round(facts.ended_at - submitted, 1) if facts.ended_at and submitted else None,
        late_seconds=_since(own[0].steps[0][0], facts.processing_at) if own and own[0].steps else None,
        checkpoint_steps=subject.shape.checkpoint_steps,
        losses=tuple(
            LossRecord(
                repeated=loss.repeated,
                next_step_seconds=_since(loss.lost_at, loss.next_step_at),
                caught_up_seconds=_since(loss.lost_at, loss.caught_up_at),
            )
            for loss in witness.losses(facts.sessions)
        ),
        pause_seconds=round(witness.longest_pause(own, struck_at, until), 2),
        curves=tuple(
            CurveRecord(
                attempt=session.attempt,
                points=tuple((round(at - struck_at, 1), step) for at, step in witness.curve(session)),
            )
            for session in own
            if session.steps
        ),
    )


def _since(begin: float, end: float | None) -> float | None:
    return None if end is None else round(end - begin, 2)
