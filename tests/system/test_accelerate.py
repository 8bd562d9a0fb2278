"""`accelerate launch` on several learners, as docs/howto/several-processes.md says."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
import yaml
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(600)]

PROGRAM = """
import torch
from accelerate import Accelerator
import updraft_learner as updraft

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 64).reshape(-1, 1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 3 * x + 1), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for epoch in range(20):
    for features, target in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
seen = int(accelerator.reduce(torch.tensor(sum(len(features) for features, _ in data))))
slope = float(accelerator.unwrap_model(model).weight)
if accelerator.is_main_process:
    updraft.log_metrics({"slope": slope, "processes": accelerator.num_processes, "seen": seen}, step=1)
"""


def test_the_pages_command_trains_on_two_learners(stack: Stack, code: Path) -> None:
    blocks = [block.text for block in pages.blocks("docs/howto/several-processes.md") if block.language == "yaml"]
    (text,) = [text for text in blocks if "accelerate launch" in text]
    command = next(iter(yaml.safe_load_all(text)))["command"]
    (code / "train.py").write_text(PROGRAM)
    manifest = {
        "name": "accelerated",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": ".",
        "command": command.replace("accelerate launch", "accelerate launch --cpu"),
        "environment": {"requirements": ["accelerate"]},
        "resources": {"learners": 2, "cpus": 0.5, "memory": "1GiB"},
    }
    detail = stack.end(stack.submit(manifest, base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.metrics["processes"] == 2
    assert detail.metrics["seen"] == 64  # each example by one of them
    assert detail.metrics["slope"] == pytest.approx(3, abs=0.05)
