"""The learners of the elastic tests, in the PyTorch environment: `python elastic_learner.py`.

It reads lines of JSON from its input, and forks a learner for each, so that PyTorch is imported once; it answers with
the process id. A learner writes FOLDER/NAME.jsonl: a line for each batch before it takes part in the step, and one at
its end. What it prints goes to FOLDER/errors.txt.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it when they are made

from updraft_learner import elastic
from updraft_learner.checkpoint import Checkpointer

CLONE_NEWNET = 0x40000000  # a constant of the kernel


class Numbered(torch.utils.data.Dataset[Any]):
    """Samples that know their index, so that what was really used can be counted."""

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(length, 12, generator=generator)
        self.targets = self.inputs @ torch.randn(12, 3, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.targets[index], index


class InShards:
    """The same samples in shards of different lengths, one of which is empty."""

    def __init__(self, length: int) -> None:
        self._data = Numbered(length)
        self.inputs = self._data.inputs

    def shards(self) -> list[str]:
        return [str(number) for number in range(7)]

    def open(self, shard: str, offset: int) -> Iterator[Any]:
        ends = [0, 11, 11, 40, 90, 91, 150, len(self._data)]
        for index in range(ends[int(shard)] + offset, ends[int(shard) + 1]):
            yield self._data[index]


def model_digest(model: torch.nn.Module) -> str:
    """Of the bits of the result."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def digest(training: elastic.Training) -> str:
    """Of all that must be the same on all learners, bit for bit."""
    state = training.state_dict()
    found = hashlib.sha256(repr((state["steps"], state["cursor"])).encode())
    for value in state["model"].values():
        found.update(value.numpy().tobytes())
    for values in state["optimizer"]["state"].values():
        for name in sorted(values):
            found.update(torch.as_tensor(values[name]).numpy().tobytes())
    found.update(repr(state["also"]["scheduler"]).encode())
    return found.hexdigest()


def enter_network(namespace: str) -> None:
    library, descriptor = ctypes.CDLL(None, use_errno=True), os.open(namespace, os.O_RDONLY)
    if library.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(descriptor)


def main(name: str, folder: Path, given: dict[str, Any]) -> None:
    if given["namespace"]:
        enter_network(given["namespace"])
    torch.set_num_threads(1)
    # Each learner begins elsewhere: the state must be copied. Runs that are compared begin alike.
    torch.manual_seed(given["options"].get("virtual_ranks") or int.from_bytes(name.encode()[:4]))
    model = torch.nn.Sequential(
        *(torch.nn.Linear(12, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.1)),
        *(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
    data: Any = (InShards if given["in_shards"] else Numbered)(given["samples"])
    if given["alive"]:
        os.environ["UPDRAFT_ALIVE_FILE"] = f"{folder}/{name}.alive"
    checkpoints = None
    if given["checkpoints"]:
        os.environ["UPDRAFT_STOP_FILE"] = f"{folder}/stop"
        checkpoints = Checkpointer(0.2, directory=Path(given["checkpoints"]))
    training = elastic.init(
        model,
        optimizer,
        data,
        batch=given["batch"],
        epochs=given["epochs"],
        also={"scheduler": scheduler},
        after_step=scheduler.step,
        **given["options"],
        warm_up=lambda: model(data.inputs[:4]).square().mean(),
        checkpoints=checkpoints,
        hang_seconds=given["hang"],
        address=given.get("address"),
        name=name,
    )
    log = (folder / f"{name}.jsonl").open("w", buffering=1)
    log.write(json.dumps({"ready": os.getpid()}) + "\n")
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=training.leave).start())
    losses = []
    try:
        for inputs, targets, indices in training:
            line = {"generation": training.generation, "learners": training.learners, "step": training.steps + 1}
            log.write(json.dumps({**line, "epoch": training.epoch, "ids": indices.tolist()}) + "\n")
            if not (folder / "fast").exists():
                time.sleep(given["pace"])
            model.train(len(inputs) > 1)  # BatchNorm cannot train on one sample
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            if training.step(loss):
                losses.append(loss.item())
    except elastic.LearnerFenced as exc:
        log.write(json.dumps({"outcome": "fenced", "why": str(exc)}) + "\n")
        return
    end = {
        "outcome": training.outcome,
        "steps": training.steps,
        "rank": training.rank,
        "digest": digest(training),
        "model": model_digest(model),
    }
    end |= {"loss": losses[-5:], "held": len(training.state_dict().get("shards", {}).get("states", ()))}
    log.write(json.dumps({**end, "changes": [vars(each) for each in training.changes]}) + "\n")


def fork() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the learners
    for line in sys.stdin:
        given = json.loads(line)
        child = os.fork()
        if child:
            print(child, flush=True)
            continue
        code = 1
        try:
            folder = Path(given["folder"])
            with (folder / "errors.txt").open("ab") as errors:
                for stream in (1, 2):
                    os.dup2(errors.fileno(), stream)
            main(given["name"], folder, given)
            code = 0
        except BaseException:  # noqa: BLE001 - outermost line of the process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


if __name__ == "__main__":
    fork()
