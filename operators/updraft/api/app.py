"""Puts the application together: guards on every router, errors, limits. Mounted at /updraft by the plugin."""

from __future__ import annotations

import threading

from fastapi import APIRouter, Depends, FastAPI

from updraft.api import errors
from updraft.api.access import Guards, Policy, airflow_guards, refuse_cookie, team_policy
from updraft.api.body import BodyLimit
from updraft.api.deadline import import_client
from updraft.api.parts import Parts, platform_parts
from updraft.api.routes import files, health, jobs, manifests, pages, requests, secrets, trees
from updraft.settings import settings

VERSION = "1"
PREFIX = "/api/v1"
READ_ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    jobs.router,
    requests.router,
    files.router,
    manifests.router,
)
WRITE_ROUTERS: tuple[APIRouter, ...] = (requests.writing, trees.router, secrets.router)


def create_app(parts: Parts, guards: Guards, policy: Policy) -> FastAPI:
    """Every route needs a guard: a test asks each of them without a token."""
    app = FastAPI(title="Updraft", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.parts = parts
    app.state.policy = policy
    app.state.login_url = guards.login_url
    errors.install(app)
    app.add_middleware(BodyLimit)
    for router in READ_ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(guards.read)])
    for router in WRITE_ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(guards.write), Depends(refuse_cookie)])
    app.include_router(pages.router, dependencies=[Depends(guards.read)], include_in_schema=False)
    app.include_router(_description(app), prefix=PREFIX, dependencies=[Depends(guards.read)])
    return app


def _description(app: FastAPI) -> APIRouter:
    """The OpenAPI document, behind the log-in like everything else."""
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    def openapi() -> dict[str, object]:
        return app.openapi()

    return router


def platform_app() -> FastAPI:
    """The application of this process, from its settings and Airflow's auth manager."""
    configured = settings()
    # MLflow's library takes seconds to import: it begins now, and not beside a request that imports it too.
    threading.Thread(target=import_client, args=("mlflow",), name="updraft-import", daemon=True).start()
    return create_app(platform_parts(configured), airflow_guards(), team_policy(configured.tenants))
