"""Since when a node is avoided, read from the attempts that the ledger has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from updraft.controller.attempts import _avoided
from updraft.ledger import Attempt
from updraft.recovery.policy import PlannedRelaunch

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(number: int, *nodes: str) -> Attempt:
    ended = BEGIN + timedelta(hours=number)
    return Attempt("j", "train", number, BEGIN, ended, "infrastructure", relaunch=PlannedRelaunch(ended, 0, "", nodes))


def test_a_node_counts_from_the_loss_that_brought_it_in_and_not_from_its_repetitions() -> None:
    first, second, third = attempt(1, "a"), attempt(2, "a", "b"), attempt(3, "a", "b")
    assert _avoided([first, second, third]) == {"a": first, "b": second}


def test_a_node_that_was_forgiven_and_fails_again_counts_anew() -> None:
    last = attempt(4, "a", "b")
    assert _avoided([attempt(1, "a"), attempt(2, "a", "b"), attempt(3, "b"), last])["a"] == last
