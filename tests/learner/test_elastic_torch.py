"""Elastic trainings of real processes over gloo: every sample once per epoch, whatever happens to the learners."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

import torch
from learner.elastic_runs import HANG_SECONDS, SETTLE_SECONDS, Run

from updraft_learner import elastic

pytestmark = [pytest.mark.torch, pytest.mark.turn(0), pytest.mark.timeout(240)]
STEPS_SECONDS = 5.0  # what a loaded machine may add to a bound
EVENTS = int(os.environ.get("UPDRAFT_ELASTIC_EVENTS") or 6)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(**given: Any) -> Run:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        runs.append(Run(folder, **given).__enter__())
        return runs[-1]

    yield start
    for run in runs:
        run.__exit__()


def test_learners_join_and_leave_while_the_others_train(start: Callable[..., Run]) -> None:
    run = start(first=1)
    run.start("a")
    run.wait_for_group("a")
    run.start("b")
    run.wait_for_group("a", "b")
    run.start("c", "d")
    run.wait_for_group("a", "b", "c", "d")
    run.signal("b", signal.SIGTERM)
    run.wait_for_group("a", "c", "d")
    run.signal("a", signal.SIGTERM)  # the leader
    run.wait_for_group("c", "d")
    run.signal("c", signal.SIGTERM)
    run.wait_for_group("d")
    assert run.outcomes() == {"a": "left", "b": "left", "c": "left", "d": "finished"}
    assert run.audit() >= 5


@pytest.mark.parametrize("victim", ["leader", "member"])
def test_a_killed_learner_costs_a_step(start: Callable[..., Run], victim: str) -> None:
    run = start(first=3)
    run.start("a", "b", "c")
    run.wait_for_group("a", "b", "c")
    members = run.status()["members"]
    killed = members[0] if victim == "leader" else members[1]
    left = [name for name in members if name != killed]
    run.signal(killed, signal.SIGKILL)
    assert run.wait_for_group(*left) < STEPS_SECONDS
    assert run.outcomes() == {killed: "killed", left[0]: "finished", left[1]: "finished"}
    run.audit()


def test_all_but_one_are_killed_at_once(start: Callable[..., Run]) -> None:
    run = start(first=3)
    run.start("a", "b", "c")
    run.wait_for_group("a", "b", "c")
    kept = run.status()["members"][1]
    for name in {"a", "b", "c"} - {kept}:
        run.signal(name, signal.SIGKILL)
    run.wait_for_group(kept)
    run.start("d")
    run.wait_for_group(kept, "d")
    assert run.outcomes()[kept] == "finished"
    run.audit()


@pytest.mark.parametrize("victim", ["leader", "member"])
def test_a_stopped_learner_is_left_behind_and_fenced_when_it_comes_back(start: Callable[..., Run], victim: str) -> None:
    run = start(first=3)
    run.start("a", "b", "c")
    run.wait_for_group("a", "b", "c")
    members = run.status()["members"]
    stopped = members[0] if victim == "leader" else members[1]
    left = [name for name in members if name != stopped]
    run.signal(stopped, signal.SIGSTOP)
    assert run.wait_for_group(*left) < HANG_SECONDS + SETTLE_SECONDS + STEPS_SECONDS
    run.signal(stopped, signal.SIGCONT)
    run.wait("it is fenced", lambda: run.last(stopped).get("outcome") == "fenced", 2 * HANG_SECONDS)
    assert run.outcomes() == {stopped: "fenced", left[0]: "finished", left[1]: "finished"}
    run.audit()


def test_training_needs_no_coordinator_but_resizes_do(start: Callable[..., Run]) -> None:
    run = start(first=2)
    run.start("a", "b")
    run.wait_for_group("a", "b")
    run.kill_coordinator()
    run.wait_for_group("a", "b", steps=20)
    run.start("c")
    run.wait("c is prepared", lambda: run.lines("c"))
    run.wait_for_group("a", "b", steps=5)
    run.start_coordinator()
    run.wait_for_group("a", "b", "c")
    # A learner dies while there is no coordinator: the others wait for it.
    run.kill_coordinator()
    run.signal("a", signal.SIGKILL)
    run.start_coordinator()
    run.wait_for_group("b", "c")
    assert run.outcomes() == {"a": "killed", "b": "finished", "c": "finished"}
    run.audit()


def test_leader_and_coordinator_are_killed_together_while_a_learner_joins(start: Callable[..., Run]) -> None:
    run = start(first=3)
    run.start("a", "b", "c")
    run.wait_for_group("a", "b", "c")
    leader, *others = run.status()["members"]
    run.start("d")
    run.wait("d is prepared", lambda: run.lines("d"))
    run.signal(leader, signal.SIGKILL)
    run.kill_coordinator()
    run.start_coordinator()
    run.wait_for_group(*others, "d")
    assert run.outcomes() == {leader: "killed", others[0]: "finished", others[1]: "finished", "d": "finished"}
    run.audit()


@pytest.mark.timeout(120 + 40 * EVENTS)
def test_a_schedule_of_random_resizes_and_kills(start: Callable[..., Run]) -> None:
    """UPDRAFT_ELASTIC_EVENTS sets their number; UPDRAFT_ELASTIC_SEED the schedule."""
    disturb(start(first=2, epochs=20 + 12 * EVENTS), EVENTS)


@pytest.mark.large
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("options", [{}, {"virtual_ranks": 4, "sharded": True}])
def test_fifty_random_resizes_and_kills(start: Callable[..., Run], options: dict[str, Any]) -> None:
    run = start(first=2, epochs=620, **options)
    disturb(run, 50)
    if "virtual_ranks" in options:
        alone = start(first=1, epochs=620, virtual_ranks=options["virtual_ranks"])
        alone.start("alone")
        assert alone.outcomes(600.0) == {"alone": "finished"}
        finished = [end for name in run.pids if (end := run.last(name)).get("outcome") == "finished"]
        assert {end["model"] for end in finished} == {alone.last("alone")["model"]}


def disturb(run: Run, events: int) -> None:
    """Let learners join, leave, be killed and be stopped at random, one after the other; then audit the training."""
    chance = random.Random(int(os.environ.get("UPDRAFT_ELASTIC_SEED") or 0))
    run.start("n0", "n1")
    group, stopped, number = ["n0", "n1"], [], 2
    run.wait_for_group(*group)
    done: list[str] = []
    for _ in range(events):
        kind = chance.choice(["join", "join", "leave", "kill", "kill", "stop", "coordinator", "join and kill"])
        if len(group) == 1 or ("join" in kind and len(group) < 4):
            kind = kind if "join" in kind else "join"
        elif "join" in kind:
            kind = "kill"
        done.append(kind)
        if "join" in kind:
            run.start(f"n{number}")
            newcomer, number = f"n{number}", number + 1
            if kind == "join and kill" and len(group) > 1:
                run.wait("it is prepared", lambda name=newcomer: run.lines(name))  # type: ignore[misc]
                victim = group.pop(chance.randrange(len(group)))
                run.signal(victim, signal.SIGKILL)
            group.append(newcomer)
        elif kind == "coordinator":
            run.kill_coordinator()
            run.start_coordinator()
        else:
            victim = group.pop(chance.randrange(len(group)))
            numbers = {"leave": signal.SIGTERM, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}
            run.signal(victim, numbers[kind])  # type: ignore[index]
            if kind == "stop":
                stopped.append(victim)
        run.wait_for_group(*group, steps=chance.randrange(1, 6), seconds=40.0)
        while stopped and chance.random() < 0.5:
            run.signal(stopped.pop(), signal.SIGCONT)
    for name in stopped:
        run.signal(name, signal.SIGCONT)
    assert run.status()["state"] != "finished", f"the training was too short for {done}"
    outcomes = run.outcomes(100.0 + 5 * events)
    assert {name for name, outcome in outcomes.items() if outcome == "finished"} == set(group), (done, outcomes)
    run.audit()


def test_what_cannot_be_elastic_is_refused_with_the_way_out() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="map-style data set"):
        elastic.init(model, optimizer, Stream(), batch=2, epochs=1)
    with pytest.raises(TypeError, match="not its DataLoader"):
        elastic.init(model, optimizer, torch.utils.data.DataLoader([1, 2]), batch=2, epochs=1)
    with pytest.raises(ValueError, match="batch is 0"):
        elastic.init(model, optimizer, [1, 2], batch=0, epochs=1)
    training = elastic.init(model, optimizer, [torch.ones(2)] * 5, batch=2, epochs=1)
    with pytest.raises(RuntimeError, match="for batch in training"):
        training.step(model(torch.ones(2)).sum())


def test_a_program_trains_alone_outside_the_platform_and_resumes_from_a_state() -> None:
    def program() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        data = torch.arange(22.0).reshape(11, 2) / 22
        return model, elastic.init(model, torch.optim.SGD(model.parameters(), 0.1, 0.9), data, batch=4, epochs=3)

    model, training = program()
    kept: dict[str, Any] = {}
    seen = []
    for batch in training:
        if training.steps == 4:
            kept = {**training.state_dict(), "model": {k: v.clone() for k, v in model.state_dict().items()}}
            kept["optimizer"] = {
                **kept["optimizer"],
                "state": {
                    k: {"momentum_buffer": v["momentum_buffer"].clone()} for k, v in kept["optimizer"]["state"].items()
                },
            }
        seen.append(batch)
        assert training.step(model(batch).square().mean())
    assert (training.outcome, training.steps, [len(batch) for batch in seen]) == ("finished", 9, [4, 4, 3] * 3)

    again, resumed = program()
    resumed.load_state_dict(kept)
    rest = []
    for batch in resumed:
        rest.append(batch)
        resumed.step(again(batch).square().mean())
    assert all(torch.equal(a, b) for a, b in zip(rest, seen[4:], strict=True))
    assert torch.equal(again.weight, model.weight)


def test_a_hook_of_the_optimizer_clips_the_gradient_of_the_whole_batch_once_a_step() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.arange(16.0).reshape(8, 2)
    training = elastic.init(model, optimizer, data, batch=4, epochs=1, virtual_ranks=4)
    norms: list[float] = []

    def clip(*_: object) -> None:
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)))

    optimizer.register_step_pre_hook(clip)
    moved = []
    for batch in training:
        before = torch.cat([each.detach().flatten() for each in model.parameters()])
        if training.step(model(batch).square().mean()):
            after = torch.cat([each.detach().flatten() for each in model.parameters()])
            moved.append(float((after - before).norm()))
    assert len(norms) == 2
    assert min(norms) > 1
    assert moved == pytest.approx([0.001, 0.001], rel=1e-3)
