"""Elastic jobs on a real stack: they grow into free devices, shrink for a newcomer, and train every sample once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from system_helpers import Stack, pretty, running_stack, shell_job, until

from updraft.ledger import Ledger

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]
GPUS = 4
SAMPLES = 230_000
PROGRAM = """
import json, os, time
import updraft_learner as updraft

# A step takes as long as a real one would whose learners share the batch: 0.4 ms for each sample.
batch, learners = int(os.environ["UPDRAFT_BATCH"]), updraft.world_size()
checkpoints = updraft.checkpoint_dir()
stored = sorted(checkpoints.glob("step-*/state.json"))
state = json.loads(stored[-1].read_text()) if stored else {"step": 0, "samples": 0, "sizes": []}
state["sizes"].append([learners, batch, float(os.environ["UPDRAFT_LR_SCALE"])])

def save():
    if updraft.rank() == 0:
        name = f"step-{state['step']:010d}"
        (checkpoints / (".tmp-" + name)).mkdir()
        (checkpoints / (".tmp-" + name) / "state.json").write_text(json.dumps(state))
        (checkpoints / (".tmp-" + name)).rename(checkpoints / name)
        (checkpoints / name / "COMPLETE").touch()

saved = time.monotonic()
while state["samples"] < int(os.environ["SAMPLES"]):
    time.sleep(0.0004 * batch / learners + 0.01)
    state["step"] += 1
    state["samples"] += batch
    if updraft.rank() == 0:
        updraft.log_metrics({"samples": state["samples"]}, step=state["step"])
    if updraft.stop_requested():
        save()
        updraft.preempted_exit()
    if time.monotonic() - saved > 2:
        save()
        saved = time.monotonic()
if updraft.rank() == 0:
    (updraft.result_dir() / "sizes.json").write_text(json.dumps(state))
"""


def elastic_job(name: str, **elastic: Any) -> dict[str, Any]:
    limits = {"min_learners": 1, "max_learners": 4, "min_batch": 32, "max_batch": 256, "lr": "linear", **elastic}
    manifest = shell_job(name, "python train.py", code=name, resources={"cpus": 0.1, "memory": "128MiB", "gpus": 1})
    manifest["image"] = "updraft/sidecar:0.1"
    manifest["env"] = {"SAMPLES": str(SAMPLES)}
    del manifest["framework"]
    return {**manifest, "elastic": limits, "checkpoints": {"every": "2s", "keep": {"latest": 2}}}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    variables = {"UPDRAFT_RESIZE_MINUTES": "0.1"}
    with running_stack("elastic", variables, gpus=GPUS) as running:
        yield running


@pytest.fixture
def code(tmp_path: Path) -> Callable[[str], Path]:
    def written(name: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(PROGRAM)
        return tmp_path

    return written


def sizes_of(stack: Stack, job: str) -> list[int]:
    attempts = stack.client.attempts(job).attempts
    return [a.learners for a in attempts if a.role == "train"]


def test_a_job_grows_and_shrinks_for_a_newcomer(stack: Stack, code: Callable[[str], Path], tmp_path: Path) -> None:
    job = stack.submit(elastic_job("stretchy"), code("stretchy"))
    until(lambda: sizes_of(stack, job)[-1:] == [4], "it never had all devices")
    stack.reach(job, "PROCESSING")
    fixed = shell_job("newcomer", "sleep 15", resources={"cpus": 0.1, "memory": "64MiB", "gpus": 2, "learners": 1})
    newcomer = stack.end(stack.submit(fixed, tmp_path))
    assert newcomer.state == "COMPLETED", pretty(newcomer)
    ended = stack.end(job)
    assert ended.state == "COMPLETED", pretty(ended)
    sizes = sizes_of(stack, job)
    assert sizes[:3] == [2, 4, 2], sizes  # begins with twice its fewest, grows, shrinks for the newcomer
    told = [(t.state, t.reason) for t in stack.client.transitions(job).transitions]
    resized = [reason for state, reason in told if state == "RESIZING"]
    assert any("makes room for newcomer" in reason for reason in resized), told
    assert not [state for state, _ in told if state == "RECOVERING"], told
    attempts = [a for a in stack.client.attempts(job).attempts if a.role == "train"]
    assert {a.label for a in attempts[:-1]} == {"grant.resized"}
    assert all(a.resume for a in attempts[1:])
    files = stack.client.download(job, "results", tmp_path / "results")
    (result,) = [json.loads(path.read_text()) for path in files if path.name == "sizes.json"]
    assert result["samples"] >= SAMPLES
    assert [size for size, _, _ in result["sizes"]] == sizes
    assert all(scale == batch / 32 for _, batch, scale in result["sizes"])
    held = Ledger(f"sqlite:///{stack.home / 'ledger.db'}").queue.used(datetime(2020, 1, 1, tzinfo=UTC))
    for at in sorted({use.granted_at for use in held}):
        now = [use for use in held if use.granted_at <= at and (use.released_at is None or use.released_at > at)]
        assert sum(use.learners * use.gpus for use in now) <= GPUS, (at, now)
