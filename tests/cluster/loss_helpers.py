"""Jobs that lose their place on the test cluster: a program that counts, and what has to hold once it went on.

Called by the tests of losses, of nodes and of faults of the cluster's API.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from account_helpers import NAMESPACE
from cluster_helpers import eventually
from kubecluster.images import ctr
from kubecluster.machines import run_on
from kubecluster.parts import GPU, GPU_TYPE_LABEL, GPUS
from platform_helpers import OwnPlatform, Platform
from system_helpers import shell_job

from updraft_learner.contract import LABEL_JOB, MAIN_CONTAINER, SIDECAR_CONTAINER, Keys

WITHIN_SECONDS = 300.0
STEPS = 20  # a second each
H100 = {"learners": 1, "cpus": 0.25, "memory": "128MiB", "gpus": 2, "gpu_type": "nvidia-h100"}
BEGINS = "begins after step "


def _all_gpus(node: str) -> dict[str, Any]:
    """For a pod that holds them, and that the platform does not count: it looks like one of another Updraft."""
    limits = {GPU: str(GPUS[node].count)}
    labels = {LABEL_JOB: "of-another-updraft"}
    return {
        "labels": labels,
        "base": {"resources": {"limits": limits}},
        "nodeSelector": {GPU_TYPE_LABEL: GPUS[node].kind},
    }


ALL_A100, ALL_H100 = _all_gpus("node-a"), _all_gpus("node-b")


def counting(name: str, steps: int = STEPS, **fields: Any) -> dict[str, Any]:
    """A program below its shell that saves each step, leaves when it is told, and would else count to its end."""
    checkpoints = {"every": "1s", "keep": {"latest": 3}}
    return shell_job(name, f"sh steps.sh {steps}; exit $?", code=".", checkpoints=checkpoints, **fields)


def begun(platform: Platform, job_id: str) -> str:
    """The pod of a job that has stored a checkpoint, while its program runs."""

    def stored() -> Any:
        detail = platform.client.job(job_id)
        assert not detail.ended, platform.explained(job_id)
        return detail.state == "PROCESSING" and platform.client.checkpoints(job_id).checkpoints

    eventually(stored, within_seconds=WITHIN_SECONDS)
    name = platform.witness.running(job_id)
    assert name, platform.explained(job_id)
    return str(name)


def evict(platform: Platform, job_id: str) -> None:
    """Ask the running learner to leave, as `kubectl drain` does."""
    name = platform.witness.running(job_id)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": platform.namespace},
    }
    platform.witness.core.create_namespaced_pod_eviction(name, platform.namespace, eviction)


def told(platform: Platform, job_id: str, words: str) -> None:
    """People are shown these words as the reason of a job that has not ended."""

    def shown() -> bool:
        detail = platform.client.job(job_id)
        assert not detail.ended, platform.explained(job_id)
        return words in str(detail.reason)

    eventually(shown, within_seconds=WITHIN_SECONDS)


def went_on(platform: Platform, job_id: str, label: str) -> Any:
    """Completed by the second attempt, which began where a checkpoint of the first one was. The job's detail."""
    detail = platform.completed(job_id)
    first, second = platform.client.attempts(job_id).attempts
    assert (first.label, second.label) == (label, "done"), platform.explained(job_id)
    assert second.resume is not None
    assert second.resume.checkpoint
    assert 0 < resumed_after(platform, job_id) < detail.metrics["step"]
    platform.nothing_is_left(job_id)
    return detail


def resumed_after(platform: Platform, job_id: str) -> int:
    """The step that the newest attempt went on from."""
    began = [line for line in platform.log(job_id).splitlines() if line.startswith(BEGINS)]
    return int(began[-1].removeprefix(BEGINS))


def undisturbed(platform: Platform, job_id: str, steps: int) -> None:
    """Completed by its only attempt, and no line of its log is lost or there twice."""
    platform.completed(job_id)
    (attempt,) = platform.client.attempts(job_id).attempts
    assert attempt.label == "done", platform.explained(job_id)
    assert platform.log(job_id).splitlines() == [f"{BEGINS}0", *(f"step {n}" for n in range(1, steps + 1))]
    platform.nothing_is_left(job_id)


def last_step(platform: Platform, job_id: str) -> int:
    """Of the checkpoints that are stored; they reach the store from the learner, without the cluster's API."""
    found = platform.client.checkpoints(job_id, all=True).checkpoints
    return max((checkpoint.step or 0 for checkpoint in found), default=0)


class OnNode:
    """A pod as its node itself shows it, whether or not its kubelet lives and the API server knows it."""

    def __init__(self, platform: OwnPlatform, pod: dict[str, Any]) -> None:
        self.node, self._uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        self._layout = platform.cluster.layout
        name = f"{NAMESPACE}_{pod['metadata']['name']}_{self._uid}"
        self._folder = self._layout.disk_of(self.node) / "log" / "pods" / name

    def said(self, container: str) -> str:
        return "".join(file.read_text() for file in sorted((self._folder / container).glob("*.log")))

    def program_said(self, line: str) -> bool:
        return f" {line}\n" in self.said(MAIN_CONTAINER)

    def fell_silent(self) -> bool:
        """Whether its sidecar knows that a newer attempt has taken over."""
        return "stores and sends nothing any more" in self.said(SIDECAR_CONTAINER)

    def runs(self) -> bool:
        """Whether a container of it does."""
        its = f'labels."io.kubernetes.pod.uid"=={self._uid}'
        found = self._ctr("containers", "list", "--quiet", its).split()
        tasks = (line.split() for line in self._ctr("tasks", "list").splitlines())
        return any(task[0] in found and task[-1] == "RUNNING" for task in tasks)

    def _ctr(self, *arguments: str) -> str:
        done = run_on(self._layout, self.node, [*ctr(self._layout), *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout


def stored_by(platform: OwnPlatform, job_id: str, attempt: int) -> dict[str, tuple[int, bytes]]:
    """Size and content of every file that the attempt has in the object store."""
    bucket = platform.home / "s3" / "updraft"
    folder = bucket / Keys("default").job(job_id) / "attempts" / f"train-{attempt}"
    return {str(path.relative_to(folder)): (path.stat().st_size, path.read_bytes()) for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root) / name for name in names)
