"""The names of DAGs, tasks and roles stand once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import updraft
from updraft.lifecycle import workflow
from updraft.lifecycle.workflow import TRAIN_DAG, is_train_dag, job_dag

PACKAGE = Path(updraft.__file__).parent
REPOSITORY = PACKAGE.parents[1]
FILES = [*PACKAGE.rglob("*.py"), *(REPOSITORY / "dags").glob("*.py")]
# `promote`, `release`, `evaluate`, `export`, `reaper` and `cancel` are also fields of a manifest, modules and verbs.
SURE = {"stage_data", "validate_data", "watch_checkpoints", "export_model", "register_model", "train", "prepare"} | {
    workflow.TRAIN_DAG,
    workflow.HALT_DAG,
    workflow.RESUME_DAG,
    workflow.CANCEL_DAG,
}
OTHER_MEANING = {
    ("stack/__main__.py", "prepare"),  # the verb that builds environments
    ("__init__.py", "train"),  # the function that submits a job from Python
}


def test_no_other_module_writes_such_a_name() -> None:
    found = set()
    for path in FILES:
        if path == PACKAGE / "lifecycle" / "workflow.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in SURE:
                name = str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else REPOSITORY))
                found.add((name, node.value))
    assert found - OTHER_MEANING == set(), "use updraft.lifecycle.workflow"


def test_roles_and_tasks_fit_together() -> None:
    assert set(workflow.ROLE_OF_TASK) <= set(workflow.TASKS)
    assert {*workflow.ROLE_OF_TASK.values(), *workflow.BEFORE_ROLES} == set(workflow.ROLES)


@pytest.mark.parametrize(
    ("dag_id", "trains"), [(TRAIN_DAG, True), (job_dag("digits-cnn"), True), ("reaper", False), ("halt_job", False)]
)
def test_runs_of_these_dags_are_jobs(dag_id: str, trains: bool) -> None:
    assert is_train_dag(dag_id) is trains


def test_the_dag_of_a_manifest_is_named_after_its_folder() -> None:
    assert job_dag("digits-cnn") == "job_digits_cnn"
