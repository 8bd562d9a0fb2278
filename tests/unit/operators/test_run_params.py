"""What a run's first task makes of the form, with Airflow's own merging of the run's conf into the DAG's params."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from updraft.manifest import Manifest, parse

pytestmark = pytest.mark.usefixtures("environment")

BASE = parse(
    {
        "name": "digits",
        "framework": {"name": "pytorch"},
        "command": "python train.py",
        "params": {"epochs": 10, "learning_rate": 2e-4, "note": ""},
        "resources": {"cpus": 1, "memory": "2GiB"},
    }
)


def judged(base: Manifest, conf: dict[str, Any]) -> Manifest:
    from airflow.sdk import DAG
    from airflow.sdk.definitions.param import process_params

    from updraft.operators.wiring import DAG_ARGS, params, train_tasks

    with DAG(dag_id="job_digits", schedule=None, **DAG_ARGS) as dag:
        train_tasks(dag, params(base), "default")
    admit: Any = copy.copy(dag.task_dict["admit"])
    merged = process_params(dag, admit, conf, suppress_exception=False)
    context: Any = {
        "params": merged,
        "dag": dag,
        "dag_run": SimpleNamespace(dag_id="job_digits", run_id="digits-1", triggering_user_name=None),
    }
    result: Manifest = admit._judge(context)
    return result


def test_a_number_that_was_typed_is_a_number() -> None:
    params = judged(BASE, {"params_learning_rate": "1e-3", "params_epochs": "3"}).params
    assert params == {"epochs": 3, "learning_rate": 0.001, "note": ""}
    assert [type(value) for value in params.values()] == [int, float, str]


def test_a_size_that_was_chosen_replaces_what_the_manifest_says() -> None:
    assert judged(BASE, {"resources_size": "large"}).resources.cpus == 4


def test_a_field_that_was_filled_in_wins_over_the_box() -> None:
    conf = {"resources_cpus": 3, "manifest": {"resources": {"cpus": 2, "memory": "3GiB"}}}
    resources = judged(BASE, conf).resources
    assert (resources.cpus, resources.memory_bytes) == (3, 3 * 1024**3)


def test_a_whole_manifest_in_the_box_is_the_job() -> None:
    other = parse({"name": "digits", "framework": {"name": "shell"}, "command": "true"})
    assert judged(BASE, {"manifest": other.canonical()}) == other


@pytest.mark.parametrize("conf", [{}, {"params_epochs": 10}])
def test_an_untouched_form_is_the_manifest(conf: dict[str, Any]) -> None:
    assert judged(BASE, conf) == BASE


@pytest.mark.parametrize(("task", "has_form"), [(None, True), ("admit", True), ("train", False), ("release", False)])
def test_only_the_task_that_reads_the_form_gets_it(
    task: str | None, has_form: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_TASK_ID

    from updraft.operators.wiring import params

    if task:
        monkeypatch.setenv(_AIRFLOW_PARSING_CONTEXT_TASK_ID, task)  # as the process of a task sets it
    assert bool(params(BASE)) == has_form
