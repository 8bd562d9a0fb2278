"""A Horovod program is started by `mpirun`, as docs/howto/horovod.md says.

Horovod has no wheel on PyPI, and its last release needs two changes for today's PyTorch. The test builds a wheel, as an
operator does who offers it in an index; it needs a C++ compiler and CMake, and some ten minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pages
import pytest
from learner.package_index import package_index
from system_helpers import REPOSITORY, Stack, pretty

pytestmark = [
    pytest.mark.system,
    pytest.mark.public,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("c++") is None, reason="needs CMake and C++"),
]
VERSION = "0.28.1"
PROGRAM = """
import horovod.torch as hvd
import torch
import updraft_learner as updraft

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
x = torch.linspace(-1, 1, 16).reshape(-1, 1)[hvd.rank() :: hvd.size()]
for _ in range(200):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), 3 * x + 1).backward()
    optimizer.step()
if hvd.rank() == 0:
    updraft.log_metrics({"slope": float(model.weight.detach()), "processes": hvd.size()}, step=1)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Horovod's wheel, built by the commands of the how-to: its name and content."""
    folder = tmp_path_factory.mktemp("horovod")
    (commands,) = [block.text for block in pages.command_blocks("docs/howto/horovod.md")]
    environment = {**os.environ, "PATH": f"{REPOSITORY / '.tools' / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", commands], cwd=folder, env=environment, check=True, timeout=3000)
    (found,) = folder.glob("horovod-*/dist/*.whl")
    return found.name, found.read_bytes()


def test_mpirun_starts_the_processes_of_a_learner(stack: Stack, built: tuple[str, bytes], code: Path) -> None:
    (code / "train.py").write_text(PROGRAM)
    with package_index(built) as index:
        manifest = {
            "name": "horovod",
            "framework": {"name": "pytorch", "version": "2.15"},
            "code": ".",
            "command": "mpirun python train.py",
            "environment": {"requirements": [f"horovod=={VERSION}", "openmpi"], "extra_index": [{"url": index}]},
            "resources": {"learners": 1, "cpus": 1, "memory": "4GiB", "processes_per_learner": 2, "mpi": True},
        }
        detail = stack.end(stack.submit(manifest, base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.metrics["processes"] == 2
    assert detail.metrics["slope"] == pytest.approx(3, abs=0.01)
