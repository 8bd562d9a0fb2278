"""Faults of requests and pulls, and which bodies are understood; time is given."""

from __future__ import annotations

import pytest

from updraft_localnode.errors import StatusError
from updraft_localnode.faults import ApiErrors, Cut, KillContainer, LoseNode, PullFails, parse_fault
from updraft_localnode.faultstate import FaultState, error_of


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def state(clock):
    return FaultState(clock)


def errors(**fields):
    return ApiErrors(kind="api_errors", status=500, **fields)


def test_errors_end_with_their_number_or_their_time_whichever_is_first(state, clock):
    state.set_errors(errors(count=2, for_seconds=10))
    assert [state.take_error("GET", "/x") is not None for _ in range(3)] == [True, True, False]
    state.set_errors(errors(count=2, for_seconds=10))
    clock.now += 10
    assert state.take_error("GET", "/x") is None
    assert state.to_json()["api_errors"] is None


def test_errors_are_for_what_they_name(state):
    state.set_errors(errors(count=1, method="POST", path="/pods"))
    assert state.take_error("GET", "/pods") is None
    assert state.take_error("POST", "/nodes") is None
    assert state.to_json()["api_errors_left"] == 1
    assert state.take_error("POST", "/a/pods/b") is not None


def test_an_error_says_when_to_come_again():
    error = error_of(ApiErrors(kind="api_errors", status=429, count=1, retry_after_seconds=7))
    assert (error.code, error.reason, error.retry_after_seconds) == (429, "TooManyRequests", 7)
    assert error_of(errors(count=1)).code == 500


def test_a_cut_ends(state, clock):
    state.set_cut(Cut(kind="cut", for_seconds=3, how="hang"))
    assert (state.cut, state.cut_seconds_left) == ("hang", 3)
    clock.now += 3
    assert (state.cut, state.cut_seconds_left, state.to_json()["cut"]) == (None, 0, None)


def test_pulls_fail_for_so_many_pods_each_for_a_time(state, clock):
    state.set_pulls(PullFails(kind="pull_fails", count=2, for_seconds=5, message="{image}: i/o timeout"))
    assert state.pull_problem("a", "x:1") == "x:1: i/o timeout"
    clock.now += 3
    assert state.pull_problem("b", "y:1") == "y:1: i/o timeout"
    assert state.pull_problem("c", "x:1") is None
    assert state.pull_problem("a", "sidecar:1") == "sidecar:1: i/o timeout"
    clock.now += 2
    assert state.pull_problem("a", "x:1") is None
    assert state.pull_problem("b", "y:1") is not None


def test_clearing_ends_everything(state):
    state.lag_seconds = 2
    state.set_errors(errors(for_seconds=60))
    state.set_cut(Cut(kind="cut", for_seconds=3))
    state.set_pulls(PullFails(kind="pull_fails", count=2))
    state.pull_problem("a", "x")
    state.clear()
    assert state.take_error("GET", "/x") is None
    assert state.pull_problem("a", "x") is None
    assert state.to_json() == FaultState().to_json()


def test_bodies_become_faults_with_defaults():
    lost = parse_fault({"kind": "lose_node", "delete_after_seconds": None})
    assert isinstance(lost, LoseNode)
    assert (lost.node, lost.delete_after_seconds, lost.gone_after_seconds, lost.replace) == (None, None, 1, True)
    killed = parse_fault({"kind": "kill_container", "namespace": "n", "pod": "p"})
    assert isinstance(killed, KillContainer)
    assert (killed.container, killed.signal) == (None, "SIGKILL")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ([], 400, None),
        ({"kind": "earthquake"}, 422, "kind"),
        ({"kind": "oom", "namespace": "n"}, 422, "pod"),
        ({"kind": "oom", "namespace": "n", "pod": "p", "grace": 1}, 422, "grace"),
        ({"kind": "kill_container", "namespace": "n", "pod": "p", "signal": "9"}, 422, "signal"),
        ({"kind": "api_errors", "status": 200, "count": 1}, 422, "status"),
        ({"kind": "api_errors", "status": 500}, 422, "kind"),
        ({"kind": "cut", "for_seconds": 0}, 422, "for_seconds"),
        ({"kind": "cut", "for_seconds": 1, "how": "scissors"}, 422, "how"),
        ({"kind": "small_disks", "bytes": 4096}, 422, "bytes"),
        ({"kind": "lose_node", "delete_after_seconds": -1}, 422, "delete_after_seconds"),
    ],
)
def test_a_wrong_body_is_refused_with_its_field(body, code, field):
    with pytest.raises(StatusError) as caught:
        parse_fault(body)
    assert caught.value.code == code
    assert [c["field"] for c in caught.value.details.get("causes", [])] == ([] if field is None else [field])
