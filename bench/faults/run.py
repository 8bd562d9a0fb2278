"""One run: some jobs, one fault or two at their moments, and what is true afterwards. Called by `cli`.

All that is drawn is drawn from the kind and the seed before anything starts, so that the same seed asks for the same
again, however the threads go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from faults.jobs import LIFE_STEPS, PROGRAM, STEPS, Shape, as_life, blocker, draw_shape, manifest, much_code
from faults.kinds import KINDS
from faults.kinds.base import TASK, TOGETHER, Kind, Moment, Rule, Scene, Subject, TooLateError, merged, wait_for
from faults.lab import Lab, is_over
from faults.moments import allowing, come_to, leave
from faults.outcomes import (
    CurveRecord,
    JobRecord,
    LossRecord,
    Outcome,
    Provenance,
    RunRecord,
    StrikeRecord,
    ViolationRecord,
)
from faults.packing import comes_late
from faults.plan import Planned, PlannedStrike, is_stack_wide
from updraft.exceptions import UnavailableError, UpdraftError

FLEET = 5
FLEET_OF_LIVES = 3  # two others beside a job of the whole life cycle, which needs more of the machine
BLOCKED_SECONDS = 6.0  # after the job that takes all CPUs
SPREAD_SECONDS = 12.0  # within which a fleet is submitted
LONG_STEPS = 400  # about 80 s
EARLY = 0.25  # of the faults of the whole stack come while the first jobs are being launched, the others later
EARLY_SECONDS = (2.0, 15.0)  # after the first submission
LIMIT_SECONDS = 240.0  # from the last fault's end to the end of all jobs; then a job is lost
BEFORE_TRAINING = frozenset({"PENDING", f"{TASK}admit", f"{TASK}stage_data", f"{TASK}validate_data"})
IN_A_POD = frozenset({f"{TASK}stage_data", f"{TASK}validate_data"})
CALM_SECONDS = 90.0  # in which what is left of an ended job goes away by itself
PATIENCE_SECONDS = 180.0  # for a job to come to the moment of its fault
LOOK_SECONDS = 1.0


@dataclass
class Strike:
    """One fault of a run."""

    planned: PlannedStrike
    kind: Kind
    scene: Scene
    moment: Moment | None  # as the target sees it; None: `delay_seconds` after the start of the run
    delay_seconds: float
    after: threading.Event | None = None  # an earlier fault of the stack is over
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    hit: str = ""  # state of the target when it came
    injected_at: float | None = None
    healed_at: float | None = None
    too_late: str | None = None
    problem: str | None = None

    def text(self) -> str:
        return self.moment.text() if self.moment is not None else f"{self.delay_seconds:.1f} s after the first job"

    def record(self) -> StrikeRecord:
        return StrikeRecord(
            kind=self.kind.name,
            aim=self.planned.aim,
            program=self.planned.program,
            job=self.scene.target.id,
            hit=self.hit,
            tasks=tuple(sorted(self.scene.running)),
            too_late=self.too_late is not None,
        )


@dataclass
class Scenario:
    """Everything that the seed decides, and when it came true."""

    planned: Planned
    subjects: tuple[Subject, ...]
    offsets: tuple[float, ...]
    strikes: tuple[Strike, ...]
    gates: dict[str, threading.Event] = field(default_factory=dict)  # jobs that are submitted only after this
    submitted_at: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)
    hit: dict[str, str] = field(default_factory=dict)
    noted: threading.Lock = field(default_factory=threading.Lock)

    def strikes_of(self, subject: Subject) -> list[Strike]:
        """Those of the stack that came while the job was there, and those of which it is the target."""
        return [strike for strike in self.strikes if self._meets(strike, subject)]

    def met_by(self, strike: Strike) -> list[Subject]:
        return [subject for subject in self.subjects if self._meets(strike, subject)]

    def _meets(self, strike: Strike, subject: Subject) -> bool:
        if strike.scene.target == subject:
            return True
        if strike.kind.scope == "job":
            return False
        submitted, ended = self.submitted_at.get(subject.id), self.ended_at.get(subject.id)
        before = submitted is not None and strike.healed_at is not None and strike.healed_at < submitted
        behind = ended is not None and strike.injected_at is not None and strike.injected_at > ended
        return not before and not behind

    def rule(self, subject: Subject) -> Rule:
        """What may happen to this job."""
        rule = merged(_rule_of(strike, subject) for strike in self.strikes_of(subject) if not _never_came(strike))
        own = [strike.planned for strike in self.strikes if strike.scene.target == subject]
        return allowing(rule, own, subject.shape) if own else rule

    def struck_at(self, subject: Subject) -> float:
        times = [strike.injected_at for strike in self.strikes_of(subject) if strike.injected_at is not None]
        return min(times, default=time.time())


def _never_came(strike: Strike) -> bool:
    return strike.too_late is not None and strike.injected_at is None


def _rule_of(strike: Strike, subject: Subject) -> Rule:
    """One that came too late for what it was to do may have done something, so that both ends are right."""
    rule = strike.kind.rule(subject.shape)
    if strike.too_late is None or rule.only is None:
        return rule
    return replace(rule, only=None, also=rule.also | rule.only)


def draw(lab: Lab, planned: Planned, *, fleet: int = FLEET) -> Scenario:
    """The jobs, the moments and the choices of a run."""
    if planned.packed:
        return _draw_packed(lab, planned)
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
        shapes = [_target(rng, shapes[0], planned.strikes)]
        fleet = FLEET_OF_LIVES
    others = fleet - 1 if wide else 0
    shapes += [draw_shape(rng, steps=usual) for _ in range(others)]
    if planned.aim and others:
        shapes[-1] = as_life(rng, shapes[-1], "shell", may_fail=True)
    if planned.aim == "QUEUED":
        shapes[1] = blocker()
    subjects = _subjects("-".join(name.replace("_", "-")[:14] for name in planned.kinds), planned.seed, shapes)
    offsets = (0.0, *sorted(rng.uniform(0, SPREAD_SECONDS) for _ in subjects[1:]))
    if planned.aim == "QUEUED":
        offsets = (BLOCKED_SECONDS, 0.0, *(BLOCKED_SECONDS + offset for offset in offsets[2:]))
    strikes: list[Strike] = []
    for each in planned.strikes:
        kind = KINDS[each.kind]
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
        strikes.append(Strike(each, kind, Scene(lab, subjects, subjects[0], own), moment, delay))
    return Scenario(planned, subjects, offsets, tuple(strikes))


def _draw_packed(lab: Lab, planned: Planned) -> Scenario:
    """Each strike draws what it draws when it is alone. Faults of the stack come in turn, so the target of the next one
    is submitted when the earlier one is over, or has begun where the moment is far from the submission."""
    shapes = []
    for number in range(max(each.subject for each in planned.packed) + 1):
        own = [each for each in planned.packed if each.subject == number]
        leads = [KINDS[each.kind] for each in own if KINDS[each.kind].scope == "job"]
        rng = Random(f"{own[-1].kind}:{planned.seed}")
        shape = leads[0].shape(rng, LIFE_STEPS) if leads else draw_shape(rng, steps=LIFE_STEPS)
        shapes.append(_target(rng, shape, own))
    subjects = _subjects("packed", planned.seed, shapes)
    rng = Random(f"packed:{planned.seed}")
    offsets = tuple(rng.uniform(0, SPREAD_SECONDS) if number else 0.0 for number in range(len(subjects)))
    gates: dict[str, threading.Event] = {}
    strikes: list[Strike] = []
    earlier: Strike | None = None
    for each in planned.packed:
        kind, target = KINDS[each.kind], subjects[each.subject]
        own_rng = Random(f"{each.kind}:{planned.seed}:{each.kind}")
        moment = _aimed(each.aim, kind.moment(own_rng, target.shape), [])
        strike = Strike(each, kind, Scene(lab, subjects, target, own_rng), moment, 0.0)
        if kind.scope == "stack":
            if earlier is not None:
                strike.after = earlier.over
                gates[target.id] = earlier.begun if comes_late(each) else earlier.over
            earlier = strike
        strikes.append(strike)
    waits = tuple(0.0 if s.id in gates else offset for s, offset in zip(subjects, offsets, strict=True))
    return Scenario(planned, subjects, waits, tuple(strikes), gates)


def _subjects(stem: str, seed: int, shapes: Sequence[Shape]) -> tuple[Subject, ...]:
    token = f"{time.time_ns() // 1_000_000_000 % 16**6:06x}"
    return tuple(Subject(f"{stem}-{seed}-{token}-{n}", shape) for n, shape in enumerate(shapes))


def _target(rng: Random, shape: Shape, strikes: Sequence[PlannedStrike]) -> Shape:
    """The job of the whole life cycle that is met. Its data may be wrong if what is aimed at comes before training."""
    special = any(KINDS[strike.kind].special for strike in strikes)
    aims = {strike.aim for strike in strikes}
    plain = shape if special else replace(shape, fails="", fail_at=0)
    life = as_life(rng, plain, strikes[0].program, may_fail=not special and aims <= BEFORE_TRAINING)
    return replace(life, much_code="DOWNLOADING" in aims, new_data=bool(aims & IN_A_POD))


def _aimed(aim: str, drawn: Moment, strikes: Sequence[Strike]) -> Moment | None:
    """Of a pair that comes together the second takes the first one's moment."""
    if aim == TOGETHER:
        return strikes[0].moment if strikes else drawn
    if aim.startswith(TASK):
        return Moment(task=aim.removeprefix(TASK))
    by_step = aim == "PROCESSING" and drawn.step is not None
    return drawn if by_step else Moment(state=aim, exact=aim != "PENDING")


