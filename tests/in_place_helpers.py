"""A job whose learners join and leave while the others train, and that writes down which samples each step used."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

SAMPLES = 64
PROGRAM = """
import json, os, time
import torch
import updraft_learner as updraft
from updraft_learner import elastic

params = updraft.params()
torch.set_num_threads(1)
torch.manual_seed(1)
inputs = torch.randn(params["samples"], 8)
targets = inputs @ torch.arange(8.0)

class Numbered(torch.utils.data.Dataset):
    def __len__(self):
        return len(inputs)
    def __getitem__(self, index):
        return inputs[index], targets[index], index

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
training = elastic.init(
    model, optimizer, Numbered(), batch=16, epochs=params["epochs"], checkpoints=updraft.Checkpointer(1.0)
)
written = open(os.path.join(params["folder"], os.environ["LEARNER_ID"] + "-" + str(os.getpid())), "a")
for x, y, ids in training:
    step, generation = training.steps + 1, training.generation
    loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
    if not os.path.exists(params["folder"] + ".hurry"):
        times = 4 if os.path.exists(params["folder"] + ".slow-" + os.environ["LEARNER_ID"]) else 1
        time.sleep(times * params["seconds"] * len(ids) / 16)
    value = float(loss.detach())
    written.write(json.dumps([step, generation, ids.tolist()]) + "\\n")
    written.flush()
    if training.step(loss):
        written.write(json.dumps([step, generation, None]) + "\\n")
        written.flush()
    if training.rank == 0:
        updraft.log_metrics({"loss": value}, step=step)
if training.rank == 0:
    torch.save(model.state_dict(), updraft.result_dir() / "model.pt")
    found = {"steps": training.steps, "weights": model.weight[0].tolist()}
    (updraft.result_dir() / "steps.json").write_text(json.dumps(found))
"""


def in_place_job(name: str, folder: Path, *, epochs: int, seconds: float = 0.1, **fields: Any) -> dict[str, Any]:
    """Return a manifest whose code is the folder `name`, which `written` makes.

    Args:
        folder: Where its learners write which samples they used.
        seconds: Of a step with one learner.
    """
    return {
        "name": name,
        "framework": {"name": "pytorch"},
        "code": name,
        "command": "python train.py",
        "resources": {"cpus": 0.2, "memory": "768MiB"},
        "elastic": {"min_learners": 1, "max_learners": 3, "resize": "in_place"},
        "checkpoints": {"every": "2s", "keep": {"latest": 2}},
        "params": {"folder": str(folder), "samples": SAMPLES, "epochs": epochs, "seconds": seconds},
        **fields,
    }


def written(folder: Path, name: str) -> Path:
    """Write the code of the job `name`; return the folder that it is in."""
    (folder / name).mkdir()
    (folder / name / "train.py").write_text(PROGRAM)
    return folder


def hurry(folder: Path) -> None:
    """Let the job do the rest of its steps as fast as it can."""
    Path(f"{folder}.hurry").touch()


def slow_down(folder: Path, learner: int) -> None:
    """Let a learner need four times as long for its samples."""
    Path(f"{folder}.slow-{learner}").touch()


def read_steps(folder: Path) -> dict[int, list[int]]:
    """Return the samples of each committed step. Learners write them down before they take part in a step, and then
    that they have applied it. If a step was undone with the learners that had it, the newest generation counts."""
    used: dict[tuple[int, int], list[int]] = {}
    applied: dict[int, int] = {}
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            step, generation, ids = json.loads(line)
            if ids is None:
                applied[step] = max(generation, applied.get(step, 0))
            else:
                used.setdefault((step, generation), []).extend(ids)
    return {step: used[step, generation] for step, generation in applied.items()}


def check_exactly_once(folder: Path, epochs: int) -> None:
    """Check that each sample was used once in each epoch."""
    steps = read_steps(folder)
    each = SAMPLES // 16
    assert sorted(steps) == list(range(1, epochs * each + 1)), (len(steps), max(steps))
    for epoch in range(epochs):
        used = Counter(n for step in range(epoch * each + 1, (epoch + 1) * each + 1) for n in steps[step])
        assert used == Counter(range(SAMPLES)), (epoch, used)


def programs(job: str, what: str = "train.py") -> dict[int, psutil.Process]:
    """Return the running programs of a job's learners on the local node, by learner; with another `what`, the
    coordinator as learner 0."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if not any(what in word for word in line) or not line[0].rpartition("/")[2].startswith("python"):
            continue
        try:
            variables = process.environ()
        except psutil.Error:
            continue
        if variables.get("TRAINING_ID") == job:
            found[int(variables["LEARNER_ID"])] = process
        elif job in variables.get("UPDRAFT_POD_CONFIG", "") and "LEARNER_ID" not in variables:
            found[0] = process
    return found


def send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to processes that may have ended."""
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue
