"""/tenants: what tenants may use of the cluster, and what they use."""

from __future__ import annotations

from fastapi import APIRouter

from updraft.api import tenants
from updraft.api.depends import ReaderDep
from updraft.schemas import TenantList

router = APIRouter(tags=["tenants"])


@router.get("/tenants", summary="What the caller's tenants may use of the cluster, and what they use")
def list_tenants(reader: ReaderDep) -> TenantList:
    return tenants.listed(reader)
