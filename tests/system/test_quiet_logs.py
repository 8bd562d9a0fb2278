"""A stack that starts and trains writes nothing that looks like a fault, so that a fault is seen in its logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from system_helpers import REPOSITORY, Stack, log_sizes, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.turn(0), pytest.mark.timeout(600)]

LOUD = re.compile(r"warning|error|critical|traceback|deprecat|async thread was blocked", re.IGNORECASE)
# A library's own words, which no setting of it takes away.
KNOWN = {
    r"mlflow\.server\.auth: This feature is still experimental": "MLflow, once at each start",
    r"SimpleAuthManager is active but the deployment shape": "Airflow, of any executor whose name it does not know",
    r"Starting call to 'airflow\.sdk\.api\.client\.Client\.request'": "Airflow, when it asks its busy api-server again",
    r"Pydantic serializer warnings|PydanticSerializationUnexpectedValue.*StructuredLogMessage": (
        "Airflow, when a log is asked for as one JSON document: the type of its answer has lines of text first"
    ),
    r"AssetModel SerializedAsset\(.*not found; cannot create asset event|Emitting event for inactive AssetModel": (
        "Airflow, at the first event of an asset that no DAG names: it creates the asset and then records the event"
    ),
}


def loud(sizes: dict[Path, int], until: dict[Path, int]) -> Iterator[str]:
    """The loud lines that were written between two moments."""
    for path, end in until.items():
        with path.open("rb") as file:
            file.seek(sizes.get(path, 0))
            text = file.read(end - sizes.get(path, 0)).decode(errors="replace")
        for line in text.splitlines():
            if LOUD.search(line) and not any(re.search(known, line) for known in KNOWN):
                yield f"{path.name}: {line[:400]}"


def test_a_stack_that_starts_and_trains_says_nothing_loud(stack: Stack) -> None:
    # Airflow starts tasks while its api-server still loads: on a busy machine their requests time out, the scheduler
    # says so and starts them again. A job that has ended shows that this is over.
    stack.end(stack.submit(shell_job("first", "true")))
    before = log_sizes(stack.home)
    script = "echo begun; mkdir c; touch c/COMPLETE; mv c $CHECKPOINT_DIR/step-1; echo 1 > $RESULT_DIR/result; sleep 3"
    detail = stack.end(stack.submit(shell_job("quiet", script, checkpoints={"every": "1s"})))
    assert detail.state == "COMPLETED", pretty(detail)
    started = {path: size for path, size in stack.started.items() if path.name != "airflow-scheduler.log"}
    found = [*loud({}, started), *loud(before, log_sizes(stack.home))]
    assert not found, "\n".join(found)


def test_a_whole_life_cycle_and_the_pages_beside_it_say_nothing_loud(stack: Stack) -> None:
    """Data that is judged, checkpoints that are retired, evaluation, export, registration and promotion; then what a
    person looks at: a task's log in Airflow, the list of jobs and the job's page."""
    folder = REPOSITORY / "jobs" / "digits-cnn"
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    manifest["params"]["epochs"] = 2
    manifest["checkpoints"] = {**manifest["checkpoints"], "every": "1s", "keep": {"latest": 1}}
    manifest["export"] |= {"register_as": "digits-quiet", "promote_if": {"val_accuracy": ">= 0"}}
    stack.end(stack.submit(shell_job("before", "true")))
    before = log_sizes(stack.home)
    detail = stack.end(stack.submit(manifest, base=folder))
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.model is not None
    assert stack.task_log(detail, "train").strip()
    assert "samples to train on" in stack.log(detail.id)
    assert detail.id in stack.job_page(detail.id)
    with stack.client.http.download("/updraft/jobs", {}) as page:
        assert detail.id in page.read().decode()
    found = list(loud(before, log_sizes(stack.home)))
    assert not found, "\n".join(found)
    # Airflow warns that it cannot create the event of the promotion (KNOWN), and then does.
    answer = stack.client.http.json("GET", "/api/v2/assets/events", params={"source_run_id": detail.id})
    assert [event["uri"] for event in answer["asset_events"]] == ["updraft://models/default/digits-quiet"]
