"""The failure catalogue as a table: whole, consistent, no row hidden by another, and published as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from updraft.recovery.catalogue import CATALOGUE, LOG_ROWS, FailureRule, Where, row_of
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.recovery.failure_class import Action, FailureClass
from updraft.recovery.matching import failure_of

REPOSITORY = Path(__file__).parents[3]
ABSENT = ContainerFacts("absent")
RUNNING = ContainerFacts("running")
GUARDIANS = {
    "progress.stalled", "program.no_checkpoint", "pod.not_started", "pod.no_room", "job.halted", "job.cancelled",
    "job.deadline", "quota.exceeded", "quota.too_small", "secret.gone", "grant.reclaimed", "grant.resized",
}  # fmt: skip


def ids(row: FailureRule) -> str:
    return f"{row.label}-{row.where.name}"


@pytest.mark.parametrize("row", CATALOGUE, ids=ids)
def test_a_row_is_whole(row: FailureRule) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z_]+)?", row.label)
    assert row.text.endswith(".")
    assert row.text == " ".join(row.text.split())
    assert all(text == text.lower() for text in (*row.says, *row.unless))
    again = row.action not in (Action.STOP, Action.NONE)
    assert not again or row.cause in (FailureClass.INFRASTRUCTURE, FailureClass.PROGRAM, FailureClass.PREEMPTED)


def test_a_label_means_one_class_and_one_action() -> None:
    meanings: dict[str, set[tuple[FailureClass, Action]]] = {}
    for row in CATALOGUE:
        meanings.setdefault(row.label, set()).add((row.cause, row.action))
    assert {label: found for label, found in meanings.items() if len(found) > 1} == {}


def test_rows_are_found_by_their_label() -> None:
    assert all(row_of(row.label) is not None for row in CATALOGUE)
    assert row_of("failures.1") is None
    assert {row.label for row in CATALOGUE if row.where is Where.CONTROLLER} == GUARDIANS


@pytest.mark.parametrize("row", [row for row in CATALOGUE if row.proven == "test"], ids=ids)
def test_a_row_that_a_test_proves_names_a_test_that_exists(row: FailureRule) -> None:
    path, _, name = row.source.partition("::")
    assert f"def {name}(" in (REPOSITORY / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("row", LOG_ROWS, ids=ids)
def test_no_sign_of_a_log_row_is_taken_by_an_earlier_row(row: FailureRule) -> None:
    code = row.codes[0] if row.codes else 1
    gpus = 1 if row.gpus is None else int(row.gpus)
    for text in row.says:
        failure = failure_of(_ended(code, gpus), [f"Some{text} of it"], "1 MiB")
        assert failure is not None
        assert failure.label == row.label, text


def _ended(code: int, gpus: int = 0, reason: str = "Error") -> PodFacts:
    main = ContainerFacts("terminated", reason=reason, exit_code=code)
    return PodFacts("p", "u", 1, "Failed", "", "", False, None, RUNNING, main, gpus=gpus)


@pytest.mark.parametrize("row", [row for row in CATALOGUE if row.where is Where.EXIT and row.codes], ids=ids)
def test_no_code_is_taken_by_another_row(row: FailureRule) -> None:
    for code in row.codes:
        failure = failure_of(_ended(code), [], "1 MiB")
        assert failure is not None
        assert (failure.label, failure.cause, failure.action) == (row.label, row.cause, row.action)


@pytest.mark.parametrize(
    "row", [row for row in CATALOGUE if row.where in (Where.POD, Where.CONDITION, Where.WAITING)], ids=ids
)
def test_no_reason_of_a_pod_is_taken_by_another_row(row: FailureRule) -> None:
    for pattern in row.reasons:
        reason = pattern.replace("*", "Something")
        for said in row.says or ("",):
            found = _observed(row.where, reason, said)
            earlier = [r for r in CATALOGUE[: CATALOGUE.index(row)] if r.where is row.where and reason in r.reasons]
            more_special = [r for r in earlier if not r.says or any(text in said for text in r.says)]
            assert found == row.label or found in {r.label for r in more_special}
            if not more_special or row.unless:
                assert found == row.label


def _observed(where: Where, reason: str, said: str) -> str:
    waiting = ContainerFacts("waiting", reason, said)
    pods = {
        Where.POD: PodFacts("p", "u", 1, "Failed", reason, said, False, None, ABSENT, ABSENT, ABSENT),
        Where.CONDITION: PodFacts("p", "u", 1, "Failed", "", "", False, None, RUNNING, ABSENT,
                                  disruption=reason, disruption_message=said),
        Where.WAITING: PodFacts("p", "u", 1, "Pending", "", "", False, None, RUNNING, waiting),
    }  # fmt: skip
    failure = failure_of(pods[where], [], "1 MiB")
    assert failure is not None
    return failure.label
