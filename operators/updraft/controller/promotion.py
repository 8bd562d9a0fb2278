"""Promote a job's model version by its rules, and roll a champion back: each decided once, each alias moved once.

The ledger keeps the events of a model. A lock on the model's name makes promotions and roll-backs follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from updraft.controller import comparing, data_versions, notices
from updraft.controller.idempotency import DECISION, GATE, PROMOTION, Answer, Promotion, PromotionDecision
from updraft.exceptions import RefusedError
from updraft.ledger import NewSeriesEvent, SeriesEvent
from updraft.retraining.champions import ChampionChange, champions, previous_champion

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.manifest import Export
    from updraft.services import Services
    from updraft.tracking import VersionRef


def lock_name(model: str) -> str:
    return f"promote {model}"


def champion_asset(tenant: str, model: str) -> str:
    """Return name and address of the asset in Airflow that has an event for each new champion of the model."""
    return f"updraft://models/{tenant}/{model}"


def event_key(job_id: str) -> str:
    """Return the key of the event that the job's version was promoted or rejected."""
    return f"promotion {job_id}"


def pass_gate(services: Services, job: Job, mine: VersionRef, export: Export) -> PromotionDecision | None:
    """Return whether the rules hold against the champion of this moment; decided once, before a person is asked. None
    if the version has to be compared with that champion first."""
    found = services.ledger.idempotency.get(job.id, GATE) or _decide(services, job, mine, export)
    return None if found is None else services.ledger.idempotency.record(job.id, GATE, found)


def promote(
    services: Services, job: Job, mine: VersionRef, export: Export, *, approval: Answer | None = None
) -> Promotion | None:
    """Decide once, move the alias at most once, and return the result. None if the version has to be compared with the
    champion of this moment first.

    The decision is recorded with the champion it was compared to, so a second run moves the alias only while that
    version is still the champion.
    """
    from updraft import tracking

    book = services.ledger
    # Two jobs of one series decide one after the other: the second one compares itself with the first.
    with book.leases.lock(lock_name(mine.name)):
        outcome = book.idempotency.get(job.id, PROMOTION)
        if outcome is not None:
            return outcome
        decision = book.idempotency.get(job.id, DECISION)
        if decision is None:
            decision = _decide(services, job, mine, export)
            if decision is None:
                return None
            decision = book.idempotency.record(job.id, DECISION, decision)
        promoted, reason = decision.promote, decision.reason
        current = tracking.champion(services.tracking, mine.name)
        holder = current[0].version if current else None
        if promoted and holder != mine.version:
            if holder == decision.over:
                tracking.move_champion(services.tracking, mine.name, mine.version, holder)
            else:
                promoted, reason = False, f"version {holder} became the champion while this task was interrupted"
        if approval is not None:
            reason = f"{'' if promoted else 'was '}{approval.reason}; {reason}"
        outcome = Promotion(promoted, reason, tracking.CHAMPION)
        evidence = {"over": decision.over, "data": _since(services, job, mine.name, decision.over)}
        return _settle(services, job, mine, outcome, evidence, approval.by if approval else None)


def decline(services: Services, job: Job, mine: VersionRef, reason: str, by: str | None) -> Promotion:
    """Record that the version does not become the champion because a person said so, or because nobody answered."""
    from updraft import tracking

    with services.ledger.leases.lock(lock_name(mine.name)):
        outcome = services.ledger.idempotency.get(job.id, PROMOTION)
        if outcome is not None:
            return outcome
        return _settle(services, job, mine, Promotion(False, reason, tracking.CHAMPION), {"over": None}, by)


def _decide(services: Services, job: Job, mine: VersionRef, export: Export) -> PromotionDecision | None:
    """Return whether all rules hold against the champion of this moment; None if its predictions were not compared."""
    from updraft import tracking
    from updraft.manifest import decide

    current = tracking.champion(services.tracking, mine.name)
    over = current[0].version if current is not None else None
    promoted, reasons = True, []
    if export.promote_if:
        metrics = tracking.metrics(services.tracking, mine.run_id)
        found = decide(export.rules, metrics, current[1] if current is not None else None)
        promoted, reasons = found.promote, [found.reason]
    if export.gate is not None and promoted:
        gate = comparing.result(services, job, over)
        if gate is None:
            return None
        promoted, reasons = gate.passed, [*reasons, gate.reason] if gate.passed else [gate.reason]
    return PromotionDecision(promoted, "; ".join(reasons), over=over)


