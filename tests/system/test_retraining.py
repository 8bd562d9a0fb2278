"""New objects in a bucket start a training by themselves, and a better model takes the champion's place."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(900)]
WAIT_SECONDS = 300.0
PREFIX = "retrained/"
PROGRAM = """
import mlflow.sklearn, os
from pathlib import Path
from sklearn.dummy import DummyClassifier
import updraft_learner as updraft
files = sorted((Path(os.environ["DATA_DIR"]) / "numbers").iterdir())
earlier = updraft.init_dir()
began = float((earlier / "files.txt").read_text()) if earlier else 0.0
updraft.log_metrics({"accuracy": min(0.5 + 0.1 * len(files), 1.0), "began_with": began}, step=1)
updraft.Checkpointer().save(writer=lambda folder: (folder / "files.txt").write_text(str(len(files))), step=1)
mlflow.sklearn.save_model(DummyClassifier().fit([[0], [1]], [0, 1]), os.path.join(os.environ["RESULT_DIR"], "model"))
"""
MANIFEST = {
    "name": "retrained",
    "framework": {"name": "sklearn"},
    "command": f"cat > train.py <<'END'\n{PROGRAM}END\npython train.py",
    "data": [{"source": f"s3://datasets/{PREFIX}", "as": "numbers"}],
    "resources": {"learners": 1, "cpus": 0.5, "memory": "512MiB"},
    "init_from": "champion",
    "export": {
        "formats": ["mlflow"],
        "trust_code": True,
        "register_as": "retrained",
        "promote_if": {"accuracy": ">= champion"},
    },
    "schedule": {"and_new": [f"s3://datasets/{PREFIX}"], "at_most_every": "1s"},
}
DAG_FILE = """
from airflow.sdk import DAG, Asset, task
from updraft.manifest import parse
from updraft.operators.wiring import DAG_ARGS, params, timetable, train_tasks

manifest = parse({manifest!r})
schedule = timetable(manifest, "job_{name}")
with DAG(dag_id="job_{name}", schedule=schedule, tags=["updraft", "job"], **DAG_ARGS) as dag:
    train_tasks(dag, params(manifest), "default")

with DAG(dag_id="serve_{name}", schedule=[Asset("updraft://models/default/{name}")], catchup=False):

    @task
    def load(triggering_asset_events):
        for events in triggering_asset_events.values():
            print("new champion:", events[-1].extra["version"])

    load()
"""


DRIFTING = {
    **MANIFEST,
    "name": "drifting",
    "data": [
        {
            "source": "s3://datasets/drifting/",
            "as": "numbers",
            "secret": "drifting-bucket",
            "expectations": {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "age"}}]},
        }
    ],
    "export": {**MANIFEST["export"], "register_as": "drifting"},
    "schedule": {
        "and_new": ["s3://datasets/drifting/"],
        "and_drift": {"above": 0.2},
        "at_most_every": "1s",
        "secret": "drifting-bucket",
    },
}


@contextmanager
def watched(stack: Stack, manifest: dict[str, Any]) -> Iterator[None]:
    """The DAG of the manifest, as a file of the user's own; without it, nothing watches the bucket."""
    path = stack.home / "dags" / f"{manifest['name']}.py"
    path.write_text(DAG_FILE.format(manifest=manifest, name=manifest["name"]))
    try:
        yield
    finally:
        path.unlink()


@pytest.fixture
def dag(stack: Stack) -> Iterator[None]:
    with watched(stack, MANIFEST):
        yield


def eventually(ask: Callable[[], Any], stack: Stack) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < deadline, stack.run("schedules").stdout + stack.run("list").stdout
        time.sleep(1)
    return answer


def jobs(stack: Stack, name: str = "retrained") -> list[Any]:
    return list(stack.client.jobs(name=name, limit=10))


def schedule(stack: Stack, name: str = "retrained") -> Any:
    return next((each for each in stack.client.schedules().schedules if each.series == name), None)


def waits_for(stack: Stack, name: str, words: str) -> str | None:
    """What the schedule says, once it has these words."""
    found = schedule(stack, name)
    return found.reason if found and words in found.reason else None


