"""What becomes of a lost attempt: budgets, back-off, nodes that are avoided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.recovery.outcome import Action, FailureClass, Outcome
from updraft.recovery.policy import (
    INFRA_BACKOFF,
    INFRA_WINDOW_SECONDS,
    NO_QUOTA,
    Budgets,
    Loss,
    Relaunch,
    Stop,
    decide,
)

INFRA = Outcome(
    FailureClass.INFRASTRUCTURE, "learner 1: Evicted", label="node.evicted", action=Action.ELSEWHERE, node="n1"
)
CRASH = Outcome(
    FailureClass.PROGRAM, "learner 1: the program exited with 1", label="program.exit", action=Action.RELAUNCH
)
SAVED = Outcome(FailureClass.PREEMPTED, "learner 1 saved its work", label="job.preempted", action=Action.RELAUNCH)


def lost(cause: FailureClass, count: int) -> list[Loss]:
    return [Loss(number + 1, cause, "x") for number in range(count)]


def test_the_first_loss_to_infrastructure_is_made_good_at_once_and_away_from_its_node() -> None:
    assert decide(INFRA, [], Budgets()) == Relaunch(
        0.0, "infrastructure loss 1 of 5: launched again at once, away from n1", ("n1",), older_checkpoint=False
    )


def test_later_losses_wait_longer_each_time_and_remember_the_nodes() -> None:
    losses = [
        Loss(1, FailureClass.INFRASTRUCTURE, "node.lost", "n7"),
        Loss(2, FailureClass.INFRASTRUCTURE, "network.nccl"),
    ]
    assert decide(INFRA, losses, Budgets()) == Relaunch(
        10.0, "infrastructure loss 3 of 5: launched again in 10 s, away from n1, n7", ("n1", "n7")
    )


@pytest.mark.parametrize(
    ("outcome", "count", "seconds"),
    [(INFRA, 0, 0), (INFRA, 1, 5), (INFRA, 2, 10), (INFRA, 7, 300), (CRASH, 0, 10), (CRASH, 1, 20), (CRASH, 9, 300)],
)
def test_back_off(outcome: Outcome, count: int, seconds: float) -> None:
    decision = decide(outcome, lost(outcome.cause, count), Budgets(100, 100))
    assert isinstance(decision, Relaunch)
    assert decision.delay_seconds == seconds


def test_a_spent_budget_is_named() -> None:
    losses = lost(FailureClass.INFRASTRUCTURE, 5)
    assert decide(INFRA, losses, Budgets()) == Stop(
        "infrastructure loss 6 within 24 hours, and budget.infra_attempts allows 5"
    )
    assert decide(CRASH, lost(FailureClass.PROGRAM, 2), Budgets(app_attempts=2)) == Stop(
        "program failure 3, and budget.app_attempts allows 2"
    )


def test_a_quota_costs_nothing_and_is_tried_again_less_and_less_often() -> None:
    full = Outcome(FailureClass.INFRASTRUCTURE, "exceeded quota: small", label=NO_QUOTA, action=Action.RELAUNCH)
    waited = [Loss(number, FailureClass.INFRASTRUCTURE, NO_QUOTA) for number in range(1, 10)]
    assert decide(full, waited[:1], Budgets(infra_attempts=0)) == Relaunch(
        10.0, "no room in the quota so far, which is no loss: in the queue again in 10 s"
    )
    longest = decide(full, waited, Budgets(infra_attempts=0))
    assert isinstance(longest, Relaunch)
    assert longest.delay_seconds == INFRA_BACKOFF.limit_seconds
    assert decide(INFRA, waited, Budgets()) == decide(INFRA, [], Budgets())


def test_a_loss_to_infrastructure_is_forgiven_after_a_day_and_its_node_forgotten() -> None:
    day = INFRA_WINDOW_SECONDS
    old = [Loss(number, FailureClass.INFRASTRUCTURE, "node.lost", f"n{number}", day + 1) for number in range(10, 30)]
    recent = Loss(40, FailureClass.INFRASTRUCTURE, "node.lost", "n40", day - 1)
    assert decide(INFRA, [*old, recent], Budgets()) == Relaunch(
        5.0, "infrastructure loss 2 of 5: launched again in 5 s, away from n1, n40", ("n1", "n40")
    )


def test_a_failure_of_the_program_is_never_forgiven() -> None:
    losses = [Loss(1, FailureClass.PROGRAM, "program.exit", age_seconds=10 * INFRA_WINDOW_SECONDS)]
    assert isinstance(decide(CRASH, losses, Budgets(app_attempts=1)), Stop)


def test_a_program_that_may_fail_once_only_ends_with_its_own_words() -> None:
    assert decide(CRASH, [], Budgets()) == Stop("")


def test_the_budgets_are_counted_apart() -> None:
    assert isinstance(decide(CRASH, lost(FailureClass.INFRASTRUCTURE, 5), Budgets(5, 1)), Relaunch)
    assert isinstance(decide(INFRA, lost(FailureClass.PROGRAM, 9), Budgets(1, 9)), Relaunch)


def test_a_preemption_costs_nothing_but_waits_when_it_comes_again() -> None:
    decision = decide(SAVED, lost(FailureClass.INFRASTRUCTURE, 5), Budgets(0, 0))
    assert decision == Relaunch(0.0, "preempted, which is no loss: launched again at once")
    again = decide(SAVED, [], Budgets(0, 0), preempted_before=2)
    assert again == Relaunch(10.0, "preempted, which is no loss: launched again in 10 s")


def test_a_want_of_room_costs_nothing_once_there_was_room() -> None:
    full = Outcome(FailureClass.INFRASTRUCTURE, "1 Insufficient cpu", label="pod.no_room", action=Action.RELAUNCH)
    waits = [Loss(number, FailureClass.INFRASTRUCTURE, "pod.no_room") for number in range(2, 9)]
    assert decide(full, waits, Budgets(infra_attempts=0), room_may_come=True) == Relaunch(
        300.0, "no room so far, which is no loss: in the queue again in 300 s"
    )
    assert decide(INFRA, waits, Budgets(infra_attempts=1), room_may_come=True) == Relaunch(
        0.0, "infrastructure loss 1 of 1: launched again at once, away from n1", ("n1",)
    )
    assert isinstance(decide(full, waits, Budgets()), Stop)


def test_a_damaged_checkpoint_asks_for_an_older_one() -> None:
    outcome = Outcome(
        FailureClass.INFRASTRUCTURE, "r", label="checkpoint.damaged", action=Action.OLDER_CHECKPOINT, node="n1"
    )
    assert decide(outcome, [], Budgets()) == Relaunch(
        0.0, "infrastructure loss 1 of 5: launched again at once, from an older checkpoint", (), older_checkpoint=True
    )


def test_what_no_repetition_helps_is_not_repeated() -> None:
    syntax = Outcome(FailureClass.PROGRAM, "r", label="program.syntax", action=Action.STOP)
    assert decide(syntax, [], Budgets(5, 5)) == Stop("launching it again would not help")


@pytest.mark.parametrize(
    "cause",
    [
        FailureClass.DONE,
        FailureClass.CONFIGURATION,
        FailureClass.DATA,
        FailureClass.HALTED,
        FailureClass.CANCELLED,
        FailureClass.DEADLINE,
    ],
)
def test_these_ends_are_ends_whatever_the_budgets(cause: FailureClass) -> None:
    assert decide(Outcome(cause, "r", action=Action.RELAUNCH), [], Budgets(9, 9)) == Stop("")


outcomes = st.builds(
    Outcome,
    st.sampled_from(list(FailureClass)),
    st.text(max_size=5),
    action=st.sampled_from(list(Action)),
    node=st.sampled_from([None, "n1", "n2"]),
)
budgets = st.builds(Budgets, st.integers(0, 6), st.integers(0, 6))


@given(st.lists(outcomes, max_size=40), budgets)
def test_there_are_never_more_launches_than_the_budgets_allow(ends: list[Outcome], budget: Budgets) -> None:
    losses: list[Loss] = []
    launches, preempted = 1, 0
    for end in ends:
        decision = decide(end, losses, budget, preempted_before=preempted)
        if isinstance(decision, Stop):
            break
        launches += 1
        if end.cause is FailureClass.PREEMPTED:
            preempted += 1
        else:
            losses.append(Loss(launches - 1, end.cause, end.label, end.node))
    assert launches <= 1 + budget.infra_attempts + budget.app_attempts + preempted
    assert all(loss.cause in (FailureClass.INFRASTRUCTURE, FailureClass.PROGRAM) for loss in losses)


@given(outcomes, st.lists(st.builds(Loss, st.integers(1), st.sampled_from(list(FailureClass)), st.just("x"))), budgets)
def test_a_relaunch_waits_a_bounded_time_and_says_what_it_does(
    end: Outcome, losses: list[Loss], budget: Budgets
) -> None:
    decision = decide(end, losses, budget)
    assert decision == decide(end, list(reversed(losses)), budget)
    if isinstance(decision, Relaunch):
        assert 0 <= decision.delay_seconds <= INFRA_BACKOFF.limit_seconds
        assert decision.reason
        assert decision.older_checkpoint == (end.action is Action.OLDER_CHECKPOINT)