def perform(lab: Lab, planned: Planned, provenance: Provenance, bundles: Path) -> RunRecord:
    """Do it, and say what became of it."""
    began, at = time.monotonic(), datetime.now(UTC)
    scenario = draw(lab, planned)
    _play(lab, scenario)
    facts, violations = _aftermath(lab, scenario)
    outcome: Outcome = "failed" if violations else "passed"
    # Of a packed run the others count.
    too_late = [strike.too_late is not None for strike in scenario.strikes]
    if not violations and (all(too_late) if planned.packed else any(too_late)):
        outcome = "void"
    first = min((s.injected_at for s in scenario.strikes if s.injected_at is not None), default=time.time())
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
        healed_seconds={s.kind.name: round(s.healed_at - first, 1) for s in scenario.strikes if s.healed_at},
        jobs=tuple(
            job_record(
                subject,
                each,
                scenario.struck_at(subject) if planned.packed else first,
                scenario.submitted_at.get(subject.id),
                scenario.hit.get(subject.id, ""),
            )
            for subject, each in zip(scenario.subjects, facts, strict=True)
        ),
        violations=tuple(ViolationRecord(kind=v.kind, job=v.job, text=v.text[:600]) for v in violations),
        notes={s.kind.name: s.scene.notes for s in scenario.strikes if s.scene.notes},
        strikes=tuple(strike.record() for strike in scenario.strikes),
        aim=planned.aim,
        program=planned.program,
        bundle=None if bundle is None else bundle.name,
    )


