"""Who is asking, and what is theirs: Airflow's log-in, then the tenant's ownership.

A plugin's application is mounted outside Airflow's log-in, so `app.create_app` puts `Guards` on every router. The token
comes as a bearer header (CLI) or as the cookie of Airflow's UI (pages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

from updraft.exceptions import NotFoundError

TRAIN_DAG = "train_model"


@dataclass(frozen=True)
class Caller:
    """The authenticated user."""

    name: str
    teams: frozenset[str] = frozenset()


Policy = Callable[[Caller, str], bool]  # (caller, tenant) -> may the caller know of it?


@dataclass(frozen=True)
class Guards:
    """Dependencies that give the Caller or raise HTTPException: 401 without a valid token, 403 without the right."""

    read: Callable[..., Caller]
    write: Callable[..., Caller]
    login_url: Callable[[str], str] | None = None  # where a browser logs in, to come back to the given address


def airflow_guards() -> Guards:
    """Whoever may see runs of the training DAG may read; whoever may start one may write."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.api_fastapi.core_api.security import get_user

    authenticated = Depends(get_user)

    def guard(method: Any) -> Callable[..., Caller]:
        def require(request: Request, user: Any = authenticated) -> Caller:
            allowed = get_auth_manager().is_authorized_dag(
                method=method, access_entity=DagAccessEntity.RUN, details=DagDetails(id=TRAIN_DAG), user=user
            )
            if not allowed:
                raise HTTPException(403, "this needs the right to see or start runs of the DAG train_model")
            request.state.caller = Caller(user.get_name(), frozenset(getattr(user, "teams", None) or ()))
            return request.state.caller  # type: ignore[no-any-return]

        return require

    def login_url(back_to: str) -> str:
        return str(get_auth_manager().get_url_login(next_url=back_to))

    return Guards(read=guard("GET"), write=guard("POST"), login_url=login_url)


def refuse_cookie(request: Request) -> None:
    """What acts needs the token in a header. A browser adds the cookie of Airflow's UI to whatever another page on the
    same host makes it send, whichever its port; the header it does not. Our pages only show."""
    if request.method not in ("GET", "HEAD") and not request.headers.get("authorization"):
        raise HTTPException(403, "this needs the token as a bearer header; a browser's cookie is good for reading only")


def caller_of(request: Request) -> Caller:
    """The caller that the router's guard has let in."""
    caller: Caller = request.state.caller
    return caller


CallerDep = Annotated[Caller, Depends(caller_of)]


def team_policy(tenants: Iterable[str]) -> Policy:
    """The one tenant is everybody's; where there are several, an Airflow user sees those named by the user's teams."""
    known = frozenset(tenants)

    def allows(caller: Caller, tenant: str) -> bool:
        return tenant in known and (len(known) == 1 or tenant in caller.teams)

    return allows


def check_owner(policy: Policy, caller: Caller, tenant: str, what: str) -> None:
    """Raises NotFoundError, the same as for something that does not exist, so that nothing is given away."""
    if not policy(caller, tenant):
        raise NotFoundError(f"{what} does not exist")
