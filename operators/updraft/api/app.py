"""Build the application: guards on every router, errors, limits. The plugin mounts it at /updraft."""

from __future__ import annotations

import logging
import threading
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response

from updraft.api import bodies, errors
from updraft.api.access import Guards, Policy, airflow_guards, refuse_cookie, refuse_foreign_page, tenant_policy
from updraft.api.deadline import import_client
from updraft.api.parts import Parts, platform_parts
from updraft.api.routes import (
    files,
    health,
    jobs,
    manifests,
    pages,
    possible,
    queue,
    requests,
    secrets,
    series,
    tenants,
    trees,
)
from updraft.exceptions import UpdraftError
from updraft.settings import refuse_open_login, settings

log = logging.getLogger(__name__)
VERSION = "1"
PREFIX = "/api/v1"
READ_ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    jobs.router,
    requests.router,
    files.router,
    manifests.router,
    queue.router,
    series.router,
    tenants.router,
)
WRITE_ROUTERS: tuple[APIRouter, ...] = (possible.router, trees.router, secrets.router)


def create_app(parts: Parts, guards: Guards, policy: Policy) -> FastAPI:
    """Create the application of the routes. Every route needs a guard: a test requests each of them without a token."""
    app = FastAPI(title="Updraft", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.parts = parts
    app.state.policy = policy
    app.state.login_url = guards.login_url
    errors.install(app)
    for router in READ_ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(guards.read)])
    asking = [Depends(guards.write), Depends(refuse_foreign_page)]  # the pages' buttons authenticate with the cookie
    for router in (queue.writing, requests.writing, series.writing):
        app.include_router(router, prefix=PREFIX, dependencies=asking)
    for router in WRITE_ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(guards.write), Depends(refuse_cookie)])
    app.include_router(pages.router, dependencies=[Depends(guards.read)], include_in_schema=False)
    app.include_router(_description(app), prefix=PREFIX, dependencies=[Depends(guards.read)])
    return app


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, bodies included."""
    found = app.openapi()
    found["components"]["schemas"].update(bodies.schemas())
    return found


def _description(app: FastAPI) -> APIRouter:
    """Return the OpenAPI document, behind the log-in like everything else."""
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    def openapi() -> dict[str, Any]:
        return document(app)

    return router


def refusing_app(problem: UpdraftError) -> FastAPI:
    """Create an application that answers every request with 503 and the problem."""
    app = FastAPI(title="Updraft", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def refuse(_request: Request, _go_on: Any) -> Response:
        return errors.answer(503, str(problem))

    return app


def platform_app() -> FastAPI:
    """Return the application of this process, from its settings and Airflow's auth manager. It refuses every request
    where Airflow has no log-in: the guards of the routes would let everybody in."""
    from airflow.configuration import conf

    try:
        refuse_open_login(conf.getboolean("core", "simple_auth_manager_all_admins"))
    except UpdraftError as exc:
        log.error("%s", exc)
        return refusing_app(exc)
    configured = settings()
    # MLflow's library takes seconds to import: start now, before a request imports it too.
    threading.Thread(target=import_client, args=("mlflow",), name="updraft-import", daemon=True).start()
    parts = platform_parts(configured)
    return create_app(parts, airflow_guards(parts.tenancy), tenant_policy(parts.tenancy))
