"""The table of ends: each row can be reached, and the first that matches decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.recovery.test_outcome import ended, pod

from updraft.recovery.ends import DETECTORS, MEANINGS, Detector, EndKind, GangView, look
from updraft.recovery.failure_class import FailureClass

RUNS = pod(1)
FAILED = pod(2, phase="Failed", main=ended(1))
STORING = pod(2, main=ended(1))
SAVED = pod(2, phase="Failed", main=ended(75))
WAITING = pod(1, phase="Pending", main={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
NOT_BEGUN = {"waiting": {"reason": "PodInitializing"}}
MOUNTING = pod(1, phase="Pending", main=NOT_BEGUN, sidecar=NOT_BEGUN)
LOST = pod(1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})


def view(*pods: object, **more: object) -> GangView:
    made = GangView(pods, pods, (), len(pods), grace_seconds=90, node_lost_seconds=40)  # type: ignore[arg-type]
    return replace(made, **more)  # type: ignore[arg-type]


def first(seen: GangView) -> Detector | None:
    return next((detector for detector in DETECTORS if detector.finds(seen)), None)


@pytest.mark.parametrize(
    ("seen", "name", "patience"),
    [
        (view(pod(1, phase="Succeeded", main=ended(0))), "ended", None),
        (view(RUNS, FAILED), "failed", None),
        (view(RUNS, STORING), "failed", 90),
        (view(LOST), "lost", 100),
        (view(RUNS, missing=(2,)), "missing", 2),
        (view(RUNS, missing=(2,), all_seen=False), "missing", 20),
        (view(WAITING), "blocked", 30),
        (view(MOUNTING), "mounting", 30),
        (view(RUNS, start_overdue=True), "late", 10),
    ],
)
def test_each_way_to_end_is_found_with_its_patience(seen: GangView, name: str, patience: float | None) -> None:
    found = first(seen)
    assert found is not None
    assert (found.name, found.patience(seen)) == (name, patience)


def test_nothing_is_found_in_a_gang_that_runs() -> None:
    assert first(view(RUNS)) is None


def test_a_failure_counts_before_a_missing_peer() -> None:
    found = first(view(FAILED, missing=(1,)))
    assert found is not None
    assert found.kind is EndKind.FAILED


def test_in_a_halt_who_has_saved_waits_for_its_peers() -> None:
    assert first(view(RUNS, SAVED, halting=True)) is None
    assert first(view(RUNS, SAVED)) is not None


def test_names_are_unique_and_kinds_without_a_meaning_are_judged_from_the_pods() -> None:
    """And each detector is among the cases above."""
    assert len({detector.name for detector in DETECTORS}) == len(DETECTORS)
    assert set(EndKind) - set(MEANINGS) == {EndKind.ENDED, EndKind.FAILED, EndKind.MISSING}
    assert all(meaning.cause is not FailureClass.DONE for meaning in MEANINGS.values())


# --- a look after the other -----------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")


def table(held: dict[str, bool], patience: dict[str, float | None]) -> list[Detector]:
    def detector(name: str) -> Detector:
        finds = lambda view: name if held[name] else ""  # noqa: E731
        return Detector(name, EndKind.FAILED, finds, lambda view: patience[name])

    return [detector(name) for name in NAMES]


@given(
    patience=st.fixed_dictionaries({name: st.none() | st.floats(0, 20) for name in NAMES}),
    looks=st.lists(
        st.tuples(st.floats(0.1, 10), st.fixed_dictionaries({name: st.booleans() for name in NAMES})), max_size=30
    ),
)
def test_a_finding_is_believed_once_it_has_held_at_every_look_for_its_patience(
    patience: dict[str, float | None], looks: list[tuple[float, dict[str, bool]]]
) -> None:
    now, since = 100.0, dict[str, float]()
    held: dict[str, list[float]] = {name: [] for name in NAMES}  # times of the unbroken row of looks that found it
    for pause, holds in looks:
        now += pause
        for name in NAMES:
            held[name] = [*held[name], now] if holds[name] else []
        ends, since = look(view(RUNS), since, now, table(holds, patience))
        expected = [
            name for name in NAMES if held[name] and ((limit := patience[name]) is None or now - held[name][0] > limit)
        ]
        assert [(found.name, reason) for found, reason in ends] == [(name, name) for name in expected]
        assert since == {name: times[0] for name, times in held.items() if times}