def _since(services: Services, job: Job, model: str, over: str | None) -> list[dict[str, Any]]:
    """Return what was new in the job's data beside that of the champion at the decision, as JSON."""
    from updraft import tracking

    champion = tracking.find_version_number(services.tracking, model, over) if over is not None else None
    made_by = data_versions.champions_job(services, job, champion)
    return [asdict(change) for change in data_versions.changes(services, job, made_by)] if made_by is not None else []


def _settle(
    services: Services, job: Job, mine: VersionRef, outcome: Promotion, evidence: Mapping[str, Any], by: str | None
) -> Promotion:
    notices.tell(services, job, "promoted" if outcome.promoted else "rejected", f"{mine.label}: {outcome.reason}")
    services.ledger.series.record(
        NewSeriesEvent(
            key=event_key(job.id),
            tenant=job.tenant,
            series=job.name,
            kind="promoted" if outcome.promoted else "rejected",
            reason=outcome.reason,
            job_id=job.id,
            model=mine.name,
            version=mine.version,
            by=by,
            evidence=evidence,
        )
    )
    return services.ledger.idempotency.record(job.id, PROMOTION, outcome)


def roll_back(
    services: Services, *, tenant: str, model: str, to: str | None, by: str, reason: str, key: str
) -> SeriesEvent:
    """Make an earlier version the champion again: `to`, or the champion before the present one. Deletes nothing.

    Args:
        tenant: Owns the model.
        key: Of this roll-back. A second call with it completes the first one.

    Raises RefusedError with advice if the tenant has no such model or version, or there is no earlier champion.
    """
    from updraft import tracking

    book, client = services.ledger, services.tracking
    if tracking.owner_of(client, model) != tenant:
        raise RefusedError(f"model: tenant {tenant!r} has no registered model {model!r}; `updraft series` lists them")
    with book.leases.lock(lock_name(model)):
        event = book.series.find(key)
        current = tracking.champion(client, model)
        holder = current[0].version if current else None
        if event is None:
            event = _roll_back_event(services, tenant, model, to, holder, by, reason, key)
        over = event.evidence.get("over")
        assert event.version is not None
        if holder == over:  # else the alias was moved before this process was interrupted, or a person moved it since
            line = champions(changes_of(book.series.of_model(tenant, model)))
            previous = line[-2] if len(line) > 1 else None
            tracking.move_champion(client, model, event.version, previous)
        if event.job_id is not None:
            why = f"{by} made version {event.version} of {model} the champion again: {reason}"
            notices.tell(services, book.jobs.get(event.job_id), "rolled back", why, event.key)
        return event


def _roll_back_event(
    services: Services,
    tenant: str,
    model: str,
    to: str | None,
    holder: str | None,
    by: str,
    reason: str,
    key: str,
) -> SeriesEvent:
    """Record the roll-back: from here on it is decided."""
    from updraft import tracking

    past = services.ledger.series.of_model(tenant, model)
    target = to or previous_champion(changes_of(past), holder)
    if target is None:
        raise RefusedError(
            f"{model} has no champion before {f'version {holder}' if holder else 'this moment'}; name a version"
        )
    if target == holder:
        raise RefusedError(f"version {target} of {model} is the champion already")
    found = tracking.find_version_number(services.tracking, model, target)
    if found is None:
        raise RefusedError(f"{model} has no version {target} in the registry, or no longer; name another version")
    made = next((event for event in reversed(past) if event.version == target and event.job_id), None)
    return services.ledger.series.record(
        NewSeriesEvent(
            key=key,
            tenant=tenant,
            series=made.series if made else past[-1].series if past else model,
            kind="rolled back",
            reason=reason,
            job_id=made.job_id if made else None,
            model=model,
            version=target,
            by=by,
            evidence={"over": holder},
        )
    )


def changes_of(events: Sequence[SeriesEvent]) -> list[ChampionChange]:
    """Return the changes of the champion among a model's events."""
    return [
        ChampionChange(event.version, event.evidence.get("over"), back=event.kind == "rolled back")
        for event in events
        if event.kind in ("promoted", "rolled back") and event.version is not None
    ]
