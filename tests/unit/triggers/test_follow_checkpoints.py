"""Ledger and store say the same of a job's checkpoints, whatever learners, nodes and stores do."""

from __future__ import annotations

import itertools
import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from folder_store import FolderStore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.triggers.trigger_helpers import JOB, services_in_use

from updraft.ledger import AttemptClosure, Ledger, NewJob
from updraft.recovery.policy import PlannedRelaunch
from updraft.recovery.resume import ResumePlan
from updraft.storage import objects
from updraft.triggers.checkpoints import follow_checkpoints
from updraft_learner.checkpoint_names import part_name
from updraft_learner.contract import Keys

KEYS = Keys("default")
AGAIN = PlannedRelaunch(datetime(2026, 1, 1, tzinfo=UTC), 0, "launched again")
DIGEST = "0" * 64


def put(store: FolderStore, name: str, step: int, *, attempt: int = 1, acc: float | None = None) -> None:
    """A complete checkpoint, as a sidecar leaves it."""
    store.put_bytes(f"{KEYS.checkpoint(JOB, name)}/w", b"weights")
    facts = {"files": {"w": {"size": 7, "sha256": DIGEST}}, "step": step, "attempt": attempt, "created": float(step)}
    marker = {**facts, "metrics": {} if acc is None else {"acc": acc}}
    store.put_bytes(KEYS.checkpoint_marker(JOB, name), json.dumps(marker).encode())


def put_part(store: FolderStore, name: str, part: int) -> None:
    store.put_bytes(f"{KEYS.checkpoint(JOB, name)}/f{part}", b"part")
    described = {"name": name, "attempt": 1, "parts": 2, "step": 8, "created": 1.0, "files": {f"f{part}": {"size": 4}}}
    store.put_bytes(f"{KEYS.checkpoint(JOB, name)}/{part_name(part, 2)}", json.dumps(described).encode())


def keep(latest: int = 1, best: int = 0, **more: Any) -> dict[str, Any]:
    return {"latest": latest, "best": best, "metric": "acc", "mode": "max", "every_nth": None, **more}


def good(ledger: Ledger) -> list[str]:
    return [c.name for c in ledger.checkpoints.of_job(JOB)]


def in_store(store: FolderStore) -> set[str]:
    return {item.key.split("/")[4] for item in store.list(f"{KEYS.checkpoints(JOB)}/")}


def whole(store: FolderStore) -> list[str]:
    return [info.name for info in objects.list_checkpoints("default", JOB, store=store)]


def second_attempt(ledger: Ledger, resumed_from: str | None = None) -> None:
    """The first is lost; the second goes on from there."""
    ledger.attempts.ensure(JOB, "train", after=None)
    ledger.attempts.close(JOB, "train", 1, AttemptClosure("infrastructure", "its node was lost", relaunch=AGAIN))
    ledger.attempts.ensure(JOB, "train", after=1, resume=ResumePlan(resumed_from, 1, None, ""))


def test_what_a_twin_still_stores_is_removed_and_told_once(
    ledger: Ledger, store: FolderStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "step-1-a1", 1)
    follow_checkpoints(services_in_use(), JOB, None)
    second_attempt(ledger, "step-1-a1")
    put(store, "step-2-a1", 2)  # its node is only cut off, and its learner lives on
    put(store, "step-2-a2", 2, attempt=2)
    put_part(store, "step-8-a1-s01234567", 1)  # and half of another
    put_part(store, "step-8-a2-s01234567", 1)
    with caplog.at_level(logging.INFO):
        assert [c.name for c in follow_checkpoints(services_in_use(), JOB, None)] == ["step-2-a2"]
        assert follow_checkpoints(services_in_use(), JOB, None) == []
    assert good(ledger) == ["step-1-a1", "step-2-a2"]
    assert in_store(store) == {"step-1-a1", "step-2-a2", "step-8-a2-s01234567"}
    assert [r.message for r in caplog.records if r.name == "updraft.triggers.checkpoints"] == [
        f"checkpoint: 'step-2-a1' of {JOB} came after the end of attempt 1; refused; it is removed",
        f"Checkpoint step-8-a1-s01234567 of {JOB} was never completed, and is removed: its attempt is over",
    ]


def test_what_was_stored_before_the_attempts_end_is_recorded_with_it(ledger: Ledger, store: FolderStore) -> None:
    ledger.attempts.ensure(JOB, "train", after=None)
    put(store, "step-1-a1", 1)
    put_part(store, "step-8-a1-s01234567", 1)
    put_part(store, "step-8-a1-s01234567", 2)
    found = objects.new_checkpoints("default", JOB, 1, store=store)
    ledger.attempts.close(JOB, "train", 1, AttemptClosure("infrastructure", "its node was lost", checkpoints=found))
    assert follow_checkpoints(services_in_use(), JOB, None) == []
    assert good(ledger) == whole(store) == ["step-1-a1", "step-8-a1-s01234567"]


