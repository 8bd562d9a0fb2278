"""Registers Updraft with Airflow: the routes below /updraft and the page of jobs. Metadata only; see `app`.

Where the wheel is installed, its entry point `airflow.plugins` is enough. The checkout and the image of Airflow have a
plugins folder, whose one file registers the same class. Airflow calls a second registration an error, so the entry
point gives nothing where that file was loaded.
"""

from __future__ import annotations

import sys

from airflow.plugins_manager import AirflowPlugin

from updraft.api.lazy import LazyApp
from updraft.timetables import CronTimetable, OnDemandTimetable

OF_THE_FOLDER = "updraft_plugin"  # as Airflow names the module of plugins/updraft_plugin.py; folders come first


class UpdraftPlugin(AirflowPlugin):
    """Loaded by every process of Airflow, so nothing heavy happens here."""

    name = "updraft"
    fastapi_apps = [{"name": "Updraft", "app": LazyApp(), "url_prefix": "/updraft"}]
    timetables = [OnDemandTimetable, CronTimetable]
    external_views = [
        {"name": "Updraft jobs", "href": "/updraft/jobs", "destination": "nav", "url_route": "updraft-jobs"}
    ]


def __getattr__(name: str) -> type[AirflowPlugin] | None:
    """Return the plugin for `by_entry_point`, unless the plugins folder has registered it."""
    if name == "by_entry_point":
        return None if OF_THE_FOLDER in sys.modules else UpdraftPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
