"""Register Updraft with Airflow: the routes below /updraft and the page of jobs. It holds metadata only; see `app`.

If the wheel is installed, its entry point `airflow.plugins` is enough. The checkout and the Airflow image have a
plugins folder, whose one file registers the same class. Airflow reports a second registration as an error, so the entry
point returns nothing if that file was loaded.
"""

from __future__ import annotations

import sys

from airflow.plugins_manager import AirflowPlugin

from updraft.api.lazy import LazyApp
from updraft.timetables import AlwaysTimetable, OnDemandTimetable, SeriesTimetable

OF_THE_FOLDER = "updraft_plugin"  # Airflow's module name for plugins/updraft_plugin.py; it loads the folder first


class UpdraftPlugin(AirflowPlugin):
    """Airflow's metadata about the plugin. Every process of Airflow loads it, so it must be cheap."""

    name = "updraft"
    fastapi_apps = [{"name": "Updraft", "app": LazyApp(), "url_prefix": "/updraft"}]
    timetables = [AlwaysTimetable, OnDemandTimetable, SeriesTimetable]
    external_views = [
        {"name": "Updraft jobs", "href": "/updraft/jobs", "destination": "nav", "url_route": "updraft-jobs"}
    ]


def __getattr__(name: str) -> type[AirflowPlugin] | None:
    """Return the plugin for `by_entry_point`, unless the plugins folder has registered it."""
    if name == "by_entry_point":
        return None if OF_THE_FOLDER in sys.modules else UpdraftPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
