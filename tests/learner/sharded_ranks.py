"""The ranks of the sharded tests: `python sharded_ranks.py SCENARIO ROOT RANKS`, run in the PyTorch environment.

One process imports PyTorch and forks the ranks. Each has a pod's folders below ROOT/rank-N; what it saw goes to
ROOT/rank-N.json.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from updraft_learner import Checkpointer, CheckpointError, ShardedCheckpointer
from updraft_learner import checkpoint_format as fmt


class Training:
    """The same model and data on every rank, so that the number of ranks changes nothing but who holds what."""

    def __init__(self, ranks: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))
        if ranks:
            fully_shard(self.model, mesh=init_device_mesh("cpu", (ranks,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.inputs = torch.linspace(-1, 1, 24).reshape(4, 6)

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = (self.model(self.inputs) - 1).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(round(loss.item(), 5))
        return losses

    def state(self, seen: int = 0) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "seen": seen, "table": torch.full((3,), float(seen))}

    def load(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except (CheckpointError, TypeError) as exc:
        return str(exc)
    return "it was allowed"


def save(rank: int, ranks: int, root: Path) -> dict[str, Any]:
    now = [0.0]
    checkpoints = ShardedCheckpointer(60, clock=lambda: now[0])
    seen: dict[str, Any] = {"nothing": checkpoints.restore(into={})}
    training = Training(ranks)
    training.train(3)

    # Rank 0's clock decides, at the same call for all.
    now[0] = 30.0 if rank == 0 else 1000.0
    before = checkpoints.due()
    now[0] = 61.0 if rank == 0 else 0.0
    seen["due"] = [before, *[checkpoints.due() for _ in range(8)]]

    seen["saved"] = checkpoints.save(training.state(3), 3, metrics={"acc": 0.5 + rank}, block=True)
    seen["again"] = checkpoints.save(training.state(3), 3)
    seen["parts alone"] = refusal(lambda: checkpoints.restore(into=training.state()))
    seen["steps differ"] = refusal(lambda: checkpoints.save(training.state(), 10 + rank))
    seen["whole state"] = refusal(
        lambda: Checkpointer(directory=root / "plain", all_ranks=True).save(training.state(), 1)
    )
    seen["refused"] = refusal(lambda: checkpoints.save({"model": object()}, 4))

    # While one rank is still busy, none begins.
    go_on, settle = threading.Event(), fmt.settle

    def slow(*arguments: Any) -> None:
        assert go_on.wait(60)
        settle(*arguments)

    fmt.settle = slow if rank == 1 else settle
    seen["begun"] = checkpoints.save(training.state(4), 4)
    seen["busy"] = checkpoints.save(training.state(5), 5)
    go_on.set()
    checkpoints.wait()
    fmt.settle = settle

    # One rank's disk is full: nothing of that step counts anywhere.
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    fmt.settle = full if rank == 1 else settle
    seen["full"] = refusal(lambda: checkpoints.save(training.state(6), 6, block=True))
    fmt.settle = settle
    fsync = os.fsync
    os.fsync = full if rank == 1 else fsync
    seen["full while writing"] = refusal(lambda: checkpoints.save(training.state(7), 7, block=True))
    os.fsync = fsync
    folder = Path(os.environ["CHECKPOINT_DIR"])
    seen["folders"] = {path.name: sorted(file.name for file in path.iterdir()) for path in sorted(folder.glob("[!l]*"))}
    seen["losses"] = training.train(2)
    return seen


def resume(rank: int, ranks: int, root: Path) -> dict[str, Any]:
    training = Training(ranks if ranks > 1 else 0)
    training.train(1)  # elsewhere than where it goes on
    checkpoints = ShardedCheckpointer(60)
    restored = checkpoints.restore(into=training.state())
    assert restored is not None
    state, step = restored
    training.load(state)
    again = checkpoints.save(training.state(step), step)  # it is there already
    return {
        "step": step,
        "seen": state["seen"],
        "table": state["table"].tolist(),
        "again": again,
        "losses": training.train(2),
        "wrong": refusal(lambda: checkpoints.restore(into={**training.state(), "more": torch.zeros(1)})),
    }


def one_folder(rank: int, ranks: int, root: Path) -> dict[str, Any]:
    """Two processes of one learner, as torchrun starts them."""
    os.environ["CHECKPOINT_DIR"] = str(root / "shared")
    training = Training(ranks)
    training.train(1)
    ShardedCheckpointer().save(training.state(1), 1, block=True)
    newest = ShardedCheckpointer()._agree_on_one()
    other = Training(ranks)
    restored = ShardedCheckpointer().restore(into=other.state())
    assert restored is not None
    other.load(restored[0])
    return {
        "files": sorted(path.name for path in (root / "shared" / "step-0000000001").iterdir()),
        "newest": newest.name if newest else None,
        "same": training.train(1) == other.train(1),
    }


def main(scenario: str, root: Path, ranks: int) -> int:
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), UPDRAFT_ATTEMPT="1")
                if scenario != "one_folder":
                    pod = root / f"rank-{rank}" / "checkpoints"
                    pod.mkdir(parents=True, exist_ok=True)
                    os.environ.update(CHECKPOINT_DIR=str(pod), LEARNER_ID=str(rank + 1))
                if ranks > 1:
                    dist.init_process_group(
                        "gloo", init_method=f"file://{root}/{scenario}.meet", rank=rank, world_size=ranks
                    )
                seen = globals()[scenario](rank, ranks, root)
                (root / f"rank-{rank}.json").write_text(json.dumps(seen))
                code = 0
            except BaseException:  # noqa: BLE001 - outermost line of the process
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
