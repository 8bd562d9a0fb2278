"""Elastic trainings whose bits do not depend on the learners, and whose optimizer's state is in parts; on real ones."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

import torch
from learner.elastic_runs import Run

from updraft_learner import elastic

pytestmark = [pytest.mark.torch, pytest.mark.turn(0), pytest.mark.timeout(240)]


class InMemory:
    """A data set in shards."""

    def __init__(self, shards: list[list[float]]) -> None:
        self._shards = shards

    def shards(self) -> range:
        return range(len(self._shards))

    def open(self, shard: int, offset: int) -> Iterator[float]:
        yield from self._shards[shard][offset:]


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


def undisturbed(start: Callable[..., Run], *names: str, **given: Any) -> dict[str, Any]:
    """Return how a run ends that nobody disturbs."""
    run = start(first=len(names), **given)
    run.start(*names)
    assert set(run.outcomes().values()) == {"finished"}
    run.audit()
    return run.last(names[0])


def test_a_run_has_the_same_bits_with_any_number_of_learners(start: Callable[..., Run]) -> None:
    """With dropout, BatchNorm, AdamW, a scheduler, and last batches that not all virtual ranks have samples of."""
    given = {"virtual_ranks": 5, "samples": 131, "epochs": 4}  # the last step has 3 samples
    one = undisturbed(start, "a", **given)
    two = undisturbed(start, "a", "b", **given)
    three = undisturbed(start, "a", "b", "c", **given)
    assert one["digest"] == two["digest"] == three["digest"]


@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_with_resizes_and_kills_has_the_bits_of_one_without(start: Callable[..., Run], sharded: bool) -> None:
    given = {"virtual_ranks": 4, "epochs": 25, "max_grad_norm": 0.5}
    expected = undisturbed(start, "a", **given)
    run = start(first=2, sharded=sharded, alive=sharded, **given)
    run.start("a", "b")
    run.wait_for_group("a", "b")
    run.start("c", "d")
    run.wait_for_group("a", "b", "c", "d")
    run.signal("b", signal.SIGKILL)
    run.wait_for_group("a", "c", "d")
    run.signal("a", signal.SIGTERM)
    run.start("e")
    run.wait_for_group("c", "d", "e")
    run.signal("d", signal.SIGKILL)
    run.wait_for_group("c", "e")
    assert run.outcomes() == {"a": "left", "b": "killed", "c": "finished", "d": "killed", "e": "finished"}
    run.audit()
    assert run.last("c")["model"] == expected["model"]
    errors = (run.folder / "errors.txt").read_text()
    assert [f"knows that learner {name} was killed" in errors for name in "bdce"] == [sharded, sharded, False, False]


def test_two_learners_hold_each_part_of_the_optimizers_state(start: Callable[..., Run]) -> None:
    run = start(first=4, sharded=True)
    run.start("a", "b", "c", "d")
    run.wait_for_group("a", "b", "c", "d")
    assert set(run.outcomes().values()) == {"finished"}
    run.audit()
    held = [run.last(name)["held"] for name in "abcd"]
    assert sum(held) == 2 * 8  # the model has 8 parameters
    assert max(held) < 8


def test_several_learners_leave_at_once_and_hand_over_their_parts(start: Callable[..., Run]) -> None:
    given = {"virtual_ranks": 4, "epochs": 30}
    expected = undisturbed(start, "a", **given)
    run = start(first=4, sharded=True, **given)
    run.start("a", "b", "c", "d")
    run.wait_for_group("a", "b", "c", "d")
    members = run.status()["members"]
    for name in members[1:]:
        run.signal(name, signal.SIGTERM)
    run.wait_for_group(members[0])
    assert run.outcomes()[members[0]] == "finished"
    assert run.last(members[0])["model"] == expected["model"]


def test_both_copies_of_a_part_are_lost(start: Callable[..., Run]) -> None:
    """The learners say so and end; the platform starts new ones from the checkpoint."""
    run = start(first=4, sharded=True, pace=0.1)
    run.start("a", "b", "c", "d")
    run.wait_for_group("a", "b", "c", "d")
    members = run.status()["members"]
    for name in members[1:3]:
        run.signal(name, signal.SIGKILL)
    run.wait("the others end", lambda: not any(run.alive(name) for name in members))
    assert "is lost: both learners that held it are" in (run.folder / "errors.txt").read_text()


@pytest.mark.parametrize("end", ["both copies are lost", "stop"])
def test_a_sharded_training_goes_on_from_its_checkpoint(start: Callable[..., Run], tmp_path: Path, end: str) -> None:
    """With as many learners as the next launch has, and the bits of an undisturbed run."""
    given = {"virtual_ranks": 4, "epochs": 20}
    expected = undisturbed(start, "a", **given)
    given |= {"sharded": True, "checkpoints": tmp_path / "checkpoints"}
    run = start(first=4, **given)
    run.start("a", "b", "c", "d")
    run.wait_for_group("a", "b", "c", "d")

    def saved() -> int:
        return max((int(each.parent.name[5:15]) for each in tmp_path.glob("checkpoints/step-*/COMPLETE")), default=0)

    run.wait("a checkpoint", lambda: saved() > 2)
    if end == "stop":
        (run.folder / "stop").touch()
    else:
        for name in run.status()["members"][1:3]:
            run.signal(name, signal.SIGKILL)
    run.wait("all end", lambda: not any(run.alive(name) for name in "abcd"))
    newest = max(run.last(name).get("step", 0) for name in "abcd")
    assert newest < 13 * 20, "it was at its end"
    begins = saved() + 1
    if end == "stop":
        assert begins in (newest, newest + 1)  # the others may have begun the next step

    again = start(first=2, **given)
    again.start("e", "f")
    assert set(again.outcomes().values()) == {"finished"}
    assert again.lines("e")[1]["step"] == begins
    assert again.last("e")["model"] == expected["model"]


def test_the_gradient_of_a_step_is_clipped_as_torch_does() -> None:
    data = torch.arange(24.0).reshape(12, 2) / 8

    def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        return model, torch.optim.SGD(model.parameters(), 0.1, 0.9)

    model, optimizer = model_and_optimizer()
    training = elastic.init(model, optimizer, data, batch=4, epochs=2, max_grad_norm=0.3)
    batches = []
    for batch in training:
        batches.append(batch.clone())
        training.step(model(batch).square().mean())
    plain, optimizer = model_and_optimizer()
    longest = 0.0
    for batch in batches:
        optimizer.zero_grad()
        plain(batch).square().mean().backward()
        longest = max(longest, float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.3)))
        optimizer.step()
    assert longest > 0.3
    torch.testing.assert_close(plain.weight, model.weight)
    with pytest.raises(ValueError, match="max_grad_norm is 0; it must be above 0"):
        elastic.init(model, optimizer, data, batch=4, epochs=2, max_grad_norm=0)


def test_a_sharded_training_resumes_from_the_parts_of_its_checkpoint() -> None:
    def program() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        data = torch.arange(22.0).reshape(11, 2) / 22
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        return model, elastic.init(model, optimizer, data, batch=4, epochs=3, sharded=True)

    model, training = program()
    kept: dict[str, Any] = {}
    for batch in training:
        if training.steps == 4:
            kept = copy.deepcopy(training.state_dict())
        training.step(model(batch).square().mean())
    again, resumed = program()
    half = {**kept, "shards": {**kept["shards"], "states": {0: kept["shards"]["states"][0]}}}
    with pytest.raises(ValueError, match="state of 1 parameters is in none of the given parts"):
        resumed.load_state_dict([half])
    with pytest.raises(ValueError, match=r"of steps \[4, 5\]"):
        resumed.load_state_dict([kept, {**kept, "steps": 5}])
    other = {**half, "shards": {**kept["shards"], "states": {1: kept["shards"]["states"][1]}}}
    resumed.load_state_dict([half, other])
    for batch in resumed:
        resumed.step(again(batch).square().mean())
    assert torch.equal(again.weight, model.weight)


@pytest.mark.parametrize("rule", ["linear", "sqrt", "adascale"])
def test_a_grown_batch_uses_each_sample_once(start: Callable[..., Run], rule: str) -> None:
    run = start(first=1, grow=rule, batch=4, epochs=40)
    run.start("a")
    run.wait_for_group("a")
    run.start("b", "c")
    run.wait_for_group("a", "b", "c")
    run.signal("b", signal.SIGKILL)
    run.wait_for_group("a", "c")
    assert run.outcomes() == {"a": "finished", "b": "killed", "c": "finished"}
    run.audit()


def test_a_data_set_in_shards_is_used_exactly_once(start: Callable[..., Run]) -> None:
    given = {"in_shards": True, "lanes": 3, "virtual_ranks": 3, "epochs": 15}
    expected = undisturbed(start, "a", **given)
    run = start(first=1, **given)
    run.start("a")
    run.wait_for_group("a")
    run.start("b", "c")
    run.wait_for_group("a", "b", "c")
    run.signal("a", signal.SIGKILL)
    run.wait_for_group("b", "c")
    assert run.outcomes() == {"a": "killed", "b": "finished", "c": "finished"}
    run.audit()
    assert run.last("b")["model"] == expected["model"]


def test_worker_processes_fetch_the_samples(start: Callable[..., Run]) -> None:
    run = start(first=2, workers=1)
    run.start("a", "b")
    run.wait_for_group("a", "b")
    run.signal("a", signal.SIGKILL)
    run.wait_for_group("b")
    run.start("c")
    run.wait_for_group("b", "c")
    assert run.outcomes() == {"a": "killed", "b": "finished", "c": "finished"}
    run.audit()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grow": "cubic"}, "must be one of linear, sqrt, adascale"),
        ({"grow": "sqrt", "virtual_ranks": 2}, "exclude each other"),
        ({"virtual_ranks": -1}, "virtual_ranks is -1"),
        ({"workers": -1}, "workers is -1"),
        ({"data": InMemory([[1.0]]), "workers": 1}, "workers does not go with a data set in shards"),
        ({"data": InMemory([[1.0]]), "grow": "sqrt"}, "grow does not go with a data set in shards"),
        ({"data": InMemory([])}, "shards is 0"),
        ({"data": InMemory([[1.0]] * 9), "lanes": 4}, "batch is 2; with 4 lanes it must be at least 4"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        elastic.init(model, optimizer, **{"data": [1, 2], "batch": 2, "epochs": 1, **given})


def test_shards_without_samples_are_refused() -> None:
    model = torch.nn.Linear(2, 1)
    training = elastic.init(model, torch.optim.SGD(model.parameters(), 0.1), InMemory([[], []]), batch=2, epochs=1)
    with pytest.raises(ValueError, match="all of its shards are empty"):
        list(training)
