"""Addresses of MLflow's pages, as a browser opens them. Every link to MLflow that is shown or printed is made here.

MLflow 3 opens in its mode for generative AI, with empty traces, unless the address says otherwise; its pages read what
stands behind the route in the fragment (`#/...?...`), not the query before it.
"""

from __future__ import annotations

from urllib.parse import quote

_MODE = "workflowType=machine_learning"


def home_page(base: str) -> str:
    """Return the list of experiments. Example: `http://127.0.0.1:5000/#/experiments?workflowType=machine_learning`."""
    return f"{base.rstrip('/')}/#/experiments?{_MODE}"


def run_page(base: str, experiment_id: str, run_id: str) -> str:
    """Return the address of a run's page, such as
    `http://127.0.0.1:5000/#/experiments/1/runs/0af3?workflowType=machine_learning`."""
    return f"{base.rstrip('/')}/#/experiments/{quote(experiment_id, safe='')}/runs/{quote(run_id, safe='')}?{_MODE}"


def artifact_page(base: str, experiment_id: str, run_id: str, path: str) -> str:
    """Return the address of the page that shows a file of a run's artifacts."""
    run, _, query = run_page(base, experiment_id, run_id).rpartition("?")
    return f"{run}/artifacts/{quote(path)}?{query}"


def version_page(base: str, name: str, version: str) -> str:
    return f"{base.rstrip('/')}/#/models/{quote(name, safe='')}/versions/{quote(version, safe='')}?{_MODE}"
