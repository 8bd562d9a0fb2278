"""Authenticate the caller with Airflow's log-in, and check that the tenant is the caller's.

A plugin's application is mounted outside Airflow's log-in, so `app.create_app` puts `Guards` on every router. The token
comes in a bearer header (CLI) or in the cookie of Airflow's UI (pages).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request

from updraft.exceptions import NotFoundError
from updraft.lifecycle.workflow import TRAIN_DAG, tenant_dag
from updraft.tenants import Tenancy

PAGE_HEADER = "x-updraft-page"


@dataclass(frozen=True)
class Caller:
    """The authenticated user.

    Args:
        name: As Airflow knows the user.
        tenants: The tenants whose DAGs the user may use in Airflow for what the request does.
        teams: The user's teams in Airflow.
    """

    name: str
    tenants: frozenset[str]
    teams: frozenset[str] = frozenset()


Policy = Callable[[Caller, str], bool]  # (caller, tenant) -> whether the caller may see the tenant's jobs


@dataclass(frozen=True)
class Guards:
    """Dependencies that return the Caller, or raise HTTPException: 401 without a valid token, 403 without the right."""

    read: Callable[..., Caller]
    write: Callable[..., Caller]
    login_url: Callable[[str], str] | None = None  # returns the log-in page that leads back to the given address


def airflow_guards(tenancy: Callable[[], Tenancy]) -> Guards:
    """Return the guards of reading and writing routes: reading needs the right to see runs of a tenant's training DAG,
    writing the right to start one.

    Args:
        tenancy: Returns the tenants in force.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.api_fastapi.core_api.security import get_user

    authenticated = Depends(get_user)

    def guard(method: Any) -> Callable[..., Caller]:
        def require(request: Request, user: Any = authenticated) -> Caller:
            def allowed(tenant: str) -> bool:
                details = DagDetails(id=tenant_dag(TRAIN_DAG, tenant))
                entity = DagAccessEntity.RUN
                return manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=user)

            manager = get_auth_manager()
            tenants = frozenset(filter(allowed, tenancy().names))
            if not tenants:
                raise HTTPException(403, f"this needs the right to see or start runs of a tenant's DAG {TRAIN_DAG}")
            teams = frozenset(getattr(user, "teams", None) or ())
            request.state.caller = Caller(user.get_name(), tenants, teams)
            return request.state.caller  # type: ignore[no-any-return]

        return require

    def login_url(back_to: str) -> str:
        return str(get_auth_manager().get_url_login(next_url=back_to))

    return Guards(read=guard("GET"), write=guard("POST"), login_url=login_url)


def refuse_cookie(request: Request) -> None:
    """Raise HTTPException for a request whose token came in the cookie: a request that acts needs it in a header. A
    browser adds the cookie of Airflow's UI to the requests of any page on the same host, whichever its port, but not
    the header."""
    if request.method not in ("GET", "HEAD") and not request.headers.get("authorization"):
        raise HTTPException(403, "this needs the token as a bearer header; a browser's cookie is good for reading only")


def refuse_foreign_page(request: Request) -> None:
    """Raise HTTPException 403 for a request with the cookie that does not come from the platform's own pages. Those
    have Airflow's origin, port included, and add a header that a page of another origin cannot add without a preflight
    request."""
    if not (request.headers.get(PAGE_HEADER) and _own_origin(request)):
        refuse_cookie(request)


def _own_origin(request: Request) -> bool:
    """Return whether the request comes from Airflow's origin. Browsers set `Origin` with each POST, and no script can
    change it; `Sec-Fetch-Site` likewise, over HTTPS."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = urlsplit(request.headers.get("origin", ""))
    if origin.scheme not in ("http", "https") or not origin.netloc:
        return False
    public = urlsplit(request.app.state.parts.settings.airflow_public_uri)
    return origin.netloc == request.headers.get("host") or origin[:2] == public[:2]


def caller_of(request: Request) -> Caller:
    """Return the caller that the router's guard has let in."""
    caller: Caller = request.state.caller
    return caller


CallerDep = Annotated[Caller, Depends(caller_of)]


def tenant_policy(tenancy: Callable[[], Tenancy]) -> Policy:
    """Return the policy of tenants: Airflow's rights, and those of `Tenancy.allows`.

    Args:
        tenancy: returns the tenants in force.
    """

    def allows(caller: Caller, tenant: str) -> bool:
        return tenant in caller.tenants and tenancy().allows(caller.name, tenant, caller.teams)

    return allows


def check_owner(policy: Policy, caller: Caller, tenant: str, what: str) -> None:
    """Raise NotFoundError for another tenant's object, the same error as for an object that does not exist, so that the
    answer reveals nothing."""
    if not policy(caller, tenant):
        raise NotFoundError(f"{what} does not exist")