def _play(lab: Lab, scenario: Scenario) -> None:
    """Submit the jobs and let the faults come; returns when all faults are over."""
    fleet = zip(scenario.offsets, scenario.subjects, strict=True)
    threads = [
        threading.Thread(target=_submit, args=(lab, scenario, subject, offset), name=subject.id, daemon=True)
        for offset, subject in fleet
    ]
    threads += [
        threading.Thread(target=_strike, args=(lab, scenario, strike), name=strike.kind.name, daemon=True)
        for strike in scenario.strikes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _submit(lab: Lab, scenario: Scenario, subject: Subject, offset: float) -> None:
    """As people do: with the same id again until it is accepted."""
    gate = scenario.gates.get(subject.id)
    if gate is not None:
        gate.wait()
    time.sleep(offset)
    deadline = time.monotonic() + LIMIT_SECONDS * max(1.0, lab.scale)
    code = much_code(lab.home.root) if subject.shape.much_code else PROGRAM
    wanted = manifest(subject.shape, subject.id, lab.witness, code)
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
    try:
        _carry_out(lab, scenario, strike)
    finally:
        strike.begun.set()
        strike.over.set()


def _note_hits(lab: Lab, scenario: Scenario, strike: Strike) -> None:
    """What the fault is about to meet: the target first, for some states are short."""
    strike.hit = _state(lab, strike.scene.target)
    with scenario.noted:
        if scenario.planned.packed:
            met = [s for s in scenario.met_by(strike) if s.id in scenario.submitted_at]
            for subject in met:
                scenario.hit.setdefault(subject.id, _state(lab, subject))
        elif not scenario.hit:
            scenario.hit.update({subject.id: _state(lab, subject) for subject in scenario.subjects})


def _carry_out(lab: Lab, scenario: Scenario, strike: Strike) -> None:
    scene, aim = strike.scene, strike.planned.aim
    patience_seconds = PATIENCE_SECONDS * (2 if scenario.planned.packed else 1)  # several outages delay its jobs
    if strike.after is not None:
        strike.after.wait()
    if scenario.planned.packed:
        scene.accepted.wait()
    try:
        come_to(scene, aim, patience_seconds)
        if strike.moment is not None:
            wait_for(scene, strike.moment, patience_seconds * max(1.0, lab.scale))
        else:
            time.sleep(strike.delay_seconds)
        _note_hits(lab, scenario, strike)
        strike.injected_at = time.time()
        strike.kind.inject(scene)
        strike.begun.set()
        if strike.kind.lasts:
            time.sleep(scene.outage_seconds)
    except TooLateError as exc:
        strike.too_late = str(exc)
        with suppress(BenchmarkError, UpdraftError):
            leave(scene, aim)
        return
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = f"{strike.kind.name}: {exc}"
    try:
        if strike.injected_at is not None and (scene.held is not None or strike.problem is None):
            strike.kind.heal(scene)
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = strike.problem or f"{strike.kind.name}: {exc}"
    try:
        leave(scene, aim)
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
    for subject in scenario.subjects:
        with suppress(UpdraftError):
            if (job := lab.job(subject.id)) is not None and job.ended_at is not None:
                scenario.ended_at[subject.id] = job.ended_at.timestamp()
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
