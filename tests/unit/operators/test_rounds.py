"""The report of a round of sizes: what is logged and returned for each job, and that it is reported once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ledger_helpers import add_job, resize, run_elastic, train_resized
from structlog.testing import capture_logs
from unit.operators.airflow_fakes import Platform

from updraft.ledger import Ledger
from updraft.ledger.records import ResizeRow
from updraft.operators.rounds import ReportRoundOperator, sentence
from updraft.services import UsesServices


@pytest.fixture
def ledger(make_platform: Callable[..., Platform], monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Two jobs have grown, of which one was measured; they have started before, which was reported."""
    platform = make_platform()
    monkeypatch.setattr(UsesServices, "make_services", staticmethod(lambda: platform.services))
    book = platform.ledger
    for name in ("cats-1", "words-1"):
        add_job(book, name)
        run_elastic(book, name, 2, step_seconds=0.2)
    for row in book.queue.rounds(100, ("default",)):
        book.queue.mark_shown(row.round)
    resize(book, {"cats-1": 4, "words-1": 4})
    train_resized(book, "cats-1", 4, 0.25)
    book.queue.release("words-1")
    return book


def report(number: int) -> tuple[dict[str, str], list[str]]:
    """What the task returns, and what it logs."""
    with capture_logs() as logged:
        told = ReportRoundOperator(task_id="report").finished({}, {"round": number})  # type: ignore[arg-type]
    return told, [each["event"] for each in logged]


def test_the_task_waits_for_a_round(ledger: Ledger) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as deferred:
        ReportRoundOperator(task_id="report").execute({})  # type: ignore[arg-type]
    assert deferred.value.trigger.serialize() == ("updraft.triggers.rounds.RoundTrigger", {})
    assert deferred.value.method_name == "finished"


def test_each_job_gets_a_sentence_and_the_round_is_reported_once(ledger: Ledger) -> None:
    number = ledger.queue.round_to_show()[0].round
    told, logged = report(number)
    cats = "4 learners for cats-1; expected to be 1.50 times as fast; was 1.60 times as fast; 12 s without a step"
    words = "4 learners for words-1; expected to be 1.50 times as fast; not measured"
    assert told == {"cats-1": cats, "words-1": words}
    head, *lines = logged
    assert re.fullmatch(rf"Round {number}, decided at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d:", head)
    assert lines == [f"cats-1: {cats}", f"words-1: {words}"]
    assert ledger.queue.round_to_show() == []
    assert report(number) == ({}, [])  # a task that runs twice


def test_another_round_that_is_known_meanwhile_is_left_to_the_next_run(ledger: Ledger) -> None:
    number = ledger.queue.round_to_show()[0].round
    add_job(ledger, "dogs-1")
    run_elastic(ledger, "dogs-1", 2)
    assert set(report(number)[0]) == {"cats-1", "words-1"}
    (next_one,) = ledger.queue.round_to_show()
    assert report(next_one.round)[0] == {"dogs-1": "2 learners for dogs-1"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "why; expected to be 1.80 times as fast; was 1.62 times as fast; 75 s without a step"),
        ({"reason": "for 1.80 times as fast"}, "for 1.80 times as fast; was 1.62 times as fast; 75 s without a step"),
        ({"gained": None, "pause_seconds": None}, "why; expected to be 1.80 times as fast; not measured"),
        (
            {"pause_seconds": 0.031},
            "why; expected to be 1.80 times as fast; was 1.62 times as fast; 31 ms without a step",
        ),
        ({"expected": None}, "why; was 1.62 times as fast; 75 s without a step"),
        ({"before": 0, "expected": None, "gained": None, "pause_seconds": None}, "why"),
    ],
)
def test_a_sentence_says_only_what_is_known(ledger: Ledger, changed: dict[str, Any], expected: str) -> None:
    row: ResizeRow = ledger.queue.round_to_show()[0]
    known = replace(row, reason="why", expected=1.8, gained=1.624, pause_seconds=75.0)
    assert sentence(replace(known, **changed)) == expected