def test_new_data_trains_again_and_the_better_model_is_promoted(stack: Stack, dag: None) -> None:
    eventually(lambda: schedule(stack) and schedule(stack).reason == f"no data at s3://datasets/{PREFIX}", stack)
    stack.put_object("datasets", f"{PREFIX}1.csv", b"1")
    (first,) = eventually(lambda: jobs(stack), stack)
    detail = stack.end(first.id)
    assert detail.state == "COMPLETED", pretty(detail)
    started = detail.transitions[1].reason
    assert started == f"started by its schedule: new data at s3://datasets/{PREFIX}: 1 objects, 0.0 MB"
    eventually(lambda: schedule(stack).reason == f"no new data at s3://datasets/{PREFIX}", stack)
    assert len(jobs(stack)) == 1

    stack.client.pause_schedule("retrained")
    stack.put_object("datasets", f"{PREFIX}2.csv", b"2")
    eventually(lambda: schedule(stack).reason == "paused by admin", stack)
    assert len(jobs(stack)) == 1
    stack.client.pause_schedule("retrained", paused=False)
    eventually(lambda: len(jobs(stack)) == 2, stack)
    second = jobs(stack)[0]
    detail = stack.end(second.id)
    assert detail.state == "COMPLETED", pretty(detail)

    assert stack.client.metrics(first.id).last["began_with"] == 0
    assert stack.client.metrics(second.id).last["began_with"] == 1  # the champion's checkpoint: it had one file
    series = stack.client.series_of("retrained")
    assert (series.champion, series.previous) == ("2", "1")
    kinds = [(event.kind, event.version, event.job) for event in reversed(series.events)]
    assert kinds == [
        ("fired", None, first.id),
        ("promoted", "1", first.id),
        ("fired", None, second.id),
        ("promoted", "2", second.id),
    ]
    assert series.runs[0].data[0].tree != series.runs[1].data[0].tree
    assert series.runs[0].data[0].since == "1 new, 1 the same"
    eventually(lambda: served(stack) == ["1", "2"], stack)
    stack.client.roll_back("retrained", reason="its users complain")
    eventually(lambda: served(stack) == ["1", "2", "1"], stack)


def served(stack: Stack) -> list[str]:
    """The version that each run of the page's DAG, which a new champion starts, has seen."""
    runs = stack.client.http.json("GET", "/api/v2/dags/serve_retrained/dagRuns")["dag_runs"]
    path = "/api/v2/dags/serve_retrained/dagRuns/{}/taskInstances/load/logs/1?full_content=true"
    seen = []
    for run in sorted(runs, key=lambda run: run["run_after"]):
        if run["state"] == "success":
            log = stack.client.http.json("GET", path.format(quote(run["dag_run_id"], safe="")))
            text = "\n".join(str(entry.get("event")) for entry in log["content"])
            seen += re.findall(r"new champion: (\d+)", text)[-1:]
    return seen


def ages(first: int) -> bytes:
    return b"age\n" + b"".join(b"%d\n" % age for age in range(first, first + 50))


def test_a_job_on_new_data_of_a_bucket_with_keys_trains_only_if_it_has_drifted(stack: Stack) -> None:
    stack.client.set_secret("drifting-bucket", {"access_key": "nobody", "secret_key": "not-this-one"})
    with watched(stack, DRIFTING):
        refused = eventually(lambda: waits_for(stack, "drifting", "drifting-bucket"), stack)
        assert "not-this-one" not in refused
        stack.client.set_secret("drifting-bucket", stack.s3_keys())
        eventually(lambda: waits_for(stack, "drifting", "no data at s3://datasets/drifting/"), stack)
        reasons = []
        for number, first in enumerate((20, 21, 60), 1):
            stack.put_object("datasets", f"drifting/{number}.csv", ages(first))
            job = eventually(lambda n=number: len(found := jobs(stack, "drifting")) == n and found[0], stack)
            detail = stack.end(job.id)
            assert detail.state == "COMPLETED", pretty(detail)
            reasons.append([each.reason for each in detail.transitions])
    assert "drifting has no champion yet" in reasons[0]
    assert reasons[1][-1] == (
        "not trained: no drift: column age is 0.02 away from what version 1 of drifting was trained on; 0.2 is asked"
    )
    assert any(reason.startswith("the data has drifted: column age is 0.28 away from") for reason in reasons[2])
    assert [run.version for run in stack.client.series_of("drifting").runs] == ["2", None, "1"]
