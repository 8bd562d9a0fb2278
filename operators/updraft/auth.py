"""Separate tenants in Airflow itself: whoever is not of a tenant sees and starts none of the runs of its DAGs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from updraft.exceptions import UpdraftError
from updraft.lifecycle.workflow import tenant_of_dag
from updraft.services import platform_services

ADMIN = "ADMIN"  # Airflow's role

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser


class TenantAuthManager(SimpleAuthManager):
    """Airflow's simple auth manager, where a user's rights on the DAGs of a tenant end if the user is not of it.

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
        tenant = tenant_of_dag(details.id) if details is not None and details.id else None
        return allowed and (tenant is None or str(user.role).upper() == ADMIN or _belongs(user, tenant))


def _belongs(user: Any, tenant: str) -> bool:
    """Return whether the user is of the tenant. While no file of tenants was ever right, nobody is."""
    try:
        tenancy = platform_services().tenancy()
    except UpdraftError:
        return False
    return tenancy.allows(user.get_name(), tenant, getattr(user, "teams", None) or ())
