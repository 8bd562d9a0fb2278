"""States of PyTorch programs survive a checkpoint, whatever happens to the tensors meanwhile."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the PyTorch learner environment")

from learner.checkpoint_fakes import HeldBackground  # noqa: E402

from updraft_learner import Checkpointer, CheckpointError  # noqa: E402
from updraft_learner import checkpoint_format as fmt  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "UPDRAFT_CHECKPOINT_SECONDS", "UPDRAFT_STOP_FILE"):
        monkeypatch.delenv(name, raising=False)
    torch.manual_seed(0)


def trained() -> tuple[Any, Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2])
    for _ in range(2):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        schedule.step()
    return model, optimizer, schedule


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_model_optimizer_and_schedule_come_back(tmp_path: Path) -> None:
    model, optimizer, schedule = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    state["odds"] = {"shape": torch.Size([2, 3]), "none": None, "set": {1, 2}, "tuple": (1, torch.ones(2)), 3: b"x"}
    Checkpointer(directory=tmp_path).save(state, 7, block=True)
    restored = Checkpointer(directory=tmp_path).restore()
    assert restored is not None
    found, step = restored
    assert step == 7
    assert equal(found, state)
    assert found["model"]._metadata == state["model"]._metadata
    again_model, again_optimizer, again_schedule = trained()
    again_model.load_state_dict(found["model"])
    again_optimizer.load_state_dict(found["optimizer"])
    again_schedule.load_state_dict(found["schedule"])


def test_the_state_is_that_of_the_moment_of_the_save(tmp_path: Path) -> None:
    background = HeldBackground()
    checkpointer = Checkpointer(0, directory=tmp_path, background=background)
    weights, history = torch.zeros(1000), [1]
    assert checkpointer.save({"weights": weights, "history": history}, 1)
    weights.fill_(5)
    history.append(2)
    background.go_on.set()
    checkpointer.wait()
    restored = checkpointer.restore()
    assert restored is not None
    assert torch.equal(restored[0]["weights"], torch.zeros(1000))
    assert restored[0]["history"] == [1]


def test_buffers_are_reused_and_follow_new_shapes(tmp_path: Path) -> None:
    checkpointer = Checkpointer(directory=tmp_path)
    for step, shape in enumerate([(3,), (3,), (4, 2), (3,)], start=1):
        checkpointer.save({"w": torch.full(shape, float(step))}, step, block=True)
        restored = checkpointer.restore()
        assert restored is not None
        assert torch.equal(restored[0]["w"], torch.full(shape, float(step)))


def test_tied_weights_stay_tied_and_are_written_once(tmp_path: Path) -> None:
    weights = torch.randn(100_000)
    checkpointer = Checkpointer(directory=tmp_path)
    checkpointer.save({"in": weights, "out": weights}, 1, block=True)
    latest = checkpointer.latest()
    assert latest is not None
    assert latest.files["state.pt"].size < 600_000
    restored = checkpointer.restore()
    assert restored is not None
    assert restored[0]["in"].data_ptr() == restored[0]["out"].data_ptr()


@pytest.mark.parametrize(
    "tensor",
    [
        lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda: torch.randn(4, 6).t(),
        lambda: torch.randn(10, 10)[2:4],
        lambda: torch.tensor(3.5),
        lambda: torch.empty(0, 3),
        lambda: torch.randn(5).to(torch.bfloat16),
        lambda: torch.arange(7),
        lambda: torch.nn.Parameter(torch.randn(3)),
        lambda: torch.tensor([True, False]),
    ],
)
def test_tensors_of_every_kind_come_back(tmp_path: Path, tensor: Any) -> None:
    value = tensor()
    checkpointer = Checkpointer(directory=tmp_path)
    checkpointer.save({"t": value}, 1, block=True)
    restored = checkpointer.restore()
    assert restored is not None
    assert equal(restored[0]["t"], value.detach())


def test_what_could_not_be_loaded_again_is_refused_by_name(tmp_path: Path) -> None:
    checkpointer = Checkpointer(directory=tmp_path)
    with pytest.raises(TypeError, match=r"state\['model'\]\[1\] is a torch.nn.modules.linear.Linear"):
        checkpointer.save({"model": [1, torch.nn.Linear(1, 1)]}, 1)
    with pytest.raises(TypeError, match="keys are numbers or text"):
        checkpointer.save({object(): 1}, 1)  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_numpy_scalars_become_plain_numbers(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    checkpointer = Checkpointer(directory=tmp_path)
    checkpointer.save(OrderedDict(best=numpy.float64(0.5), epoch=numpy.int64(3)), 1, block=True)
    restored = checkpointer.restore()
    assert restored is not None
    assert dict(restored[0]) == {"best": 0.5, "epoch": 3}


def test_the_first_large_save_is_put_off_while_its_buffers_are_made(tmp_path: Path) -> None:
    state = {"w": torch.ones(5 << 20)}  # 20 MiB
    checkpointer = Checkpointer(0, directory=tmp_path)
    assert checkpointer.due()
    assert not checkpointer.save(state, 1)
    checkpointer.wait()
    assert checkpointer.due()
    assert checkpointer.save(state, 2)
    checkpointer.wait()
    assert [path.name for path in fmt.complete_checkpoints(tmp_path)] == ["step-0000000002"]


def test_a_save_that_nobody_timed_or_that_blocks_is_never_put_off(tmp_path: Path) -> None:
    state = {"w": torch.ones(5 << 20)}
    untimed = Checkpointer(0, directory=tmp_path)
    assert untimed.save(state, 1)
    untimed.wait()
    blocking = Checkpointer(0, directory=tmp_path)
    assert blocking.due()
    assert blocking.save(state, 2, block=True)
    assert [path.name for path in fmt.complete_checkpoints(tmp_path)] == ["step-0000000002", "step-0000000001"]


def test_a_state_file_that_is_intact_but_no_state_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    checkpointer = Checkpointer(directory=tmp_path)
    checkpointer.save(lambda folder: (folder / "state.pt").write_text("hello"), 1, block=True)
    with pytest.raises(CheckpointError, match="checkpoint step-0000000001 does not load"):
        checkpointer.restore()
    assert len(fmt.complete_checkpoints(tmp_path)) == 1
