"""The pure parts of the figures that need a cluster: the audit log, percentiles, the arithmetic of a turn."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from benchmarks.audit import AuditLog, Reader, Request
from benchmarks.figures import triggers
from benchmarks.waiting import Turn, Use


def event(number: int, stage: str = "ResponseComplete", **more: Any) -> str:
    body = {
        "auditID": f"id-{number}",
        "stage": stage,
        "verb": "get",
        "user": {"username": "bob"},
        "userAgent": "kubectl/v1",
        "objectRef": {"resource": "pods", "subresource": "log", "name": "p", "namespace": "ns"},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.250000Z",
        "stageTimestamp": "2026-01-02T03:04:05.750000Z",
    }
    return json.dumps({**body, **more})


class TestAudit:
    def test_a_request_is_read_with_its_times(self) -> None:
        (found,) = Reader().read([event(1)])
        began = found.received
        assert found == Request(began, began + 0.5, "bob", "kubectl/v1", "get", "pods/log", "p", 200)

    def test_a_long_request_counts_once_at_its_beginning(self) -> None:
        later = "2026-01-02T04:04:05.750000Z"
        lines = [event(1, "ResponseStarted"), event(2), event(1, stageTimestamp=later)]
        found = list(Reader().read(lines))
        assert len(found) == 2
        assert found[0].answered - found[0].received == 0.5

    def test_what_concerns_no_object_has_no_name(self) -> None:
        (found,) = Reader().read([event(1, objectRef=None, userAgent=None)])
        assert (found.resource, found.name, found.agent) == ("", "", "")

    def test_a_log_is_followed_over_its_rotation_and_half_lines_wait(self, tmp_path: Path) -> None:
        path = tmp_path / "audit.jsonl"
        path.write_text(event(1) + "\n")
        with AuditLog(path) as log:
            assert log.new() == []  # from now on
            with path.open("a") as file:
                file.write(event(2)[:20])
                file.flush()
                assert log.new() == []
                file.write(event(2)[20:] + "\n")
            assert len(log.new()) == 1
            with path.open("a") as file:
                file.write(event(3) + "\n")
            os.rename(path, tmp_path / "audit-old.jsonl")
            path.write_text(event(4) + "\n" + event(5) + "\n")
            assert len(log.new()) == 3
            assert log.new() == []


@pytest.mark.parametrize(
    ("samples", "hundredths", "expected"),
    [([3.0], 99, 3.0), ([1.0, 2.0, 3.0, 4.0], 50, 2.0), (list(range(1, 101)), 99, 99), (list(range(50)), 99, 49)],
)
def test_percentiles_are_samples(samples: list[float], hundredths: float, expected: float) -> None:
    assert triggers.percentile(samples, hundredths) == expected


def test_of_nothing_there_is_no_percentile() -> None:
    assert math.isnan(triggers.percentile([], 50))


def turn(side: str, requests: int, lost: int = 0) -> Turn:
    (asked,) = Reader().read([event(1)])
    return Turn(
        side,
        uses={"few": Use(0, 300, 1, 20), "before": Use(60, 0, 2, 120), "many": Use(180, 350, 8, 120)},
        watched_seconds=30,
        window=(60, 180),
        requests=[asked] * requests,
        delays={"lives": [0.5, 1.0], "watched": [1.0]},
        lost=[f"{side}-{n}" for n in range(lost)],
    )


def test_a_turn_becomes_figures() -> None:
    size = triggers.QUICK
    made = triggers.measured([{"ours": turn("ours", 120), "stock": turn("stock", 2400, lost=3)}], size)
    values = {value.name: value.value for value in made.values}
    assert values == {
        "Memory per trigger": 0.5,
        "API requests per job and minute": 0.5,
        "Pod's end to event, p99": 1.0,
        "Events lost or wrong": 0.0,
    }
    assert [value.met for value in made.values] == [True] * 4
    ratios = {c.name: c.ratio for c in made.comparisons}
    assert ratios["API requests per job and minute"] == 0.05
    assert ("events lost", 0, 3) in made.tables[0].rows
    assert made.tables[1].rows == (("get pods/log", 120, 2400),)
    assert made.doubts == ()
