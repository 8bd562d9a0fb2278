"""/series: the jobs of one manifest name as a series, its champions, and the roll-back to an earlier one."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from updraft.api import series
from updraft.api.access import CallerDep
from updraft.api.bodies import roll_back_body
from updraft.api.depends import ReaderDep, TenantDep
from updraft.api.reading import JobReader
from updraft.exceptions import RefusedError
from updraft.schemas import RollBackBody, RolledBack, Schedule, ScheduleList, SeriesDetail, SeriesList

router = APIRouter(tags=["series"])
writing = APIRouter(tags=["series"])


@router.get("/series", summary="The series of the caller's tenants, most recent job first")
def list_series(
    reader: ReaderDep, limit: Annotated[int, Query(ge=1, le=1000, description="How many")] = 100
) -> SeriesList:
    return SeriesList(series=tuple(series.listed(reader, limit)))


@router.get("/series/{name}", summary="A series: its newest jobs, its champions, and what happened to its models")
def show_series(reader: ReaderDep, tenant: TenantDep, name: str) -> SeriesDetail:
    return series.detail(reader, tenant, name)


@router.get("/schedules", summary="The schedules, and what the last look at each decided")
def list_schedules(reader: ReaderDep) -> ScheduleList:
    return ScheduleList(schedules=tuple(series.schedules(reader)))


@writing.post("/series/{name}/pause", summary="Let the schedule of a series start no jobs")
def pause(reader: ReaderDep, caller: CallerDep, tenant: TenantDep, name: str) -> Schedule:
    """Pause the schedule of a series: moments of its cron pass without a job. Jobs that run go on."""
    return _paused(reader, tenant, name, caller.name)


@writing.post("/series/{name}/unpause", summary="Let the schedule of a series start jobs again")
def unpause(reader: ReaderDep, tenant: TenantDep, name: str) -> Schedule:
    """End a pause. Moments that passed during it start nothing."""
    return _paused(reader, tenant, name, None)


def _paused(reader: JobReader, tenant: str, name: str, by: str | None) -> Schedule:
    parts = reader.parts
    return series.schedule(parts.deadline.call("ledger", lambda: parts.ledger().schedules.pause(tenant, name, by)))


@writing.post(
    "/series/{name}/roll-back",
    summary="Make an earlier version the champion again",
    openapi_extra=roll_back_body.documented,
)
def roll_back(
    reader: ReaderDep,
    caller: CallerDep,
    tenant: TenantDep,
    name: str,
    body: Annotated[RollBackBody, Depends(roll_back_body)],
) -> RolledBack:
    """Move the alias `champion` back to the version before, or to the named one, and record who did it and why. Nothing
    is deleted. 409 if there is no such version or no champion before. An answer 503 may come after the roll-back was
    recorded. The same request again completes it, or makes the next one: look at the series first."""
    model = body.model or series.detail(reader, tenant, name).model
    if model is None:
        raise RefusedError(f"series {name!r} has registered no model yet; there is nothing to roll back")
    parts = reader.parts
    event = parts.deadline.call(
        "mlflow",
        lambda: parts.roll_back(
            tenant=tenant,
            model=model,
            to=body.version,
            by=caller.name,
            reason=body.reason,
            key=f"roll-back {uuid.uuid4().hex}",
        ),
        seconds=series.ROLL_BACK_SECONDS,
    )
    over = event.evidence.get("over")
    instead = f", in place of version {over}" if over else ""
    return RolledBack(
        message=f"Version {event.version} of {model} is the champion{instead}.", event=series.event(event)
    )
