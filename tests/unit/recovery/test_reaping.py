"""What nobody guards any more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.lifecycle import TERMINAL, State
from updraft.recovery.reaping import LIVE_TASKS, OVER, Leave, OrphanCandidate, OrphanPod, Reap, Run, reap

PODS = (OrphanPod("p-2-1", "train", 2), OrphanPod("p-1-1", "train", 1))
LIVING = OrphanCandidate(
    job_id="j",
    state=State.PROCESSING,
    quiet_seconds=0.0,
    run=Run.RUNNING,
    tasks={"train": "deferred", "admit": "success"},
    dag=True,
    pods=PODS[:1],
    newest={"train": 2},
)


def test_a_guarded_job_is_left() -> None:
    assert reap(LIVING) == Leave("its run is running")


def test_silence_alone_ends_no_job_whose_run_goes_on() -> None:
    assert reap(replace(LIVING, quiet_seconds=1e6)) == Leave("its run is running")


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_pods_of_an_ended_job_are_removed_at_once(state: State) -> None:
    ward = replace(LIVING, state=state, pods=PODS)
    assert reap(ward) == Reap(f"the job has ended {state.value}", ("p-1-1", "p-2-1"))
    assert reap(replace(ward, pods=())) == Leave(f"the job has ended {state.value} and left nothing")


def test_pods_of_an_older_attempt_are_removed_and_those_of_the_newest_stay() -> None:
    assert reap(replace(LIVING, pods=PODS)) == Reap("a newer attempt of the role exists", ("p-1-1",))


def test_attempts_are_compared_within_a_role() -> None:
    pods = (OrphanPod("t", "train", 1), OrphanPod("e", "evaluate", 2))
    assert isinstance(reap(replace(LIVING, pods=pods, newest={"train": 1, "evaluate": 2})), Leave)


@pytest.mark.parametrize("run", sorted(OVER))
def test_a_job_whose_run_is_over_is_ended_after_a_calm_period(run: Run) -> None:
    ward = replace(LIVING, run=run, tasks={"train": "failed"}, quiet_seconds=119)
    assert reap(ward) == Leave("the run is over; watched for 119 s of 120 s")
    decision = reap(replace(ward, quiet_seconds=120))
    assert isinstance(decision, Reap)
    assert decision.end
    assert decision.pods == ("p-2-1",)
    word = "does not exist any more" if run is Run.GONE else f"has ended ({run.value})"
    assert decision.reason == f"its Airflow run {word}, and no task or trigger has touched the job for 120 s"
    assert decision.evidence == {
        "run": run.value,
        "tasks": {"train": "failed"},
        "dag": True,
        "quiet_seconds": 120,
        "state": "PROCESSING",
        "pods": ["p-2-1"],
    }


def test_a_task_that_still_lives_in_a_run_that_is_over_is_given_longer() -> None:
    ward = replace(LIVING, run=Run.FAILED, quiet_seconds=1799)
    assert reap(ward) == Leave("the run is over, but its task train lives; watched for 1799 s of 1800 s")
    assert isinstance(reap(replace(ward, quiet_seconds=1800)), Reap)


def test_a_run_without_its_dag_is_an_orphan_after_long() -> None:
    ward = replace(LIVING, dag=False, quiet_seconds=1799)
    assert reap(ward) == Leave("the run's DAG does not exist any more; watched for 1799 s of 1800 s")
    decision = reap(replace(ward, quiet_seconds=1800))
    assert isinstance(decision, Reap)
    assert decision.reason == (
        "its Airflow run is running, but its DAG does not exist any more, and no task or trigger has touched the job "
        "for 1800 s"
    )


@pytest.mark.parametrize("change", [{"run": Run.UNKNOWN}, {"state": None}])
def test_what_is_not_known_is_left(change: dict[str, object]) -> None:
    ward = replace(LIVING, quiet_seconds=1e9, dag=False, **change)  # type: ignore[arg-type]
    assert isinstance(reap(ward), Leave)


wards = st.builds(
    OrphanCandidate,
    st.just("j"),
    st.none() | st.sampled_from(list(State)),
    st.floats(0, 1e5),
    st.sampled_from(list(Run)),
    st.dictionaries(st.sampled_from(["train", "release"]), st.sampled_from([*sorted(LIVE_TASKS), "success", None])),
    st.none() | st.booleans(),
    st.lists(
        st.builds(OrphanPod, st.sampled_from("abcd"), st.sampled_from(["train", "export"]), st.integers(1, 4)),
        max_size=4,
    ).map(tuple),
    st.dictionaries(st.sampled_from(["train", "export"]), st.integers(1, 4)),
)


@given(wards)
def test_a_job_is_ended_only_on_two_witnesses(ward: OrphanCandidate) -> None:
    decision = reap(ward)
    assert decision.reason
    if isinstance(decision, Leave):
        return
    assert set(decision.pods) <= {pod.name for pod in ward.pods}
    if decision.end:
        assert ward.state is not None
        assert ward.state not in TERMINAL
        assert ward.quiet_seconds >= 120
        assert ward.run in OVER or (ward.dag is False and ward.quiet_seconds >= 1800)
    elif ward.state not in TERMINAL:
        removed = [pod for pod in ward.pods if pod.name in decision.pods]
        assert any(pod.attempt < ward.newest.get(pod.role, 0) for pod in removed)


@given(wards, st.floats(0, 1e5))
def test_more_silence_never_saves_a_job(ward: OrphanCandidate, more: float) -> None:
    decision = reap(ward)
    later = reap(replace(ward, quiet_seconds=ward.quiet_seconds + more))
    if isinstance(decision, Reap) and decision.end:
        assert isinstance(later, Reap)
        assert later.end