def test_parts_are_recorded_when_they_are_all_there(ledger: Ledger, store: FolderStore) -> None:
    put_part(store, "step-8-a1-s01234567", 2)
    assert follow_checkpoints(services_in_use(), JOB, keep()) == []
    put_part(store, "step-8-a1-s01234567", 1)
    assert [(c.name, c.step, c.bytes) for c in follow_checkpoints(services_in_use(), JOB, keep())] == [
        ("step-8-a1-s01234567", 8, 8)
    ]


def test_a_damaged_checkpoint_is_set_aside_in_ledger_and_store(ledger: Ledger, store: FolderStore) -> None:
    for step in (1, 2, 3):
        put(store, f"step-{step}-a1", step)
    assert len(follow_checkpoints(services_in_use(), JOB, keep(3))) == 3
    store.put_bytes(f"{KEYS.checkpoint(JOB, 'step-2-a1')}/w", b"half")
    store.delete(f"{KEYS.checkpoint_marker(JOB, 'step-3-a1')}")
    put(store, "step-4-a1", 4)
    store.delete(f"{KEYS.checkpoint(JOB, 'step-4-a1')}/w")
    for _ in range(2):
        assert follow_checkpoints(services_in_use(), JOB, keep(3)) == []
    assert good(ledger) == whole(store) == ["step-1-a1"]
    reasons = {
        c.name: c.quarantine_reason for c in ledger.checkpoints.of_job(JOB, with_quarantined=True) if c.quarantined_at
    }
    assert reasons == {
        "step-2-a1": "file w has 4 bytes instead of 7",
        "step-3-a1": "it is not in the store any more",
    }
    assert objects.verify_checkpoint("default", JOB, "step-4-a1", store=store) == "it was set aside: file w is missing"


def test_what_the_ledger_has_set_aside_or_let_go_is_so_in_the_store(ledger: Ledger, store: FolderStore) -> None:
    for step in (1, 2, 3):
        put(store, f"step-{step}-a1", step)
    follow_checkpoints(services_in_use(), JOB, None)
    ledger.checkpoints.quarantine(JOB, "step-1-a1", "it could not be restored")  # and then the process died
    ledger.checkpoints.mark_deleted(JOB, "step-2-a1", "as told")
    assert follow_checkpoints(services_in_use(), JOB, None) == []
    assert whole(store) == ["step-3-a1"]
    assert in_store(store) == {"step-1-a1", "step-3-a1"}
    verdict = objects.verify_checkpoint("default", JOB, "step-1-a1", store=store)
    assert verdict == "it was set aside: it could not be restored"


def test_a_damaged_one_is_never_counted_as_kept(ledger: Ledger, store: FolderStore) -> None:
    put(store, "step-1-a1", 1)
    put(store, "step-2-a1", 2)
    follow_checkpoints(services_in_use(), JOB, keep(2))
    store.delete(f"{KEYS.checkpoint(JOB, 'step-2-a1')}/w")
    follow_checkpoints(services_in_use(), JOB, keep(1))
    assert good(ledger) == whole(store) == ["step-1-a1"]


def test_the_one_that_the_running_attempt_went_on_from_stays(ledger: Ledger, store: FolderStore) -> None:
    for step in (1, 2):
        put(store, f"step-{step}-a1", step)
    follow_checkpoints(services_in_use(), JOB, None)
    second_attempt(ledger, "step-1-a1")
    for step in (2, 3, 4):
        put(store, f"step-{step}-a2", step, attempt=2)
    follow_checkpoints(services_in_use(), JOB, keep(1))
    assert good(ledger) == whole(store) == ["step-1-a1", "step-4-a2"]


def test_nothing_is_let_go_between_two_attempts(ledger: Ledger, store: FolderStore) -> None:
    ledger.attempts.ensure(JOB, "train", after=None)
    for step in (1, 2, 3):
        put(store, f"step-{step}-a1", step)
    found = objects.new_checkpoints("default", JOB, 1, store=store)
    ledger.attempts.close(JOB, "train", 1, AttemptClosure("program", "no", relaunch=AGAIN, checkpoints=found))
    follow_checkpoints(services_in_use(), JOB, keep(1))
    assert len(good(ledger)) == 3
    ledger.attempts.ensure(JOB, "train", after=1, resume=ResumePlan("step-2-a1", 2, None, ""))
    follow_checkpoints(services_in_use(), JOB, keep(1))
    assert good(ledger) == ["step-2-a1", "step-3-a1"]
    ledger.attempts.close(JOB, "train", 2, AttemptClosure("done", "done"))
    follow_checkpoints(services_in_use(), JOB, keep(1))
    assert len(good(ledger)) == 2


