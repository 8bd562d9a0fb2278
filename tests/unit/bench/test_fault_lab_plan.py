"""The same seed asks for the same again; what is done is not done twice; pairs are such that their end is defined."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faults import jobs, outcomes
from faults.jobs import LIVES, RECIPES, Shape, manifest
from faults.kinds import KINDS
from faults.kinds.base import STATES, TASKS, TOGETHER
from faults.lab import Lab
from faults.outcomes import RunRecord
from faults.plan import (
    Cell,
    Planned,
    cells,
    cover,
    is_stack_wide,
    pair_with,
    paired,
    plan,
    programs,
    rotation,
    selection,
)
from faults.scenario import FLEET, FLEET_OF_LIVES, draw
from hypothesis import given
from hypothesis import strategies as st

from updraft.lifecycle import is_job_id
from updraft.manifest import parse_any

LAB = cast(Lab, SimpleNamespace(scale=1.0))
SEEDS = st.integers(0, 10**6)
NAMES = st.sampled_from(sorted(KINDS))


def a_record(**changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "kind": "learner_kill",
        "seed": 3,
        "scale": 1.0,
        "outcome": "passed",
        "commit": "0123456789ab",
        "code": "c",
        "changed": False,
        "at": "2030-01-02T03:04:05+00:00",
        "seconds": 61.0,
        "moments": {"learner_kill": "step 40"},
    }
    return RunRecord.model_validate({**fields, **changes})


def test_there_are_enough_kinds_and_each_is_described() -> None:
    assert len(KINDS) >= 20
    assert all(kind.name == name and len(kind.text) > 15 for name, kind in KINDS.items())


def test_a_plan_goes_round_by_round_with_rising_seeds() -> None:
    assert plan(KINDS, ["learner_kill", "s3_kill+cancel"], runs=2, seed=7) == [
        Planned(("learner_kill",), 7),
        Planned(("s3_kill", "cancel"), 7),
        Planned(("learner_kill",), 8),
        Planned(("s3_kill", "cancel"), 8),
    ]


def test_all_kinds_are_run_alone_and_in_pairs() -> None:
    found = plan(KINDS, [], runs=6, seed=1)
    assert sum(len(p.kinds) == 1 for p in found) == 6 * len(KINDS)
    assert sum(len(p.kinds) == 2 for p in found) == 2 * len(KINDS)
    assert all(len(p.kinds) == 1 for p in plan(KINDS, [], runs=1, seed=1, pairs=False))


def test_an_unknown_kind_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'lightning' is no kind of fault; there are learner_kill, "):
        plan(KINDS, ["s3_kill+lightning"], runs=1, seed=1)


@given(SEEDS)
def test_a_selection_has_all_kinds_in_an_order_of_its_seed(seed: int) -> None:
    chosen = selection(KINDS, seed)
    assert chosen == selection(KINDS, seed)
    assert sorted(chosen) == sorted(KINDS)
    assert [KINDS[name].scope for name in chosen[:6]] == ["job", "job", "job", "job", "stack", "job"]


@given(NAMES, SEEDS)
def test_of_a_pair_at_most_one_asks_for_a_job_or_an_end_of_its_own(name: str, seed: int) -> None:
    pair = pair_with(KINDS, name, seed)
    assert pair == pair_with(KINDS, name, seed)
    first, second = (KINDS[each] for each in pair.kinds)
    assert first != second
    assert not (first.special and second.special)


@given(NAMES, SEEDS)
def test_the_same_seed_draws_the_same_jobs_and_moments(name: str, seed: int) -> None:
    planned = Planned((name,), seed)
    one, two = draw(LAB, planned), draw(LAB, planned)
    assert [s.shape for s in one.subjects] == [s.shape for s in two.subjects]
    assert one.offsets == two.offsets
    assert [(s.moment, s.delay_seconds) for s in one.strikes] == [(s.moment, s.delay_seconds) for s in two.strikes]
    assert len(one.subjects) == (FLEET if is_stack_wide(KINDS, planned) else 1)


@given(NAMES, SEEDS)
def test_every_job_of_the_lab_is_one_that_the_platform_takes(name: str, seed: int) -> None:
    scenario = draw(LAB, pair_with(KINDS, name, seed))
    for subject in scenario.subjects:
        assert is_job_id(subject.id)
        assert parse_any(manifest(subject.shape, subject.id, Path("/witness"))).manifest.command
        assert not scenario.rule(subject).ends(subject.shape) - {"COMPLETED", "FAILED", "CANCELLED"}


@given(NAMES, SEEDS)
def test_a_fault_at_a_step_comes_before_the_program_ends(name: str, seed: int) -> None:
    kind, rng = KINDS[name], Random(seed)
    shape = kind.shape(rng, 100)
    moment = kind.moment(rng, shape)
    if moment.step is not None:
        assert 1 <= moment.step <= (shape.fail_at or shape.steps - 1)


@pytest.mark.parametrize(
    ("shape", "well"),
    [
        (Shape(), True),
        (Shape(fails="once", fail_at=3), False),
        (Shape(fails="once", fail_at=3, app_attempts=1), True),
        (Shape(fails="always", fail_at=3, app_attempts=1), False),
    ],
)
def test_a_shape_knows_how_it_ends_by_itself(shape: Shape, well: bool) -> None:
    assert shape.ends_well is well


def test_what_is_done_for_this_code_and_scale_is_not_done_again() -> None:
    records = [
        a_record(),
        a_record(seed=4, outcome="failed"),
        a_record(seed=5, outcome="void"),
        a_record(seed=6, code="older"),
        a_record(seed=7, scale=10.0),
    ]
    assert outcomes.done(records, "c", 1.0) == {("learner_kill", 3), ("learner_kill", 4)}


def test_results_survive_their_file_and_a_line_that_a_kill_tore(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    outcomes.append(path, a_record())
    outcomes.append(path, a_record(seed=4))
    with path.open("a") as file:
        file.write('{"kind": "learner_k')
    assert outcomes.load(path) == [a_record(), a_record(seed=4)]
    assert outcomes.load(tmp_path / "none") == []


def test_a_failed_run_says_what_does_it_again() -> None:
    assert a_record().command == "make faults KINDS=learner_kill SEED=3 RUNS=1 AGAIN=1"
    assert a_record(scale=0.5, kind="a+b").command == "make faults KINDS=a+b SEED=3 RUNS=1 AGAIN=1 SCALE=0.5"


@given(st.integers(0, 1000), st.integers(1, 4))
def test_in_pairs_each_kind_comes_once_a_round_and_no_run_has_two_that_exclude_each_other(seed: int, runs: int) -> None:
    planned = paired(KINDS, runs=runs, seed=seed)
    assert planned == paired(KINDS, runs=runs, seed=seed)
    for number in range(seed, seed + runs):
        own = [run.kinds for run in planned if run.seed == number]
        assert sorted(name for names in own for name in names) == sorted(KINDS)
        assert all(sum(KINDS[name].special for name in names) <= 1 for names in own)
        assert all(KINDS[name].scope == "stack" for names in own if len(names) == 2 for name in names)


STRIKE = {"kind": "learner_kill", "aim": "STORING", "program": "cnn", "job": "j", "hit": "STORING"}


@pytest.mark.parametrize(
    ("changes", "meets"),
    [
        ({}, True),
        ({"hit": "PROCESSING"}, False),
        ({"hit": "", "too_late": True}, False),
        ({"aim": "PENDING", "hit": "not accepted"}, True),
        ({"aim": "task:evaluate", "tasks": ["evaluate", "watch_checkpoints"]}, True),
        ({"aim": "task:evaluate", "tasks": ["export_model"]}, False),
        ({"aim": "together", "hit": "PROCESSING"}, True),
        ({"aim": "together", "hit": "", "too_late": True}, False),
    ],
)
def test_a_strike_meets_its_aim_only_in_that_state_or_task(changes: dict[str, Any], meets: bool) -> None:
    strike = {**STRIKE, **changes}
    assert outcomes.StrikeRecord.model_validate(strike).meets_its_aim is meets
    record = a_record(aim=strike["aim"], strikes=[strike])
    assert outcomes.tried([record]) == {("learner_kill", strike["aim"]): int(meets)}


def test_three_misses_count_as_a_run_so_that_a_moment_is_not_tried_for_ever() -> None:
    missed = [a_record(seed=n, aim="STORING", strikes=[{**STRIKE, "hit": "PROCESSING"}]) for n in range(3)]
    assert outcomes.tried(missed[:2]) == {("learner_kill", "STORING"): 0}
    assert outcomes.tried(missed) == {("learner_kill", "STORING"): 1}
    assert outcomes.aims(missed) == {("learner_kill", "STORING"): outcomes.Tries(hits=0, misses=3)}


def test_of_runs_before_strikes_were_noted_the_jobs_state_counts() -> None:
    job = {"id": "j", "text": "", "state": "COMPLETED", "attempts": 1, "seconds": 9.0, "checkpoint_steps": 10}
    hit, missed = ({**job, "hit": state} for state in ("STORING", "PROCESSING"))
    assert outcomes.tried([a_record(aim="STORING", jobs=[hit])]) == {("learner_kill", "STORING"): 1}
    assert outcomes.tried([a_record(aim="STORING", jobs=[missed])]) == {("learner_kill", "STORING"): 0}
    assert outcomes.tried([a_record(aim="task:train", jobs=[missed])]) == {("learner_kill", "task:train"): 1}


AIMED = {name for name, kind in KINDS.items() if kind.aims}  # the others ask for a job of their own
CELLS = st.sampled_from(cells(KINDS))


def test_every_state_and_task_and_every_pair_across_the_sides_is_a_cell() -> None:
    found = {(cell.kind, cell.aim) for cell in cells(KINDS)}
    for aim in (*STATES, *(f"task:{name}" for name in TASKS)):
        assert ("scheduler_kill", aim) in found
    assert ("learner_kill+mlflow_kill", TOGETHER) in found
    assert ("pod_evict", "STORING") in found
    assert ("learner_kill", "QUEUED") not in found
    assert {kind for cell in cells(KINDS) for kind in cell.kinds} == AIMED


def test_what_was_tried_least_comes_first_and_each_cell_comes_in_time() -> None:
    tried: dict[tuple[str, str], int] = {}
    every = {(cell.kind, cell.aim) for cell in cells(KINDS)}
    for _ in range(len(every) // 50 + 1):
        for planned in cover(KINDS, tried, runs=50, seed=3):
            tried[planned.kind, planned.aim] = tried.get((planned.kind, planned.aim), 0) + 1
    assert set(tried) == every
    assert max(tried.values()) == 2


def test_a_plan_is_decided_by_the_results_and_the_seed() -> None:
    records = [
        a_record(kind="s3_kill", aim="STORING", program="cnn", strikes=[{**STRIKE, "kind": "s3_kill"}]),
        a_record(),
        a_record(outcome="void", aim="QUEUED"),
    ]
    tried = outcomes.tried(records)
    assert tried == {("s3_kill", "STORING"): 1, ("learner_kill", "QUEUED"): 0}
    assert cover(KINDS, tried, runs=30, seed=1) == cover(KINDS, tried, runs=30, seed=1)
    first = cover(KINDS, {}, runs=len(KINDS), seed=2)
    assert len({name for planned in first for name in planned.kinds}) >= 0.9 * len(AIMED)
    assert all(set(planned.kinds) & {"cancel"} for planned in cover(KINDS, {}, runs=9, seed=1, chosen=["cancel"]))


@given(CELLS, SEEDS)
def test_each_cell_has_a_job_that_the_platform_takes_and_that_comes_to_its_moment(cell: Cell, seed: int) -> None:
    for program in programs(KINDS, cell):
        planned = Planned(cell.kinds, seed, cell.aim, program)
        scenario = draw(LAB, planned)
        target = scenario.subjects[0].shape
        assert target.program == program
        assert len(scenario.subjects) == (FLEET_OF_LIVES if is_stack_wide(KINDS, planned) else 1)
        for subject in scenario.subjects:
            assert parse_any(manifest(subject.shape, subject.id, Path("/witness"))).manifest.command
        moments = [strike.moment for strike in scenario.strikes]
        assert None not in moments
        if cell.aim == TOGETHER:
            assert moments[0] == moments[1]
        if cell.aim in ("task:export_model", "task:register_model", "task:promote"):
            assert RECIPES[program].exports
        if cell.aim not in ("PENDING", "task:admit", "task:stage_data", "task:validate_data"):
            assert not target.bad_data
    assert programs(KINDS, cell)


def test_a_short_time_is_for_small_jobs_and_for_whole_life_cycles_in_turn() -> None:
    assert {planned.aim for planned in rotation(KINDS, 7)} == {""}
    aimed = rotation(KINDS, 8)
    assert all(planned.aim and planned.program in LIVES for planned in aimed)
    assert aimed != rotation(KINDS, 10)


def test_a_job_that_is_to_be_met_while_it_stages_has_much_to_stage(tmp_path: Path) -> None:
    stages = draw(LAB, Planned(("s3_kill",), 1, "DOWNLOADING", "cnn")).subjects[0].shape
    assert stages.much_code
    code = jobs.much_code(tmp_path)
    assert len(list(code.glob("many/*"))) == jobs.MANY_FILES
    assert (code / "cnn.py").read_text() == (jobs.PROGRAM / "cnn.py").read_text()
    assert manifest(stages, "j", tmp_path, code)["code"] == str(code)
    assert not draw(LAB, Planned(("s3_kill",), 1, "STORING", "cnn")).subjects[0].shape.much_code


def test_data_are_judged_in_a_pod_where_that_is_the_moment() -> None:
    def suite(job: str) -> Any:
        shape = draw(LAB, Planned(("s3_kill",), 1, "task:validate_data", "cnn")).subjects[0].shape
        return manifest(shape, job, Path("/witness"))["data"][0]["expectations"]

    assert suite("a") != suite("b")
    assert suite("a") == suite("a")


def test_a_life_cycle_that_is_watched_for_progress_has_the_time_that_its_program_takes_to_start() -> None:
    frozen = draw(LAB, Planned(("learner_freeze",), 1, "PROCESSING", "ddp")).subjects[0]
    budget = manifest(frozen.shape, frozen.id, Path("/witness"))["budget"]
    assert budget == {"no_progress": "45s", "on_no_progress": "restart"}
