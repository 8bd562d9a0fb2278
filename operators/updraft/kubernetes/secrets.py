"""Manage a tenant's named secrets: stored as Kubernetes secrets in its namespace, listed by name, never shown.

The plugin's routes write, list and delete them; staging and the launch of the pod that copies data read them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from updraft.exceptions import NotFoundError, RefusedError
from updraft.kubernetes import calls, gang
from updraft_learner.contract import LABEL_TENANT

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

__all__ = ["delete_secret", "list_secrets", "object_name", "put_secret", "read_secret"]

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
# Separates tenants' secrets from the platform's own, which are named after jobs and which no user may name. A job's id
# contains no dot, so no job id and secret name lead to the same object.
PREFIX = "user."
LABEL_KIND = "updraft.dev/kind"


def object_name(name: str) -> str:
    """Name of the Kubernetes object that holds the tenant's secret `name`; RefusedError for a bad name."""
    if not NAME.fullmatch(name):
        raise RefusedError(
            f"secret name {name!r} is not allowed; use 1 to 40 of a-z, 0-9 and '-', beginning and ending with a "
            "letter or digit"
        )
    return PREFIX + name


def put_secret(core: CoreV1Api, namespace: str, tenant: str, name: str, data: Mapping[str, str]) -> None:
    gang.ensure_namespace(core, namespace)
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": object_name(name),
            "namespace": namespace,
            "labels": {LABEL_TENANT: tenant, LABEL_KIND: "user-secret"},
        },
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }
    created = calls.call(f"create secret {name}", core.create_namespaced_secret, namespace, body, ok=calls.EXISTS)
    if created is None:
        calls.call(f"replace secret {name}", core.replace_namespaced_secret, object_name(name), namespace, body)


def list_secrets(core: CoreV1Api, namespace: str, tenant: str) -> list[str]:
    selector = f"{LABEL_KIND}=user-secret,{LABEL_TENANT}={tenant}"
    found = calls.call("list secrets", core.list_namespaced_secret, namespace, label_selector=selector, ok=calls.GONE)
    return sorted(s.metadata.name.removeprefix(PREFIX) for s in found.items) if found else []


def delete_secret(core: CoreV1Api, namespace: str, name: str) -> None:
    delete = core.delete_namespaced_secret
    gone = calls.call(f"delete secret {name}", delete, object_name(name), namespace, ok=calls.GONE)
    if gone is None:
        raise NotFoundError(f"secret {name!r} does not exist; `updraft secrets list` shows those that do")


def read_secret(core: CoreV1Api, namespace: str, name: str) -> dict[str, str]:
    """Return the values of a tenant's secret, for listing or copying a bucket with it. Never log the result."""
    found = calls.call(f"read secret {name}", core.read_namespaced_secret, object_name(name), namespace, ok=calls.GONE)
    if found is None:
        raise NotFoundError(f"secret {name!r} does not exist; create it with `updraft secrets set {name}`")
    return {key: base64.b64decode(value).decode() for key, value in (found.data or {}).items()}
