"""Events of a series are recorded once, and are read in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from updraft.ledger import Job, Ledger, NewSeriesEvent

EVENT = NewSeriesEvent("promotion a", "default", "digits", "promoted", "better", model="digits", version="1")


def test_the_first_record_of_a_key_stays(ledger: Ledger) -> None:
    first = ledger.series.record(EVENT)
    again = ledger.series.record(replace(EVENT, reason="another reason", kind="rejected"))
    assert again == first
    assert first.reason == "better"
    assert ledger.series.find("promotion a") == first
    assert ledger.series.find("promotion b") is None


def test_events_are_read_by_series_and_by_model_oldest_first(ledger: Ledger) -> None:
    for number, (series, model) in enumerate([("digits", "m"), ("words", "m"), ("digits", "n")]):
        ledger.series.record(replace(EVENT, key=str(number), series=series, model=model))
    ledger.series.record(replace(EVENT, key="other tenant", tenant="vision", model="m"))
    assert [event.key for event in ledger.series.of_series("default", "digits")] == ["0", "2"]
    assert [event.key for event in ledger.series.of_series("default", "digits", limit=1)] == ["2"]
    assert [event.key for event in ledger.series.of_model("default", "m")] == ["0", "1"]


def test_series_are_the_names_of_recorded_jobs(
    ledger: Ledger, submit: Callable[..., Job], clock: Callable[[], object]
) -> None:
    for number, (tenant, name) in enumerate([("default", "a"), ("default", "b"), ("default", "a"), ("vision", "a")]):
        clock.forward(1)  # type: ignore[attr-defined]
        submit(f"job-{number}", tenant=tenant, name=name)
    known = ledger.series.known("default")
    assert [(each.name, each.jobs) for each in known] == [("a", 2), ("b", 1)]
    assert [(each.tenant, each.name) for each in ledger.series.known(limit=1)] == [("vision", "a")]


def test_long_reasons_are_shortened_and_evidence_is_json(ledger: Ledger) -> None:
    event = ledger.series.record(replace(EVENT, reason="x" * 5000, evidence={"auc": float("nan")}))
    assert len(event.reason) == 2000
    assert event.evidence == {"auc": "nan"}
