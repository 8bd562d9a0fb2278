"""Learners join, leave and die while the others train, on a real Kubernetes. They need the image of PyTorch."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_helpers import eventually
from counted_training import HURRY, check_counts, counted_job, written
from kubernetes import client
from platform_helpers import OwnPlatform

from updraft.exceptions import RefusedError
from updraft_learner.contract import LABEL_JOB, LABEL_LEARNER, MAIN_CONTAINER, Keys
from updraft_learner.elastic.report import GroupReport

pytestmark = pytest.mark.cluster
WITHIN_SECONDS = 300.0
EVENTS = int(os.environ.get("UPDRAFT_CLUSTER_EVENTS") or 50)
KILL = """
import os
for process in filter(str.isdigit, os.listdir('/proc')):
    if int(process) != os.getpid() and b'train.py' in open(f'/proc/{process}/cmdline', 'rb').read():
        os.kill(int(process), 9)
"""


class Gang:
    """The pods of a job's learners, to which tests do things."""

    def __init__(self, platform: OwnPlatform, job: str) -> None:
        self.platform, self.job = platform, job

    def pods(self) -> dict[int, str]:
        """Return the pods whose programs run and that nobody removes, by learner; the coordinator's is 0."""
        found = {}
        for pod in self.platform.witness._now(f"{LABEL_JOB}={self.job}")["pod"]:
            for status in pod["status"].get("containerStatuses") or ():
                runs = status["name"] == MAIN_CONTAINER and "running" in status["state"]
                if runs and "deletionTimestamp" not in pod["metadata"]:
                    found[int(pod["metadata"]["labels"][LABEL_LEARNER])] = pod["metadata"]["name"]
        return found

    def learners(self) -> list[int]:
        return sorted(n for n in self.pods() if n)

    def trains(self) -> tuple[int, ...]:
        """Return who trains; nobody while that changes."""
        group = self.group()
        return group.learners if group.state == "training" else ()

    def group(self) -> GroupReport:
        """Return what the coordinator says of the learners of the first attempt."""
        stored = self.platform.home / "s3" / "updraft" / Keys("default").group(self.job, "train", 1)
        try:
            return GroupReport.from_json(stored.read_bytes())
        except (OSError, ValueError):  # there is none yet, or it is just being written
            return GroupReport()

    def kill(self, learner: int) -> None:
        """End the program of a learner by SIGKILL, in its container."""
        try:
            self._in_container(learner, "python", "-c", KILL)
        except AssertionError as exc:
            if "exit code 137" not in str(exc):  # it may die with its container
                raise

    def delete(self, learner: int) -> None:
        """Remove a pod from the API at once, as a node that is lost."""
        core, name = self.platform.witness.core, self.pods()[learner]
        core.delete_namespaced_pod(name, self.platform.namespace, grace_period_seconds=0)

    def evict(self, learner: int) -> None:
        """Ask a pod to leave, as `kubectl drain` does. Raises ApiException if its disruption budget forbids that."""
        name, namespace = self.pods()[learner], self.platform.namespace
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        self.platform.witness.core.create_namespaced_pod_eviction(name, namespace, eviction)

    def hurry(self) -> None:
        """Let those that train now do the rest as fast as they can."""
        for learner in self.learners():
            self._in_container(learner, "touch", HURRY)

    def _in_container(self, learner: int, *command: str) -> None:
        name = self.pods().get(learner)
        if name is not None:
            self.platform.kubectl("exec", "-n", self.platform.namespace, name, "-c", MAIN_CONTAINER, "--", *command)


@pytest.fixture
def started(own_platform: OwnPlatform, pytorch_image: None, tmp_path: Path) -> Callable[..., Gang]:
    def start(name: str, epochs: int) -> Gang:
        manifest = counted_job(name, epochs=epochs, seconds=0.2)
        job = own_platform.submit(manifest, written(tmp_path, name))
        gang = Gang(own_platform, job)
        eventually(lambda: own_platform.client.job(job).state == "PROCESSING", within_seconds=WITHIN_SECONDS)
        eventually(lambda: len(gang.trains()) == 3, within_seconds=WITHIN_SECONDS)
        return gang

    return start


