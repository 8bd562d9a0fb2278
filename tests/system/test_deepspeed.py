"""DeepSpeed's launcher starts the processes of a learner, as docs/howto/several-processes.md says.

DeepSpeed has no wheel on PyPI. The test builds one, as an operator does who offers it in an index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pages
import pytest
import yaml
from learner.package_index import package_index
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.public, pytest.mark.timeout(1200)]
VERSION = "0.19.8"
PROGRAM = """
import argparse
import deepspeed
import torch
import torch.distributed as dist
import updraft_learner as updraft

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser.parse_args()
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Linear(1, 1)
config = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
x = torch.linspace(-1, 1, 8).reshape(-1, 1)
for _ in range(100):
    engine.backward(torch.nn.functional.mse_loss(engine(x), 3 * x + 1))
    engine.step()
if dist.get_rank() == 0:
    updraft.log_metrics({"slope": float(model.weight.detach()), "processes": dist.get_world_size()}, step=1)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """DeepSpeed's wheel, without compiled parts: its name and content."""
    folder = tmp_path_factory.mktemp("deepspeed")
    build = [sys.executable, "-m", "venv", str(folder / "venv")]
    subprocess.run(build, check=True, timeout=120)
    wheel = [str(folder / "venv/bin/pip"), "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "made")]
    environment = {**os.environ, "DS_BUILD_OPS": "0"}
    subprocess.run([*wheel, f"deepspeed=={VERSION}"], env=environment, check=True, timeout=600)
    (found,) = (folder / "made").iterdir()
    return found.name, found.read_bytes()


def test_the_launcher_starts_the_processes_of_a_learner(stack: Stack, built: tuple[str, bytes], code: Path) -> None:
    blocks = [block.text for block in pages.blocks("docs/howto/several-processes.md") if block.language == "yaml"]
    (text,) = [text for text in blocks if "command: deepspeed" in text]
    command = list(yaml.safe_load_all(text))[1]["command"]
    (code / "train.py").write_text(PROGRAM)
    with package_index(built) as index:
        manifest = {
            "name": "deepspeed",
            "framework": {"name": "pytorch", "version": "2.15"},
            "code": ".",
            "command": command.replace('"$GPU_COUNT"', "2"),  # processes on CPUs; the machine has no GPU
            "env": {"DS_ACCELERATOR": "cpu"},
            "environment": {"requirements": [f"deepspeed=={VERSION}"], "extra_index": [{"url": index}]},
            "resources": {"learners": 1, "cpus": 1, "memory": "6GiB"},
        }
        detail = stack.end(stack.submit(manifest, base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.metrics["processes"] == 2
    assert detail.metrics["slope"] == pytest.approx(3, abs=0.05)
