"""Define the arguments that routes get by dependency injection."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from updraft.api.access import CallerDep, check_owner
from updraft.api.parts import Parts
from updraft.api.reading import JobReader


def parts_of(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(parts_of)]


def reader_of(request: Request, parts: PartsDep, caller: CallerDep) -> JobReader:
    return JobReader(parts, request.app.state.policy, caller)


ReaderDep = Annotated[JobReader, Depends(reader_of)]


def tenant_of(
    request: Request,
    caller: CallerDep,
    tenant: Annotated[str, Query(description="Tenant that the content belongs to")] = "default",
) -> str:
    check_owner(request.app.state.policy, caller, tenant, f"tenant {tenant!r}")
    return tenant


TenantDep = Annotated[str, Depends(tenant_of)]
