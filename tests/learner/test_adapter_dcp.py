"""A sharded training with the calls of torch.distributed.checkpoint goes on with any number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.adapter_runs import Place, ended, value

pytest.importorskip("torch", reason="needs the PyTorch learner environment")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PROGRAM = """
import os
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from updraft_learner.adapters import dcp

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
x = torch.linspace(-1, 1, 24).reshape(4, 6)


def state():
    weights, inner = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": inner}


found = state()
first = dcp.load(found) or 0
if first:
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
print("first:", first)
for step in range(first + 1, int(os.environ["STEPS"]) + 1):
    optimizer.zero_grad()
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    dcp.save(state(), step=step, wait=True)
print("loss:", round(loss.item(), 5))
dist.destroy_process_group()
"""


def run(place: Place, steps: int, processes: int, port: int) -> list[str]:
    place.variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "STEPS": str(steps)}
    if processes == 1:
        place.variables |= {"RANK": "0", "WORLD_SIZE": "1"}
    return [ended(process, 0) for process in place.start(PROGRAM, processes=processes)]


def test_what_two_processes_saved_one_goes_on_with(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = run(Place(tmp_path / "whole"), steps=8, processes=2, port=29641)
    (tmp_path / "parts").mkdir()
    place = Place(tmp_path / "parts")
    assert value(run(place, steps=5, processes=2, port=29642)[0], "first") == "0"
    [alone] = run(place, steps=8, processes=1, port=29643)
    assert value(alone, "first") == "5"
    assert value(alone, "loss") == value(whole[0], "loss")
