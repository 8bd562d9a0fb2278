"""A PyTorch program whose learners join and leave while the others train, and whose result counts its samples.

The model has a weight for each sample. A step adds exactly 1 to the weights of its samples, so the weights of the
result say how often each sample was used in the steps that led to it, whatever was undone on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SAMPLES, BATCH = 64, 16
HURRY = "/tmp/hurry"  # in a learner's container: it does not pause any more
PROGRAM = """
import json, os, time
import torch
import updraft_learner as updraft
from updraft_learner import elastic

params = updraft.params()
torch.set_num_threads(1)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return params["samples"]
    def __getitem__(self, index):
        return index

model = torch.nn.Embedding(params["samples"], 1)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=params["batch"])
training = elastic.init(
    model, optimizer, Numbers(), batch=params["batch"], epochs=params["epochs"],
    checkpoints=updraft.Checkpointer(1.0),
)
for ids in training:
    if not os.path.exists(params["hurry"]):
        time.sleep(params["seconds"] * len(ids) / params["batch"])
    training.step(-model(ids).mean())
if training.rank == 0:
    found = {"steps": training.steps, "counts": model.weight.flatten().tolist()}
    (updraft.result_dir() / "counts.json").write_text(json.dumps(found))
"""


def counted_job(name: str, *, epochs: int, seconds: float, most: int = 3, **fields: Any) -> dict[str, Any]:
    """Return a manifest whose code is the folder `name`, which `written` makes.

    Args:
        seconds: Of a step with one learner.
        most: Learners.
    """
    params = {"samples": SAMPLES, "batch": BATCH, "epochs": epochs, "seconds": seconds, "hurry": HURRY}
    return {
        "name": name,
        "framework": {"name": "pytorch"},
        "code": name,
        "command": "python train.py",
        "resources": {"cpus": 0.1, "memory": "768MiB"},
        "elastic": {"min_learners": 1, "max_learners": most, "resize": "in_place"},
        "checkpoints": {"every": "2s", "keep": {"latest": 2}},
        "params": params,
        **fields,
    }


def written(folder: Path, name: str) -> Path:
    """Write the code of the job `name`; return the folder that it is in."""
    (folder / name).mkdir(parents=True)
    (folder / name / "train.py").write_text(PROGRAM)
    return folder


def check_counts(files: Iterable[Path], epochs: int) -> None:
    """Check that each sample was used once in each epoch."""
    (path,) = [path for path in files if path.name == "counts.json"]
    found = json.loads(path.read_text())
    assert found["steps"] == epochs * SAMPLES // BATCH
    wrong = {n: count for n, count in enumerate(found["counts"]) if abs(count - epochs) > 0.01}
    assert len(found["counts"]) == SAMPLES
    assert not wrong, wrong
