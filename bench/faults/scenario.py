"""What a run is made of: its jobs, its faults and their moments, and what may happen to each job. Called by `run`.

All that is drawn is drawn from the kind and the seed before anything starts, so that the same seed asks for the same
again, however the threads go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from faults.jobs import LIFE_STEPS, STEPS, Shape, as_life, blocker, draw_shape
from faults.kinds import KINDS
from faults.kinds.base import TASK, TOGETHER, Kind, Moment, Rule, Scene, Subject, merged
from faults.lab import Lab
from faults.moments import allowing
from faults.outcomes import StrikeRecord
from faults.packing import comes_late
from faults.plan import Planned, PlannedStrike, is_stack_wide

FLEET = 5
FLEET_OF_LIVES = 3  # two others beside a job of the whole life cycle, which needs more of the machine
BLOCKED_SECONDS = 6.0  # after the job that takes all CPUs
SPREAD_SECONDS = 12.0  # within which a fleet is submitted
LONG_STEPS = 400  # about 80 s
EARLY = 0.25  # of the faults of the whole stack come while the first jobs are being launched, the others later
EARLY_SECONDS = (2.0, 15.0)  # after the first submission
BEFORE_TRAINING = frozenset({"PENDING", f"{TASK}admit", f"{TASK}stage_data", f"{TASK}validate_data"})
IN_A_POD = frozenset({f"{TASK}stage_data", f"{TASK}validate_data"})


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
        """Return the strikes of the stack that came while the job existed, and those of which it is the target."""
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
        """Return what may happen to this job."""
        rule = merged(_rule_of(strike, subject) for strike in self.strikes_of(subject) if not _never_came(strike))
        own = [strike.planned for strike in self.strikes if strike.scene.target == subject]
        return allowing(rule, own, subject.shape) if own else rule

    def struck_at(self, subject: Subject) -> float:
        times = [strike.injected_at for strike in self.strikes_of(subject) if strike.injected_at is not None]
        return min(times, default=time.time())


def _never_came(strike: Strike) -> bool:
    return strike.too_late is not None and strike.injected_at is None


def _rule_of(strike: Strike, subject: Subject) -> Rule:
    """Return the rule of a strike for a job. A strike that came too late for what it was to do may have done something,
    so that both ends are right."""
    rule = strike.kind.rule(subject.shape)
    if strike.too_late is None or rule.only is None:
        return rule
    return replace(rule, only=None, also=rule.also | rule.only)


def draw(lab: Lab, planned: Planned, *, fleet: int = FLEET) -> Scenario:
    """Return the jobs, the moments and the choices of a run."""
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
    """Draw a packed run. Each strike draws what it draws when it is alone. Faults of the stack come in turn, so the
    target of the next one is submitted when the earlier one is over, or has begun if the moment is far from the
    submission."""
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
    """Return the job of the whole life cycle that is met. Its data may be wrong if what is aimed at comes before
    training."""
    special = any(KINDS[strike.kind].special for strike in strikes)
    aims = {strike.aim for strike in strikes}
    plain = shape if special else replace(shape, fails="", fail_at=0)
    life = as_life(rng, plain, strikes[0].program, may_fail=not special and aims <= BEFORE_TRAINING)
    return replace(life, much_code="DOWNLOADING" in aims, new_data=bool(aims & IN_A_POD))


def _aimed(aim: str, drawn: Moment, strikes: Sequence[Strike]) -> Moment | None:
    """Return the moment of a strike; of a pair that comes together the second takes the first one's moment."""
    if aim == TOGETHER:
        return strikes[0].moment if strikes else drawn
    if aim.startswith(TASK):
        return Moment(task=aim.removeprefix(TASK))
    by_step = aim == "PROCESSING" and drawn.step is not None
    return drawn if by_step else Moment(state=aim, exact=aim != "PENDING")
