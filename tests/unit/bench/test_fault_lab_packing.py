"""Packed runs: what has the fewest runs comes first, in turn on the platform, and each fault is counted for itself."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from faults.jobs import manifest
from faults.kinds import KINDS
from faults.kinds.base import Moment, Rule, Scene
from faults.lab import Lab
from faults.lanes import in_lanes
from faults.outcomes import Provenance, RunRecord, tried
from faults.packing import IN_TURN, TARGETS, Tally, comes_late, packed
from faults.plan import Planned, PlannedStrike
from faults.run import _play, outcome_of
from faults.scenario import Scenario, Strike, draw
from faults.summary import ages, moments, with_kind
from hypothesis import given
from hypothesis import strategies as st

from updraft.manifest import parse_any

LAB = cast(Lab, SimpleNamespace(scale=1.0))
CODE = Provenance("0123456789ab", "c", changed=False, position=7)
WIDE = [kind.name for kind in KINDS.values() if kind.scope == "stack"]
NARROW = [kind.name for kind in KINDS.values() if kind.scope == "job"]


def tally(seed: int = 1, **changes: Any) -> Tally:
    fields: dict[str, Any] = {
        "kinds": KINDS,
        "runs": Counter(),
        "stale": set(),
        "tried": Counter(),
        "used": set(),
        "rng": Random(seed),
        "first_seed": seed,
        "goal": 50,
    }
    return Tally(**{**fields, **changes})


@given(st.integers(0, 10**6))
def test_a_packed_run_has_four_targets_and_three_faults_in_turn_that_do_not_exclude_each_other(seed: int) -> None:
    runs = [planned for planned in packed(tally(seed), rounds=1) if planned.packed]
    assert runs
    for planned in runs:
        wide = [strike for strike in planned.packed if KINDS[strike.kind].scope == "stack"]
        narrow = [strike for strike in planned.packed if KINDS[strike.kind].scope == "job"]
        assert len(wide) == IN_TURN
        assert [strike.subject for strike in wide] == list(range(IN_TURN))
        subjects = [strike.subject for strike in narrow]
        assert subjects == sorted(set(subjects))
        assert TARGETS - 1 in subjects
        assert len(set(planned.kinds)) == len(planned.packed)
        assert sum(KINDS[strike.kind].special for strike in wide) <= 1
        assert "QUEUED" not in {strike.aim for strike in planned.packed}
        for strike in wide:
            for own in (each for each in narrow if each.subject == strike.subject):
                assert own.program == strike.program
                assert own.aim != strike.aim
                assert not KINDS[own.kind].special  # it would end the job before the other one's moment
        assert [comes_late(strike) for strike in wide] == sorted(comes_late(strike) for strike in wide)


@given(st.integers(0, 10**6))
def test_every_target_of_a_packed_run_is_a_job_that_the_platform_takes(seed: int) -> None:
    planned = next(each for each in packed(tally(seed), rounds=1) if each.packed)
    scenario = draw(LAB, planned)
    assert len(scenario.subjects) == TARGETS
    assert [s.shape for s in scenario.subjects] == [s.shape for s in draw(LAB, planned).subjects]
    for subject in scenario.subjects:
        assert parse_any(manifest(subject.shape, subject.id, Path("/witness"))).manifest.command
        assert scenario.rule(subject).ends(subject.shape)
    for strike in scenario.strikes:
        assert strike.scene.target == scenario.subjects[strike.planned.subject]
        assert strike.scene.target.shape.program == strike.planned.program
    wide = [strike for strike in scenario.strikes if strike.kind.scope == "stack"]
    assert [strike.after for strike in wide] == [None, wide[0].over, wide[1].over]
    assert set(scenario.gates) == {strike.scene.target.id for strike in wide[1:]}


def test_what_is_stale_or_has_the_fewest_runs_comes_first() -> None:
    runs = Counter(dict.fromkeys(KINDS, 20)) + Counter({"s3_kill": 5})
    runs["mlflow_slow"] = runs["cancel"] = 2
    found = packed(tally(runs=runs, stale={"s3_kill", "learner_oom"}), rounds=1)
    narrow = [planned.kinds[0] for planned in found if not planned.packed]
    wide = next(planned for planned in found if planned.packed)
    assert narrow[:3] == ["learner_oom", "cancel", "cancel"]
    assert set(wide.kinds[:IN_TURN]) >= {"s3_kill", "mlflow_slow"}


def test_it_goes_on_until_each_kind_has_its_goal_and_every_moment_was_tried() -> None:
    found = packed(tally(goal=20))
    counts = Counter(strike.kind for planned in found for strike in planned.strikes)
    assert min(counts[name] for name in KINDS) >= 20
    assert max(counts[name] for name in WIDE) <= 21
    aims = {(strike.kind, strike.aim) for planned in found for strike in planned.strikes}
    assert {(name, aim) for name in WIDE for aim in KINDS[name].aims} <= aims
    assert packed(tally(runs=Counter(dict.fromkeys(KINDS, 50)))) == []


def test_no_run_takes_the_place_of_one_that_was_done() -> None:
    used = {("learner_kill", "", 1), ("learner_kill", "", 2)}
    runs = Counter({name: 50 for name in KINDS if name != "learner_kill"})
    found = packed(tally(runs=runs, used=used), rounds=1)
    assert found[0] == Planned(("learner_kill",), 3)
    assert len({(planned.kind, planned.aim, planned.seed) for planned in found}) == len(found)


STRIKES = [
    {"kind": "s3_kill", "aim": "STORING", "program": "cnn", "job": "a", "hit": "STORING"},
    {"kind": "node_lost", "aim": "DEPLOYING", "program": "ddp", "job": "b", "too_late": True},
    {"kind": "cancel", "aim": "task:admit", "program": "shell", "job": "c", "hit": "PENDING", "tasks": ["admit"]},
]


def a_record(**changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "kind": "s3_kill+node_lost+cancel",
        "seed": 3,
        "scale": 1.0,
        "outcome": "passed",
        **CODE.fields(),
        "at": "2030-01-02T03:04:05+00:00",
        "seconds": 261.0,
        "moments": {},
        "strikes": STRIKES,
    }
    return RunRecord.model_validate({**fields, **changes})


def test_each_strike_counts_as_a_run_of_its_kind_but_not_one_that_came_too_late() -> None:
    record = a_record()
    assert record.kinds == ("s3_kill", "cancel")
    assert {age.kind: age.runs for age in ages([record], ["s3_kill", "node_lost", "cancel"])} == {
        "s3_kill": 1,
        "node_lost": 0,
        "cancel": 1,
    }
    assert with_kind([record], "node_lost") == []
    assert moments([record], "cancel") == {"PENDING": 1, "admit": 1}
    assert tried([record]) == {("s3_kill", "STORING"): 1, ("node_lost", "DEPLOYING"): 0, ("cancel", "task:admit"): 1}


def test_a_failed_packed_run_says_what_does_each_of_its_strikes_alone() -> None:
    assert a_record(outcome="failed").commands == (
        "make faults KINDS=s3_kill SEED=3 RUNS=1 AGAIN=1 AIM=STORING PROGRAM=cnn",
        "make faults KINDS=node_lost SEED=3 RUNS=1 AGAIN=1 AIM=DEPLOYING PROGRAM=ddp",
        "make faults KINDS=cancel SEED=3 RUNS=1 AGAIN=1 AIM=task:admit PROGRAM=shell",
    )


def two_in_turn() -> Scenario:
    strikes = (
        PlannedStrike("s3_kill", "PENDING", "shell", 0),
        PlannedStrike("node_lost", "PENDING", "shell", 1),
        PlannedStrike("learner_kill", "PROCESSING", "shell", 0),
    )
    return draw(LAB, Planned(tuple(s.kind for s in strikes), 1, packed=strikes))


def test_a_job_is_met_by_the_faults_that_came_while_it_was_there() -> None:
    scenario = two_in_turn()
    first, second = scenario.subjects
    s3, node, learner = scenario.strikes
    s3.injected_at, s3.healed_at = 100.0, 140.0
    node.injected_at, node.healed_at = 150.0, 190.0
    learner.injected_at = 120.0
    scenario.submitted_at.update({first.id: 90.0, second.id: 145.0})
    scenario.ended_at.update({first.id: 148.0, second.id: 200.0})
    assert scenario.strikes_of(first) == [s3, learner]
    assert scenario.strikes_of(second) == [node]
    assert scenario.rule(second) == Rule(tail_may_be_lost=True)
    assert scenario.struck_at(second) == 150.0


def test_a_fault_that_never_came_allows_nothing() -> None:
    scenario = draw(LAB, Planned(("cancel",), 1))
    (target,), (strike,) = scenario.subjects, scenario.strikes
    natural = Rule().ends(target.shape)
    strike.too_late = "it ended before"
    assert scenario.rule(target).ends(target.shape) == natural
    strike.injected_at = 1.0  # it was asked for, and met the end
    assert scenario.rule(target).ends(target.shape) == natural | {"CANCELLED"}


class FakeStack:
    """Accepts jobs and notes when faults begin and end."""

    def __init__(self, root: Path) -> None:
        self.events: list[str] = []
        self.states: dict[str, str] = {}
        self.scale = 1.0
        self.witness = root
        self.home = SimpleNamespace(root=root)
        self.client = SimpleNamespace(submit=self.submit)
        self.lock = threading.Lock()

    def submit(self, _manifest: object, *, job_id: str) -> None:
        self.note(f"submitted {job_id[-1]}")

    def job(self, job_id: str) -> Any:
        return SimpleNamespace(state=self.states.get(job_id, "PENDING"))

    def note(self, text: str) -> None:
        with self.lock:
            self.events.append(text)

    def kind(self, name: str) -> Any:
        def inject(_scene: Scene) -> None:
            self.note(f"{name} begins")
            time.sleep(0.05)

        def heal(_scene: Scene) -> None:
            self.note(f"{name} is over")

        return SimpleNamespace(name=name, scope=KINDS[name].scope, inject=inject, heal=heal, lasts=False)


def play(lab: FakeStack, scenario: Scenario, moment: Moment) -> None:
    for strike in scenario.strikes:
        strike.kind, strike.scene.lab, strike.moment = lab.kind(strike.kind.name), cast(Lab, lab), moment
    _play(cast(Lab, lab), scenario)


def test_faults_of_the_stack_come_in_turn_and_the_next_target_comes_after_the_earlier_one(tmp_path: Path) -> None:
    lab, scenario = FakeStack(tmp_path), two_in_turn()
    play(lab, scenario, Moment(state="PENDING"))
    order = [event for event in lab.events if "learner" not in event]
    assert order == [
        "submitted 0",
        "s3_kill begins",
        "s3_kill is over",
        "submitted 1",
        "node_lost begins",
        "node_lost is over",
    ]
    assert [strike.hit for strike in scenario.strikes] == ["PENDING"] * 3
    assert set(scenario.hit) == {subject.id for subject in scenario.subjects}


def test_a_target_waits_for_no_fault_that_came_too_late(tmp_path: Path) -> None:
    lab, scenario = FakeStack(tmp_path), two_in_turn()
    first, second = scenario.subjects
    lab.states.update({first.id: "COMPLETED", second.id: "DEPLOYING"})
    play(lab, scenario, Moment(state="DEPLOYING", exact=True))
    late = f"{first.id} ended COMPLETED before 0.0 s after DEPLOYING"
    assert [strike.too_late for strike in scenario.strikes] == [late, None, late]
    assert "node_lost is over" in lab.events


def test_a_packed_run_is_void_only_when_all_came_too_late() -> None:
    def outcome(*late: int) -> str:
        scenario = two_in_turn()
        for number in late:
            scenario.strikes[number].too_late = "over"
        return outcome_of(scenario, [])

    assert outcome(0) == "passed"
    assert outcome(0, 1, 2) == "void"


def lanes_of(todo: list[Planned], lanes: int) -> list[str]:
    """What began and ended, in order; a run whose seed is larger takes longer."""
    events: list[str] = []
    lock = threading.Lock()

    def do(planned: Planned) -> RunRecord:
        with lock:
            events.append(f"+{planned.kind} {planned.seed}")
        time.sleep(planned.seed * 0.05)
        with lock:
            events.append(f"-{planned.kind} {planned.seed}")
        return a_record(seed=planned.seed)

    with ThreadPoolExecutor(lanes) as pool:
        found = list(in_lanes(deque(todo), lanes, pool, do, before=lambda: None, stop=lambda: False))
    assert sorted(record.seed for record in found) == sorted(planned.seed for planned in todo)
    return events


def test_a_free_lane_takes_the_next_run_and_one_of_the_whole_platform_is_alone() -> None:
    def narrow(seed: int) -> Planned:
        return Planned(("learner_kill",), seed)

    events = lanes_of([narrow(6), narrow(1), narrow(2), Planned(("s3_kill",), 1), narrow(1)], 2)
    assert events.index("+learner_kill 2") < events.index("-learner_kill 6")
    alone = events.index("+s3_kill 1")
    assert events[alone + 1] == "-s3_kill 1"
    assert sum(event[0] == "+" for event in events[:alone]) == sum(event[0] == "-" for event in events[:alone]) == 3


def test_nothing_is_started_on_a_spoilt_platform_and_what_runs_is_told() -> None:
    spoilt = threading.Event()
    left = deque(Planned(("learner_kill",), seed) for seed in range(6))
    with ThreadPoolExecutor(2) as pool:
        found = []
        for record in in_lanes(
            left, 2, pool, lambda planned: a_record(seed=planned.seed), before=lambda: None, stop=spoilt.is_set
        ):
            spoilt.set()
            found.append(record.seed)
    assert sorted(found) == [0, 1]
    assert len(left) == 4


def test_a_strike_says_what_it_met() -> None:
    strike: Strike = two_in_turn().strikes[0]
    strike.hit, strike.scene.running = "PENDING", frozenset({"admit"})
    record = strike.record()
    assert (record.kind, record.aim, record.hit, record.tasks) == ("s3_kill", "PENDING", "PENDING", ("admit",))
    assert record.meets_its_aim
