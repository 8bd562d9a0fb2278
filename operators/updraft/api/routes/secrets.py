"""/secrets: store, list and delete a tenant's named secrets. Values are never returned; only names are."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Path

from updraft.api.bodies import secret_body
from updraft.api.depends import PartsDep, TenantDep
from updraft.exceptions import LimitError, RefusedError
from updraft.schemas import SecretBody, SecretList

KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
LIMIT_BYTES = 1024 * 1024  # Kubernetes' limit

router = APIRouter(tags=["secrets"])

Name = Annotated[str, Path(max_length=63, description="Name of the secret")]


@router.get("/secrets", summary="Names of the secrets")
def list_secrets(parts: PartsDep, tenant: TenantDep) -> SecretList:
    return SecretList(secrets=tuple(parts.deadline.call("cluster", lambda: parts.cluster.list_secrets(tenant))))


@router.put(
    "/secrets/{name}", status_code=204, summary="Create or replace a secret", openapi_extra=secret_body.documented
)
def put_secret(
    parts: PartsDep, tenant: TenantDep, name: Name, body: Annotated[SecretBody, Depends(secret_body)]
) -> None:
    wrong = [key for key in body.data if not KEY.fullmatch(key)]
    if wrong:
        # The key is not repeated: a user may have confused key and value, and this message may be logged.
        raise RefusedError(f"secret {name!r}: {len(wrong)} key is not allowed; use letters, digits, '-', '_' and '.'")
    if sum(len(key) + len(value.encode()) for key, value in body.data.items()) > LIMIT_BYTES:
        raise LimitError(f"secret {name!r}: larger than the limit of {LIMIT_BYTES} bytes")
    parts.deadline.call("cluster", lambda: parts.cluster.put_secret(tenant, name, body.data))


@router.delete("/secrets/{name}", status_code=204, summary="Delete a secret")
def delete_secret(parts: PartsDep, tenant: TenantDep, name: Name) -> None:
    parts.deadline.call("cluster", lambda: parts.cluster.delete_secret(tenant, name))
