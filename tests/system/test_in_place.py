"""Learners join and leave a running job on the local node while the others train, and are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from in_place_helpers import check_exactly_once, hurry, in_place_job, programs, send, slow_down, written
from system_helpers import Stack, pretty, running_stack, shell_job, until

from updraft.exceptions import RefusedError
from updraft.storage.groups import read_group

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    variables = {"UPDRAFT_RESIZE_MINUTES": "0.05", "UPDRAFT_ELASTIC_HANG_SECONDS": "10"}
    with running_stack("in-place", variables, gpus=3) as running:
        yield running


def members(stack: Stack, job: str) -> list[int]:
    """Return the learners whose programs run."""
    return sorted(programs(job))


def test_learners_join_leave_and_die_while_the_others_train(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    epochs = 600
    job = stack.submit(in_place_job("stretchy", folder, epochs=epochs), written(tmp_path, "stretchy"))
    until(lambda: len(members(stack, job)) == 3, "it did not grow")
    stack.reach(job, "PROCESSING")
    first = min(programs(job))
    send(signal.SIGKILL, [programs(job)[first]])  # the leader
    until(lambda: first not in programs(job) and len(programs(job)) == 3, "no learner came in its place")
    send(signal.SIGKILL, [programs(job, "updraft_learner.elastic.pod")[0]])
    until(lambda: 0 in programs(job, "updraft_learner.elastic.pod"), "the coordinator did not come back")
    newcomer = shell_job("newcomer", "sleep 5", resources={"cpus": 1.5, "memory": "64MiB", "learners": 1})
    assert stack.end(stack.submit(newcomer, tmp_path)).state == "COMPLETED"
    ended = stack.end(job)
    assert ended.state == "COMPLETED", pretty(ended)
    check_exactly_once(folder, epochs)
    attempts = [each for each in stack.client.attempts(job).attempts if each.role == "train"]
    assert len(attempts) == 1, attempts
    told = [(each.state, each.reason) for each in stack.client.transitions(job).transitions]
    print("\n".join(map(str, told)))
    assert not any(state == "RECOVERING" for state, _ in told), told
    assert any(state == "PROCESSING" and "stood still for" in reason for state, reason in told), told
    assert any(state == "RESIZING" and f"learner {first} was killed" in reason for state, reason in told), told


def test_a_job_is_profiled_while_it_trains(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "profiled"
    folder.mkdir()
    job = stack.submit(in_place_job("profiled-job", folder, epochs=800, seconds=0.2), written(tmp_path, "profiled-job"))
    stack.reach(job, "PROCESSING")
    until(lambda: stack.client.job(job).sizes, "it has no sizes")
    done = stack.run("profile", job, "--min", "1", "--max", "2", "--json", timeout_seconds=300)
    assert done.returncode == 0, done.stderr
    found = {size["learners"]: size["step_seconds"] for size in json.loads(done.stdout)}
    assert found[1] > 1.3 * found[2], found
    refused = stack.run("scale", job, "9")
    assert refused.returncode != 0
    assert "9 is not a size that the job's manifest allows; write 1 to 3" in refused.stderr
    hurry(folder)
    ended = stack.end(job)
    assert ended.state == "COMPLETED", pretty(ended)
    check_exactly_once(folder, 800)


@pytest.mark.large
def test_a_slow_learner_is_replaced(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "steps-of-uneven"
    folder.mkdir()
    two = {"min_learners": 2, "max_learners": 2, "resize": "in_place"}  # the planner leaves it alone
    job = stack.submit(in_place_job("uneven", folder, epochs=2000, elastic=two), written(tmp_path, "uneven"))
    until(lambda: len(members(stack, job)) == 2, "it did not start")
    slow = members(stack, job)[1]
    slow_down(folder, slow)
    until(lambda: slow not in members(stack, job), "it was not replaced", seconds=240)
    until(lambda: len(members(stack, job)) == 2, "no learner came in its place")
    hurry(folder)
    ended = stack.end(job)
    assert ended.state == "COMPLETED", pretty(ended)
    check_exactly_once(folder, 2000)
    told = [(each.state, each.reason) for each in stack.client.transitions(job).transitions]
    assert any(state == "RESIZING" and f"learner {slow}: it needs" in reason for state, reason in told), told


EVENTS = ("kill", "kill", "freeze", "two", "coordinator", "learner and coordinator", "scale", "scale", "scale")


class Disturbed:
    """A job that events happen to, at any time. One learner that has the state is always left alone: if all of them
    die, the next attempt goes on from a checkpoint, which is another case."""

    def __init__(self, stack: Stack, job: str, rng: Random) -> None:
        self.stack, self.job, self.rng = stack, job, rng
        self.gone: set[int] = set()

    def victims(self, most: int) -> list[psutil.Process]:
        """Return up to so many learners, the leader first; the last one that has the state is none of them."""
        group = read_group("default", self.job, "train", 1, store=self.stack.store("updraft"))
        found = {n: process for n, process in programs(self.job).items() if n not in self.gone}
        holders = [n for n in (group.learners if group else ()) if n in found]
        chosen = (
            sorted(found)[:most] if self.rng.random() < 0.5 else self.rng.sample(sorted(found), min(most, len(found)))
        )
        if not set(holders) - set(chosen):
            chosen = [n for n in chosen if n not in holders[:1]]
        self.gone |= set(chosen)
        return [found[n] for n in chosen]

    def disturb(self, event: str) -> str | None:
        """Do one thing to the job; return what. None: it was not possible now."""
        coordinator = list(programs(self.job, "updraft_learner.elastic.pod").values())
        if event == "scale":
            wanted = self.rng.randint(1, 3)
            try:
                self.stack.client.scale(self.job, wanted)
            except RefusedError:
                return None
            return f"scale to {wanted}"
        if event == "coordinator":
            send(signal.SIGKILL, coordinator)
            return event if coordinator else None
        victims = self.victims(2 if event == "two" else 1)
        if not victims:
            return None
        send(signal.SIGSTOP if event == "freeze" else signal.SIGKILL, victims)
        if event == "learner and coordinator":
            send(signal.SIGKILL, coordinator)
        return f"{event}: {[process.pid for process in victims]}"


@pytest.mark.large
@pytest.mark.timeout(2400)
def test_fifty_resizes_and_kills(stack: Stack, tmp_path: Path) -> None:
    """The same job through 50 events at any time, also while another one is being mended."""
    seed = int(os.environ.get("UPDRAFT_EVENTS_SEED", str(int(time.time()))))
    print(f"UPDRAFT_EVENTS_SEED={seed}")
    rng = Random(seed)
    folder = tmp_path / "many"
    folder.mkdir()
    epochs = 4000
    raw = in_place_job("disturbed", folder, epochs=epochs, seconds=0.2)
    job = stack.submit(raw, written(tmp_path, "disturbed"))
    until(lambda: len(programs(job)) >= 2, "it did not begin")
    stack.reach(job, "PROCESSING")
    done: list[str] = []
    disturbed = Disturbed(stack, job, rng)
    while len(done) < 50:
        time.sleep(rng.choice((0.1, 0.3, 2.0, 6.0)))
        detail = stack.client.job(job)
        assert detail.state in ("PROCESSING", "RESIZING"), (detail.state, detail.reason, done)
        if (told := disturbed.disturb(rng.choice(EVENTS))) is not None:
            done.append(f"{detail.state}: {told}")
            print(done[-1], flush=True)
    hurry(folder)
    ended = stack.end(job)
    assert ended.state == "COMPLETED", pretty(ended)
    attempts = [each for each in stack.client.attempts(job).attempts if each.role == "train"]
    assert len(attempts) == 1, attempts
    check_exactly_once(folder, epochs)
    (weights,) = [
        json.loads(path.read_text())["weights"]
        for path in stack.client.download(job, "results", tmp_path / "results")
        if path.name == "steps.json"
    ]
    assert weights == pytest.approx(list(range(8)), abs=0.01)  # what an undisturbed run finds
