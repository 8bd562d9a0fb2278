"""The DAG files as Airflow's processor sees them: they load offline, and are wired so that no job ends wrongly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from updraft.bundle import dag_file

REPOSITORY = Path(__file__).parents[2]
DAGS = REPOSITORY / "dags"
# Runs in a process of its own: no settings of a stack, no network, and every DAG written as the scheduler gets it.
PROGRAM = """
import json, socket, sys

def refuse(*arguments, **options):
    raise OSError("a DAG file asked the network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.types import DagRunType
from pendulum import parse

bag = DagBag(sys.argv[1])
seen = {"errors": {str(k): v for k, v in bag.import_errors.items()}, "dags": {}}
for dag_id, dag in bag.dags.items():
    written = DagSerialization.to_dict(dag)
    timetable = DagSerialization.from_dict(written).timetable
    run = timetable.generate_run_id(run_type=DagRunType.MANUAL, run_after=parse("2026-12-31"), data_interval=None)
    params = dag.params
    try:
        params.validate()
        wrong = None
    except Exception as exc:
        wrong = str(exc)
    tasks = {}
    for task in dag.tasks:
        tasks[task.task_id] = {
            "retries": task.retries,
            "teardown": task.is_teardown,
            "fails_the_run": task.on_failure_fail_dagrun,
            "xcom": task.do_xcom_push,
            "rule": str(task.trigger_rule.value),
            "after": sorted(task.upstream_task_ids),
        }
    seen["dags"][dag_id] = {
        "tasks": tasks,
        "tags": sorted(dag.tags),
        "doc": dag.doc_md,
        "schedule": timetable.summary if timetable.can_be_scheduled else None,
        "run": run,
        "catchup": dag.catchup,
        "params": {name: params.get_param(name).value for name in params},
        "wrong_params": wrong,
        "paused": dag.is_paused_upon_creation,
        "written": json.dumps(written),
    }
print("SEEN" + json.dumps(seen))
"""

TASKS = {
    "admit": [],
    "stage_data": ["admit"],
    "validate_data": ["stage_data"],
    "train": ["validate_data"],
    "watch_checkpoints": ["validate_data"],
    "evaluate": ["train"],
    "export_model": ["evaluate"],
    "register_model": ["export_model"],
    "promote": ["register_model"],
    "release": ["promote", "watch_checkpoints"],
}


REQUESTS = {"halt_job": "halt", "resume_job": "resume", "cancel_job": "cancel"}
PLATFORM = {*REQUESTS, "elastic_sizes", "reaper"}


def parse(dags: Path, home: Path) -> dict[str, Any]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "UPDRAFT"))},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(dags)], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    seen: dict[str, Any] = json.loads(ran.stdout.rpartition("SEEN")[2])
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """This repository's DAGs, and beside its jobs two more: a wrong one and a scheduled one."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(DAGS, folder / "dags")
    shutil.copytree(REPOSITORY / "jobs", folder / "jobs", ignore=shutil.ignore_patterns("data"))
    for name, text in {
        "misspelt": "name: misspelt\ncomand: python train.py\nresources: {memory: 16 Gigs, learners: -1}\n",
        "nightly": "name: nightly\nframework: {name: shell}\ncommand: 'true'\nschedule: {cron: '0 3 * * *'}\n",
    }.items():
        (folder / "jobs" / name).mkdir()
        (folder / "jobs" / name / "manifest.yaml").write_text(text)
    return parse(folder / "dags", tmp_path_factory.mktemp("home"))


def test_every_dag_loads_without_a_network(seen: dict[str, Any]) -> None:
    assert seen["errors"] == {}
    examples = {f"job_{path.parent.name.replace('-', '_')}" for path in REPOSITORY.glob("jobs/*/manifest.yaml")}
    assert set(seen["dags"]) == {"job_misspelt", "job_nightly", "train_model"} | PLATFORM | examples


def training(seen: dict[str, Any]) -> list[dict[str, Any]]:
    return [dag for name, dag in seen["dags"].items() if name not in PLATFORM]


def test_every_dag_that_trains_has_the_same_tasks_in_the_same_order(seen: dict[str, Any]) -> None:
    from updraft.lifecycle import workflow

    assert tuple(TASKS) == workflow.TASKS
    for dag in training(seen):
        assert {name: task["after"] for name, task in dag["tasks"].items()} == TASKS


def test_every_task_outlives_a_loss_of_the_control_plane(seen: dict[str, Any]) -> None:
    for dag in seen["dags"].values():
        assert all(task["retries"] >= 4 for task in dag["tasks"].values())


def test_a_failed_task_makes_a_failed_run(seen: dict[str, Any]) -> None:
    """A run's state is that of its leaves. `release` runs always and succeeds, so it must not be one: a teardown that
    does not count. The leaves beside it fail, or are failed by what is before them, when any task has failed."""
    for dag in training(seen):
        tasks = dag["tasks"]
        assert (tasks["release"]["teardown"], tasks["release"]["fails_the_run"]) == (True, False)
        assert not any(task["teardown"] for name, task in tasks.items() if name != "release")
        assert all(tasks[name]["rule"] in ("all_success", "none_failed") for name in tasks if name != "release")


def test_no_learner_hands_its_pod_on(seen: dict[str, Any]) -> None:
    for dag in training(seen):
        assert not any(dag["tasks"][name]["xcom"] for name in ("train", "evaluate", "export_model"))
        for word in ("password", "secret_key", "access_key", "credentials.json"):
            assert word not in dag["written"]


def test_a_wrong_manifest_gets_a_page_that_names_every_wrong_field(seen: dict[str, Any]) -> None:
    page = seen["dags"]["job_misspelt"]
    assert page["tags"] == ["job", "updraft", "wrong-manifest"]
    for field in ("comand", "resources.memory", "resources.learners", "16 Gigs", "-1"):
        assert field in page["doc"]
    assert page["schedule"] is None
    assert not page["params"].get("command")


def test_the_examples_are_right(seen: dict[str, Any]) -> None:
    wrong = [name for name, dag in seen["dags"].items() if "wrong-manifest" in dag["tags"]]
    assert wrong == ["job_misspelt"]


def test_a_schedule_of_a_manifest_is_its_dags(seen: dict[str, Any]) -> None:
    assert seen["dags"]["job_nightly"]["schedule"] == "Asset"  # of its series
    assert seen["dags"]["job_nightly"]["catchup"] is False
    assert seen["dags"]["train_model"]["schedule"] is None


def test_the_form_of_a_manifest_holds_its_values(seen: dict[str, Any]) -> None:
    form = seen["dags"]["job_nightly"]["params"]
    assert (form["name"], form["command"]) == ("nightly", "true")
    assert form["resources_learners"] is None  # what a manifest leaves out is decided when a run begins


@pytest.mark.parametrize("path", sorted(DAGS.glob("*.py")), ids=lambda path: path.name)
def test_a_dag_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


def test_the_processor_imports_the_operator_once_for_all_files() -> None:
    from airflow.utils.file import iter_airflow_imports

    for name in ("default", "jobs"):
        assert "airflow.providers.cncf.kubernetes.operators.pod" in iter_airflow_imports(str(DAGS / f"{name}.py"))


def test_the_file_of_the_tenant_default_is_as_those_of_others() -> None:
    assert (DAGS / "default.py").read_text() == dag_file("default")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The DAGs of the tenants default and vision, with manifests of both and a wrong one of vision."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copytree(DAGS, folder / "dags")
    (folder / "dags" / "vision.py").write_text(dag_file("vision"))
    for name, tenant, command in (
        ("seen", "vision", "'true'"),
        ("wrong", "vision", "1"),
        ("own", "default", "'true'"),
        ("odd", "No Tenant/1", "'true'"),
        ("many", "[vision]", "'true'"),
    ):
        (folder / "jobs" / name).mkdir(parents=True)
        text = f"name: {name}\ntenant: {tenant}\nframework: {{name: shell}}\ncommand: {command}\n"
        (folder / "jobs" / name / "manifest.yaml").write_text(text)
    return parse(folder / "dags", tmp_path_factory.mktemp("home"))


def test_a_tenant_has_dags_of_its_own(shared: dict[str, Any]) -> None:
    assert shared["errors"] == {}
    own = {"train_model", *REQUESTS}
    of_vision = {f"vision.{name}" for name in (*own, "job_seen", "job_wrong")}
    assert set(shared["dags"]) == own | {"elastic_sizes", "reaper", "job_own", "job_odd", "job_many"} | of_vision
    assert {name for name, dag in shared["dags"].items() if "tenant:vision" in dag["tags"]} == of_vision
    assert shared["dags"]["vision.train_model"]["params"]["tenant"] == "vision"
    assert shared["dags"]["vision.job_seen"]["params"]["tenant"] == "vision"
    assert "wrong-manifest" in shared["dags"]["vision.job_wrong"]["tags"]


@pytest.mark.parametrize(("name", "task"), REQUESTS.items())
def test_a_request_has_one_task_and_a_form_that_needs_the_jobs_id(seen: dict[str, Any], name: str, task: str) -> None:
    dag = seen["dags"][name]
    assert (list(dag["tasks"]), dag["schedule"], dag["paused"]) == ([task], None, False)
    assert (dag["params"]["job"], dag["params"]["wait_minutes"]) == ("", 10)
    assert "job" in str(dag["wrong_params"])
    changes = {"command", "params", "memory", "disk", "cpus", "learners", "changes"} if task == "resume" else set()
    assert set(dag["params"]) == {"job", "wait_minutes"} | changes
    assert not any(dag["params"][name] for name in changes)


def test_only_requests_have_forms_that_must_be_filled_in(seen: dict[str, Any]) -> None:
    assert {name for name, dag in seen["dags"].items() if dag["wrong_params"]} == set(REQUESTS)


@pytest.mark.parametrize(
    ("name", "file"), [("train_model", "default"), ("halt_job", "default"), ("job_digits_cnn", "jobs")]
)
def test_a_task_makes_only_its_own_dag(name: str, file: str) -> None:
    program = (
        "import sys\n"
        "from airflow.sdk import DAG\n"
        "found = {'__name__': 'x', '__file__': sys.argv[1]}\n"
        "exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), found)\n"
        "print([dag.dag_id for dag in found.values() if isinstance(dag, DAG)])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(DAGS / f"{file}.py")],
        env={**os.environ, "_AIRFLOW_PARSING_CONTEXT_DAG_ID": name},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip().rpartition("\n")[2] == f"['{name}']"


def test_a_run_that_airflow_names_has_its_jobs_id(seen: dict[str, Any]) -> None:
    """One started from the form: its id is the job's, and is begun by the job's name."""
    from updraft.lifecycle import is_job_id, job_id_of_run

    for dag_id, name in (("job_digits_cnn", "digits-cnn"), ("job_nightly", "nightly"), ("train_model", "job")):
        run = seen["dags"][dag_id]["run"]
        assert run.startswith(f"{name}-261231-000000-")
        assert is_job_id(run)
        assert job_id_of_run(dag_id, run, name) == run


def test_a_cron_is_read_in_the_manifests_own_time_zone() -> None:
    from updraft.manifest import parse
    from updraft.operators.wiring import timetable

    raw = {"name": "nightly", "framework": {"name": "shell"}, "command": "true"}
    assert not timetable(parse(raw)).can_be_scheduled
    found = timetable(parse({**raw, "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}}))
    ((_, asset),) = found.asset_condition.iter_assets()
    (watcher,) = asset.watchers
    rule = watcher.trigger["kwargs"]["rule"]
    assert (rule["cron"], rule["timezone"]) == ("0 3 * * *", "Europe/Berlin")
