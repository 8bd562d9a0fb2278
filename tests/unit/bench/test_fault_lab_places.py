"""Each process has a key that says what it does, the same after a restart and under a parent of its own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from faults import places
from faults.places import ProcessLook, TaskNames, container_keys, does, role

from updraft.kubernetes.gate import gated
from updraft.stack.layout import Home
from updraft_learner import contract
from updraft_localnode.processes import ProcessTable, kill_all

TASK = "01998a3e-7b2c-7d34-9f00-0123456789ab"


def main_of(job: str, of_role: str) -> dict[str, str]:
    return {"TRAINING_ID": job, "UPDRAFT_ROLE": of_role}


def sidecar_of(job: str, of_role: str) -> dict[str, str]:
    return {contract.CONFIG_ENV: json.dumps({"job_id": job, "role": of_role})}


SHIM = ("/x/python3.11", "-I", "-S", "/x/updraft_localnode/shim.py")
SIDECAR = ("python", "-m", "updraft_learner.sidecar")
GATE = ("/bin/sh", "-c", *gated("exec python cnn.py"))


def test_shims_sidecars_and_programs_of_each_role_are_told_apart() -> None:
    node = (1,)
    found = container_keys(
        [
            ProcessLook(10, SHIM, {}, "python3.11", node),
            ProcessLook(11, ("python", "cnn.py"), main_of("j", "train"), "python3.11", (10, 1)),
            ProcessLook(20, SHIM, {}, "python3.11", node),
            ProcessLook(21, SIDECAR, sidecar_of("j", "train"), "python3.11", (20, 1)),
            ProcessLook(30, SHIM, {}, "python3.11", node),
            ProcessLook(31, GATE, main_of("k", "evaluate"), "dash", (30, 1)),
            ProcessLook(32, ("sleep", "0.1"), main_of("k", "evaluate"), "sleep", (31, 30, 1)),
            ProcessLook(40, SHIM, {}, "python3.11", node),
            ProcessLook(41, ("python", "-m", "updraft_data"), main_of("k", "prepare"), "python3.11", (40, 1)),
            ProcessLook(
                42, ("python", "-I", "-m", "updraft_data.limited"), main_of("k", "prepare"), "python3.11", (41, 40, 1)
            ),
            ProcessLook(50, ("/bin/sh", "-c", "test -e /x"), main_of("k", "prepare"), "dash", node),
            ProcessLook(60, SHIM, {}, "python3.11", node),  # has no child yet
        ]
    )
    assert found == {
        10: ("node 1 train/main shim", "j"),
        11: ("node 2 train/main python3.11", "j"),
        20: ("node 1 train/sidecar shim", "j"),
        21: ("node 2 train/sidecar", "j"),
        30: ("node 1 evaluate/main shim", "k"),
        31: ("node 2 evaluate/main gate", "k"),
        40: ("node 1 prepare/main shim", "k"),
        41: ("node 2 prepare/main python3.11", "k"),
        42: ("node 3 prepare/main updraft_data.limited", "k"),
        50: ("node 1 prepare/hook", "k"),
    }


def test_containers_keep_their_keys_when_their_node_is_gone() -> None:
    def keys(above: tuple[int, ...]) -> set[tuple[str, str]]:
        program = ProcessLook(11, ("python", "cnn.py"), main_of("j", "train"), "python3.11", (10, *above))
        return set(container_keys([ProcessLook(10, SHIM, {}, "python3.11", above), program]).values())

    assert keys((1,)) == keys((7, 3, 1))


def test_what_a_users_script_starts_is_none_of_the_platforms() -> None:
    script = ProcessLook(11, ("sh", "count.sh"), main_of("j", "train"), "dash", (10,))
    helper = ProcessLook(12, ("sed", "-n", "p"), main_of("j", "train"), "sed", (11, 10))
    assert set(container_keys([ProcessLook(10, SHIM, {}, "python3.11"), script, helper])) == {10, 11}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("/x/python", "-m", "updraft.stack.airflow_scheduler"), "updraft.stack.airflow_scheduler"),
        (("/x/python3.11", "-m", "airflow", "api-server", "--port", "1"), "airflow api-server"),
        (("airflow api_server -- host:127.0.0.1 port:8080",), "airflow api-server"),
        (("airflow serve-logs",), "airflow serve-logs"),
        (("/x/python", "/x/bin/mlflow", "server"), "mlflow"),
        (("/x/rclone", "serve", "s3"), "rclone"),
        (("/x/python", "-c", "from multiprocessing.resource_tracker import main;main(9)"), "resource_tracker"),
        (("/x/python", "-I"), "python3.11"),
        ((), "python3.11"),
    ],
)
def test_a_process_is_named_by_its_module_title_or_program(words: tuple[str, ...], what: str) -> None:
    assert does(ProcessLook(1, words, program="python3.11")) == what


def test_processes_of_airflow_tasks_are_named_by_task_and_not_by_the_tasks_id() -> None:
    tasks = {TASK: ("job-1", "train")}
    supervisor = ProcessLook(1, (f"airflow worker -- LocalExecutor: {TASK}",))
    task = ProcessLook(2, (f"airflow worker -- {TASK}",))
    assert role("airflow-scheduler", 1, supervisor, tasks) == ("task train supervisor", "job-1", "train")
    assert role("airflow-scheduler", 2, task, tasks) == ("task train", "job-1", "train")
    # Just forked, it has its supervisor's title yet.
    assert role("airflow-scheduler", 2, supervisor, tasks) == ("task train", "job-1", "train")
    serves = ProcessLook(3, ("airflow serve-logs",))
    assert role("airflow-scheduler", 1, serves, tasks) == ("airflow serve-logs", "", "")


def test_task_names_are_read_from_airflows_database(tmp_path: Path) -> None:
    path = tmp_path / "airflow.db"
    earlier = "01998a3e-7b2c-7d34-9f00-000000000000"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE task_instance (id, dag_id, run_id, task_id)")
        connection.execute("CREATE TABLE task_instance_history (task_instance_id, dag_id, run_id, task_id)")
        connection.execute("INSERT INTO task_instance VALUES (?, 'train_model', 'job-1', 'admit')", (UUID(TASK).hex,))
        connection.execute("INSERT INTO task_instance_history VALUES (?, 'reaper', 'r', 'reap')", (UUID(earlier).hex,))
    names = TaskNames(path)
    assert names.get(TASK) == ("job-1", "admit")
    assert names.get(earlier) == ("", "reaper.reap")
    assert names.get("01998a3e-7b2c-7d34-9f00-00000000000f", ("", "unknown")) == ("", "unknown")
    assert TaskNames(tmp_path / "none").get(TASK) == ("", "")


def test_the_tree_has_every_process_of_a_service_by_descent(home: Home, part: subprocess.Popen[bytes]) -> None:
    tree = places.tree(home)
    assert [each.process.pid for each in tree["s3 0 code"]] == [part.pid]
    assert [each.process.ppid() for each in tree["s3 1 code"]] == [part.pid]
    assert len(tree) == 2


def test_a_container_whose_node_was_killed_is_found_by_its_job(home: Home) -> None:
    environment = {**main_of("j", "train"), "HOME": str(home.node / "pods" / "x")}
    ours = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    others = subprocess.Popen(["sleep", "60"], env={**environment, "HOME": "/elsewhere/node"}, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while psutil.Process(ours.pid).cmdline() != ["sleep", "60"] and time.monotonic() < deadline:
            time.sleep(0.01)
        tree = places.tree(home)
        assert {key: [(p.process.pid, p.job) for p in each] for key, each in tree.items()} == {
            "node 2 train/main sleep": [(ours.pid, "j")]
        }
    finally:
        for child in (ours, others):
            child.kill()
            child.wait(timeout=10)


def test_a_shim_of_the_local_node_is_told_by_the_program_that_it_runs(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    environment = {**main_of("j", "export"), "HOME": str(home.node / "pods" / "x"), "PATH": "/usr/bin:/bin"}
    words = ["/bin/sh", "-c", "sleep 60 & wait"]
    container = asyncio.run(ProcessTable().start(folder, words, environment, tmp_path))
    try:
        assert container.shim is not None
        assert container.main is not None
        tree = places.tree(home)
        found = {key: [each.process.pid for each in own] for key, own in tree.items()}
        program = Path(psutil.Process(container.main.pid).exe()).name
        assert found["node 1 export/main shim"] == [container.shim.pid]
        assert found[f"node 2 export/main {program}"] == [container.main.pid]
        assert {each.job for own in tree.values() for each in own} == {"j"}
    finally:
        kill_all(container)