def test_each_learners_are_counted_by_themselves(ledger: Ledger, store: FolderStore) -> None:
    for step in (1, 2, 3):
        put(store, f"step-{step}-a1", step)
        follow_checkpoints(services_in_use(), JOB, keep(2))
    put(store, "step-1-a1-l2", 1)
    follow_checkpoints(services_in_use(), JOB, keep(2))
    assert good(ledger) == ["step-1-a1-l2", "step-2-a1", "step-3-a1"]


def test_each_nth_counts_all_that_were_ever_completed(ledger: Ledger, store: FolderStore) -> None:
    for step in range(1, 10):
        put(store, f"step-{step}-a1", step)
        follow_checkpoints(services_in_use(), JOB, keep(1, every_nth=4))
    assert good(ledger) == ["step-4-a1", "step-8-a1", "step-9-a1"]


def test_a_revision_of_the_manifest_changes_what_is_kept(ledger: Ledger, store: FolderStore) -> None:
    for step in range(1, 6):
        put(store, f"step-{step}-a1", step)
    follow_checkpoints(services_in_use(), JOB, keep(5))
    manifest = {"name": "digits", "command": "train", "code": "tree:" + "a" * 64}
    manifest |= {"framework": {"name": "pytorch"}, "checkpoints": {"keep": {"latest": 2}}}
    ledger.jobs.revise(JOB, manifest, {"checkpoints": {"keep": {"latest": 2}}}, "ada")
    follow_checkpoints(services_in_use(), JOB, keep(5))
    assert good(ledger) == ["step-4-a1", "step-5-a1"]


def test_a_name_that_cannot_be_recorded_holds_nobody_up(ledger: Ledger, store: FolderStore) -> None:
    put(store, "step-1-a1", 1)
    put(store, "x" * 251, 2)
    assert [c.name for c in follow_checkpoints(services_in_use(), JOB, None)] == ["step-1-a1"]
    assert follow_checkpoints(services_in_use(), JOB, None) == []
    assert [found["name"] for found in objects.new_checkpoints("default", JOB, 1, store=store)] == ["step-1-a1"]


numbers = itertools.count(1)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 2)),
        st.tuples(st.just("damage"), st.integers(0, 30)),
        st.tuples(st.just("relaunch"), st.integers(0, 30)),
        st.tuples(st.just("twin"), st.integers(1, 2)),
    ),
    max_size=14,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves, st.integers(1, 2), st.integers(0, 1), st.none() | st.integers(2, 3))
def test_while_there_is_a_good_one_the_ledger_never_has_none(
    ledger: Ledger, store: FolderStore, moves: list[tuple[str, int]], latest: int, best: int, every_nth: int | None
) -> None:
    job = f"{JOB}-{next(numbers)}"
    ledger.jobs.record(NewJob(job, "default", "digits", "train_model", job, {"name": "digits"}, "ada"))
    step, attempt = 0, ledger.attempts.ensure(job, "train", after=None)
    kept = keep(latest, best, every_nth=every_nth)

    def save(of_attempt: int, learner: int) -> str:
        name = f"step-{step}-a{of_attempt}" + ("-l2" if learner == 2 else "")
        store.put_bytes(f"{KEYS.checkpoint(job, name)}/w", b"weights")
        facts = {"files": {"w": {"size": 7}}, "step": step, "attempt": of_attempt, "created": float(step)}
        store.put_bytes(KEYS.checkpoint_marker(job, name), json.dumps({**facts, "metrics": {"acc": step % 3}}).encode())
        return name

    for move, which in moves:
        step += 1
        live = [c.name for c in ledger.checkpoints.of_job(job)]
        if move == "store":
            save(attempt.number, which)
        elif move == "twin" and attempt.number > 1:
            save(attempt.number - 1, which)
        elif move == "damage" and live:
            store.delete(f"{KEYS.checkpoint(job, live[which % len(live)])}/w")
        elif move == "relaunch":
            found = objects.new_checkpoints("default", job, attempt.number, store=store)
            ledger.attempts.close(
                job,
                "train",
                attempt.number,
                AttemptClosure("program", "no", relaunch=AGAIN, checkpoints=found),
            )
            follow_checkpoints(services_in_use(), job, kept)
            choice = [c.name for c in ledger.checkpoints.of_job(job)]
            resume = ResumePlan(choice[which % len(choice)], None, None, "") if choice else None
            attempt = ledger.attempts.ensure(job, "train", after=attempt.number, resume=resume)
        before = {c.name for c in ledger.checkpoints.of_job(job)}
        follow_checkpoints(services_in_use(), job, kept)
        after = ledger.checkpoints.of_job(job)
        names = {c.name for c in after}
        assert names == {info.name for info in objects.list_checkpoints("default", job, store=store)}
        damaged = {c.name for c in ledger.checkpoints.of_job(job, with_quarantined=True)} - names
        assert names or not before - damaged
        resumed = attempt.resume.checkpoint if attempt.resume else None
        assert resumed is None or resumed in names | damaged
