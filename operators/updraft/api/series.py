"""Find a series for a caller and convert it to answers: what the routes and the pages of series need."""

from __future__ import annotations

from collections.abc import Sequence

from updraft import ledger, schemas
from updraft.api.reading import JobReader
from updraft.controller.data_versions import DataChange
from updraft.controller.promotion import changes_of
from updraft.exceptions import NotFoundError
from updraft.manifest.errors import nearest
from updraft.retraining.champions import champions

SHOWN_RUNS = 50
SHOWN_EVENTS = 500
ROLL_BACK_SECONDS = 30.0
OUTCOMES = ("promoted", "rejected", "waiting")


def listed(reader: JobReader, limit: int) -> list[schemas.SeriesSummary]:
    """Return the series of the caller's tenants, most recent job first."""
    tenants = reader.tenants()

    def ask() -> list[schemas.SeriesSummary]:
        book = reader.parts.ledger()
        found = [each for tenant in tenants for each in book.series.known(tenant, limit)]
        found.sort(key=lambda each: (each.last_submitted_at, each.name), reverse=True)
        return [_summary(book, each) for each in found[:limit]]

    return reader.parts.deadline.call("ledger", ask)


def detail(reader: JobReader, tenant: str, name: str) -> schemas.SeriesDetail:
    """Return a series. Raises NotFoundError; the caller's right to the tenant is checked already."""

    def ask() -> schemas.SeriesDetail:
        book = reader.parts.ledger()
        known = {each.name: each for each in book.series.known(tenant, 10_000)}
        if name not in known:
            close = nearest(name, list(known))
            meant = f"; did you mean {close!r}?" if close else ""
            raise NotFoundError(f"series: tenant {tenant!r} has none called {name!r}{meant}")
        events = book.series.of_series(tenant, name, SHOWN_EVENTS)
        summary = _summary(book, known[name])
        line = _line(book, tenant, summary.model)
        return schemas.SeriesDetail(
            **summary.model_dump(),
            previous=line[-2] if len(line) > 1 else None,
            schedule=next((schedule(s) for s in book.schedules.of_tenant(tenant) if s.series == name), None),
            runs=tuple(_run(book, each.id, events) for each in book.jobs.find(tenant, None, name, SHOWN_RUNS)),
            events=tuple(event(each) for each in reversed(events)),
        )

    return reader.parts.deadline.call("ledger", ask)


def schedules(reader: JobReader) -> list[schemas.Schedule]:
    """Return the schedules of the caller's tenants."""
    tenants = reader.tenants()

    def ask() -> list[schemas.Schedule]:
        book = reader.parts.ledger()
        return [schedule(each) for tenant in tenants for each in book.schedules.of_tenant(tenant)]

    return reader.parts.deadline.call("ledger", ask)


def schedule(found: ledger.Schedule) -> schemas.Schedule:
    return schemas.Schedule(
        tenant=found.tenant,
        series=found.series,
        dag=found.dag_id,
        rule=dict(found.rule),
        reason=found.reason,
        looked_at=found.looked_at,
        next_at=found.next_at,
        fired_at=found.fired_at,
        paused_by=found.paused_by,
    )


def event(found: ledger.SeriesEvent) -> schemas.SeriesEvent:
    return schemas.SeriesEvent(
        at=found.at,
        kind=found.kind,
        model=found.model,
        version=found.version,
        job=found.job_id,
        by=found.by,
        reason=found.reason,
        over=found.evidence.get("over"),
    )


def _summary(book: ledger.Ledger, found: ledger.Series) -> schemas.SeriesSummary:
    model = book.series.model_of(found.tenant, found.name)
    line = _line(book, found.tenant, model)
    return schemas.SeriesSummary(
        tenant=found.tenant,
        name=found.name,
        jobs=found.jobs,
        last_submitted_at=found.last_submitted_at,
        model=model,
        champion=line[-1] if line else None,
    )


def _line(book: ledger.Ledger, tenant: str, model: str | None) -> tuple[str, ...]:
    return champions(changes_of(book.series.of_model(tenant, model))) if model is not None else ()


def _run(book: ledger.Ledger, job_id: str, events: Sequence[ledger.SeriesEvent]) -> schemas.SeriesRun:
    job = book.jobs.get(job_id)
    newest = next((each for each in reversed(events) if each.job_id == job_id and each.kind in OUTCOMES), None)
    outcome = None if newest is None or (newest.kind == "waiting" and job.ended) else newest
    return schemas.SeriesRun(
        id=job.id,
        state=job.state.value,
        user=job.submitted_by,
        submitted_at=job.submitted_at,
        code=job.code_tree,
        data=_data(job, newest),
        version=None if newest is None else newest.version,
        outcome=None if outcome is None else outcome.kind,
        reason=job.reason if outcome is None else outcome.reason,
    )


def _data(job: ledger.Job, outcome: ledger.SeriesEvent | None) -> tuple[schemas.DataVersion, ...]:
    known = [] if outcome is None else outcome.evidence.get("data") or []
    since = {change["source"]: DataChange(**change) for change in known}
    return tuple(
        schemas.DataVersion(
            source=str(record["source"]),
            tree=str(record["tree"]),
            since=str(since[record["source"]]) if record["source"] in since else None,
        )
        for record in job.data or ()
    )
