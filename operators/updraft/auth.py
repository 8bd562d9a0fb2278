"""Separate tenants in Airflow itself: whoever is not of a tenant sees and starts none of the runs of its DAGs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from updraft.exceptions import UpdraftError
from updraft.lifecycle.workflow import PLATFORM_DAGS, tenant_of_dag
from updraft.services import platform_services

ADMIN = "ADMIN"  # Airflow's role

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser


class TenantAuthManager(SimpleAuthManager):
    """Airflow's simple auth manager, where a user's rights on the DAGs of a tenant end if the user is not of it. The
    platform's own DAGs, whose runs are about the jobs of all tenants, are for users of all of them.

    `Tenancy.allows` says who is: `people` and `administrators` of the file of tenants. Users with Airflow's role
    `admin` keep all rights. Set it as `core.auth_manager`; the embedded platform does.
    """

    def is_authorized_dag(
        self,
        *,
        method: ResourceMethod,
        user: SimpleAuthManagerUser,
        access_entity: DagAccessEntity | None = None,
        details: DagDetails | None = None,
    ) -> bool:
        """Return whether the user may do this with the DAG, or with some DAG if `details` names none."""
        allowed: bool = super().is_authorized_dag(
            method=method, user=user, access_entity=access_entity, details=details
        )
        if not allowed or details is None or not details.id or str(user.role).upper() == ADMIN:
            return allowed
        if details.id in PLATFORM_DAGS:
            return _belongs(user, None)
        tenant = tenant_of_dag(details.id)
        return tenant is None or _belongs(user, tenant)


def _belongs(user: Any, tenant: str | None) -> bool:
    """Return whether the user is of the tenant; None: of all tenants. While no file of tenants was ever right, nobody
    is."""
    try:
        tenancy = platform_services().tenancy()
    except UpdraftError:
        return False
    wanted = tenancy.names if tenant is None else (tenant,)
    return all(tenancy.allows(user.get_name(), each, getattr(user, "teams", None) or ()) for each in wanted)
