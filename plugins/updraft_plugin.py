"""Registers Updraft with Airflow: the routes below /updraft and the page of jobs. Metadata only; see `updraft.api`."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from updraft.api.lazy import LazyApp


class UpdraftPlugin(AirflowPlugin):
    """Loaded by every process of Airflow, so nothing heavy happens here."""

    name = "updraft"
    fastapi_apps = [{"name": "Updraft", "app": LazyApp(), "url_prefix": "/updraft"}]
    external_views = [
        {"name": "Updraft jobs", "href": "/updraft/jobs", "destination": "nav", "url_route": "updraft-jobs"}
    ]
