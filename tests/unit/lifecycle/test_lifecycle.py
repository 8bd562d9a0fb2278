"""States, verdicts and ids of jobs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.exceptions import IllegalTransitionError, UpdraftError
from updraft.lifecycle import (
    MLFLOW_STATUS,
    TERMINAL,
    TRANSITIONS,
    Evidence,
    State,
    Verdict,
    check,
    is_job_id,
    is_legal,
    job_id,
    job_id_of_run,
)

states = st.sampled_from(list(State))


PATHS = {
    "the usual life": "PENDING QUEUED DEPLOYING DEPLOYING DOWNLOADING PROCESSING STORING STORING COMPLETED",
    "recovery": "PROCESSING RECOVERING DEPLOYING PROCESSING",
    "resizing": "PROCESSING RESIZING PROCESSING",
    "halt and resume": "PROCESSING HALTED QUEUED",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_these_ways_are_legal(path: str) -> None:
    for before, after in pairwise(path.split()):
        check(State(before), State(after))


@given(states, states)
def test_an_end_has_no_exit(end: State, other: State) -> None:
    if end in TERMINAL:
        assert not is_legal(end, other)
        with pytest.raises(IllegalTransitionError, match="has ended and cannot become"):
            check(end, other)


@given(st.lists(states, max_size=30))
def test_a_job_that_obeys_the_table_ends_at_most_once(wishes: list[State]) -> None:
    state, ends = State.PENDING, 0
    for wish in wishes:
        if is_legal(state, wish):
            state = wish
            ends += wish in TERMINAL
    assert ends == (state in TERMINAL)


def test_every_state_that_is_no_end_can_note_fail_and_be_cancelled() -> None:
    for state in set(State) - TERMINAL:
        assert {state, State.FAILED, State.CANCELLED} <= TRANSITIONS[state]


def test_completed_comes_from_storing_alone_and_every_state_can_be_reached() -> None:
    assert [state for state in State if State.COMPLETED in TRANSITIONS[state]] == [State.STORING]
    reached, edge = {State.PENDING}, {State.PENDING}
    while edge:
        edge = set().union(*(TRANSITIONS[state] for state in edge)) - reached
        reached |= edge
    assert reached == set(State)


def test_an_illegal_step_names_the_legal_ones() -> None:
    with pytest.raises(IllegalTransitionError) as caught:
        check(State.PENDING, State.PROCESSING)
    assert str(caught.value) == (
        "A job cannot go from PENDING to PROCESSING; from PENDING it can go to "
        "CANCELLED, DOWNLOADING, FAILED, HALTED, PENDING, QUEUED."
    )


def test_mlflow_is_told_the_same() -> None:
    assert set(MLFLOW_STATUS) == set(State)
    told = {state: status for state, status in MLFLOW_STATUS.items() if status != "RUNNING"}
    assert told == {
        State.COMPLETED: "FINISHED", State.FAILED: "FAILED", State.CANCELLED: "KILLED", State.HALTED: "KILLED"
    }  # fmt: skip


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
evidence = st.builds(
    Evidence,
    exit_codes=st.dictionaries(st.text(max_size=8), st.none() | st.integers(0, 255), max_size=3),
    completion_markers=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    final_checkpoint=st.none() | st.text(max_size=8),
    model_version=st.none() | st.text(max_size=8),
    code=st.none() | st.just("C201"),
    details=st.dictionaries(st.text(max_size=5), plain, max_size=3),
)


@given(st.sampled_from(sorted(TERMINAL)), st.text(min_size=1).filter(str.strip), evidence)
def test_a_verdict_comes_back_from_json(state: State, reason: str, found: Evidence) -> None:
    verdict = Verdict(state, reason, found)
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_evidence_is_made_of_loose_facts() -> None:
    facts: dict[str, Any] = {"exit_codes": {"a": 0}, "completion_markers": ["k"], "attempt": 2}
    assert Evidence.of(facts) == Evidence({"a": 0}, ("k",), details={"attempt": 2})


def test_a_verdict_is_an_end_with_a_reason() -> None:
    with pytest.raises(UpdraftError, match="PROCESSING is not an end"):
        Verdict(State.PROCESSING, "why")
    with pytest.raises(UpdraftError, match="needs a reason"):
        Verdict(State.FAILED, " ")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"state": "X", "reason": "a", "evidence": {}}', '{"state": 1}', "null"]
)
def test_a_stored_verdict_that_is_none_says_so(text: str) -> None:
    with pytest.raises(UpdraftError, match="cannot be read"):
        Verdict.from_json(text)


def test_a_verdict_of_a_later_version_can_be_read() -> None:
    text = '{"state": "FAILED", "reason": "a", "evidence": {"code": "C201", "new": 1}, "more": 2}'
    assert Verdict.from_json(text) == Verdict(State.FAILED, "a", Evidence(code="C201"))


NOW = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_an_id_tells_name_and_moment() -> None:
    found = job_id("digits-cnn", NOW, b"x")
    assert re.fullmatch(r"digits-cnn-261231-235959-[0-9a-f]{6}", found)
    assert found == job_id("digits-cnn", NOW.astimezone(timezone(timedelta(hours=5))), b"x")
    assert found != job_id("digits-cnn", NOW, b"y")


@given(
    st.text(max_size=80), st.binary(max_size=8), st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC))
)
def test_every_id_is_a_name_for_pods_and_services(name: str, entropy: bytes, now: datetime) -> None:
    assert is_job_id(job_id(name, now, entropy))


@given(st.text(max_size=30), st.text(max_size=80), st.text(max_size=60))
def test_the_id_of_a_run_is_valid_and_always_the_same(dag_id: str, run_id: str, name: str) -> None:
    found = job_id_of_run(dag_id, run_id, name)
    assert is_job_id(found)
    assert found == job_id_of_run(dag_id, run_id, name)


def test_a_run_id_that_can_be_a_job_id_is_one() -> None:
    assert job_id_of_run("train_model", "digits-1", "digits") == "digits-1"
    derived = job_id_of_run("train_model", "manual__2026-01-01T00:00:00+00:00", "digits")
    assert re.fullmatch(r"digits-[0-9a-f]{12}", derived)
    assert derived != job_id_of_run("other", "manual__2026-01-01T00:00:00+00:00", "digits")
    assert job_id_of_run("d", "x" * 53, "digits").startswith("digits-")
