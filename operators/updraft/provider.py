"""What Airflow asks of an installed provider: its name, and where its operators, triggers and DAG bundle are.

Called through the entry point `apache_airflow_provider` by every process of Airflow, so it imports nothing.
"""

from __future__ import annotations

from typing import Any

PACKAGE = "updraft"
INTEGRATION = "Updraft"
OPERATORS = ("admit", "checkpoints", "learner", "reaper", "registry", "release", "requests", "rounds", "stage")
TRIGGERS = ("admit", "approval", "checkpoints", "gang", "reaper", "requests", "rounds", "series", "tracking")


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form that Airflow's `ProvidersManager` reads."""
    return {
        "package-name": PACKAGE,
        "name": INTEGRATION,
        "description": "Deep-learning training: from a manifest to a verified model in MLflow's registry.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "operators": [_modules("updraft.operators", OPERATORS)],
        "triggers": [_modules("updraft.triggers", TRIGGERS)],
        "bundles": [_modules("updraft", ("bundle",))],
    }


def _modules(package: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {"integration-name": INTEGRATION, "python-modules": [f"{package}.{name}" for name in names]}