def completed(gang: Gang, epochs: int, folder: Path) -> list[tuple[str, str]]:
    """Let the job end, check it, and return what people are told of it."""
    platform, job = gang.platform, gang.job
    gang.hurry()
    platform.completed(job)
    attempts = [each for each in platform.client.attempts(job).attempts if each.role == "train"]
    assert len(attempts) == 1, platform.explained(job)
    check_counts(platform.client.download(job, "results", folder / "results"), epochs)
    told = [(each.state, str(each.reason)) for each in platform.client.transitions(job).transitions]
    assert not any(state == "RECOVERING" for state, _ in told), told
    platform.nothing_is_left(job)
    return told


def test_a_job_grows_shrinks_and_loses_learners(started: Callable[..., Gang], tmp_path: Path) -> None:
    epochs = 4000
    gang = started("stretchy", epochs)
    client_ = gang.platform.client
    first = min(gang.learners())
    gang.kill(first)  # the leader
    eventually(lambda: first not in gang.trains() and len(gang.trains()) == 3, within_seconds=WITHIN_SECONDS)
    gang.delete(0)  # the coordinator
    eventually(lambda: 0 in gang.pods(), within_seconds=WITHIN_SECONDS)
    drained = min(gang.learners())
    eventually(lambda: _worked(lambda: gang.evict(drained)), within_seconds=WITHIN_SECONDS)
    eventually(lambda: drained not in gang.trains() and len(gang.trains()) == 3, within_seconds=WITHIN_SECONDS)
    eventually(lambda: _worked(lambda: client_.scale(gang.job, 1)), within_seconds=WITHIN_SECONDS)
    eventually(lambda: len(gang.trains()) == 1, within_seconds=WITHIN_SECONDS)
    told = completed(gang, epochs, tmp_path)
    assert any(state == "RESIZING" and f"learner {first} was killed" in reason for state, reason in told), told
    assert any(state == "PROCESSING" and "stood still for" in reason for state, reason in told), told
    assert {"pod", "secret", "service", "networkpolicy"} <= gang.platform.witness.kinds(gang.job)


def test_a_random_schedule_of_resizes_and_losses(started: Callable[..., Gang], tmp_path: Path) -> None:
    """UPDRAFT_CLUSTER_EVENTS sets how many; UPDRAFT_EVENTS_SEED repeats them. Somebody who trains is always left."""
    seed = int(os.environ.get("UPDRAFT_EVENTS_SEED") or time.time())
    rng, epochs = random.Random(seed), 8_000
    gang = started("disturbed", epochs)
    gone: set[int] = set()
    done: list[str] = []
    while len(done) < EVENTS:
        time.sleep(rng.choice((0.3, 2.0, 6.0)))
        detail = gang.platform.client.job(gang.job)
        assert not detail.ended, (seed, done, gang.platform.explained(gang.job))
        if (told := _disturb(gang, rng, gone)) is not None:
            done.append(told)
            print(f"{seed}: {detail.state}: {told}", flush=True)
    completed(gang, epochs, tmp_path)


def _disturb(gang: Gang, rng: random.Random, gone: set[int]) -> str | None:
    """Do one thing to the job; return what. None: it was not possible now."""
    event = rng.choice(("kill", "delete", "evict", "coordinator", "scale", "scale"))
    if event == "coordinator":
        return event if _worked(lambda: gang.delete(0)) else None
    if event == "scale":
        wanted = rng.randint(1, 3)
        return f"scale to {wanted}" if _worked(lambda: gang.platform.client.scale(gang.job, wanted)) else None
    holders = [n for n in gang.group().learners if n not in gone]  # whoever has the state; newcomers may have none
    there = [n for n in gang.learners() if n not in gone and (n not in holders or len(holders) > 1)]
    if not holders or not there:
        return None
    victim = rng.choice(there)
    act: dict[str, Callable[[int], Any]] = {"kill": gang.kill, "delete": gang.delete, "evict": gang.evict}
    if not _worked(lambda: act[event](victim)):
        return None
    gone.add(victim)
    return f"{event} {victim}"


def _worked(act: Callable[[], Any]) -> bool:
    """Return whether the platform or the cluster did it, and did not refuse it or lose its object meanwhile."""
    try:
        act()
    except (RefusedError, client.ApiException, AssertionError, KeyError):
        return False
    return True
