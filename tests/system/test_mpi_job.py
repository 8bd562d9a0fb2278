"""A job that starts with `mpirun` runs on several learners, as docs/howto/several-processes.md says."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
import yaml
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]

PROGRAM = """
import os
from mpi4py import MPI
import updraft_learner as updraft

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
part = sum(4 / (1 + ((i + 0.5) / 1e5) ** 2) for i in range(rank, 100_000, size)) / 1e5
pi = comm.allreduce(part)
places = comm.gather((updraft.rank(), updraft.world_size(), os.environ["LEARNER_ID"]))
if rank == 0:
    updraft.log_metrics({"pi": pi}, step=1)
    print("places", places, flush=True)
"""


def test_the_pages_job_runs_on_two_learners(stack: Stack, code: Path) -> None:
    blocks = [block.text for block in pages.blocks("docs/howto/several-processes.md") if block.language == "yaml"]
    manifest = next(yaml.safe_load(text) for text in blocks if "mpi: true" in text)
    (code / "train.py").write_text(PROGRAM)
    detail = stack.end(stack.submit(manifest, base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.metrics["pi"] == pytest.approx(3.1415926, abs=1e-6)
    assert "places [(0, 4, '1'), (1, 4, '1'), (2, 4, '2'), (3, 4, '2')]" in stack.log(detail.id)


def test_a_process_that_fails_on_the_second_learner_is_the_reason(stack: Stack, code: Path) -> None:
    manifest = {
        "name": "mpi-fails",
        "framework": {"name": "sklearn"},
        "code": ".",
        "command": "mpirun python train.py",
        "environment": {"requirements": ["mpi4py", "openmpi"]},
        "resources": {"learners": 2, "cpus": 0.5, "memory": "512MiB", "mpi": True},
    }
    (code / "train.py").write_text(
        "from mpi4py import MPI\nimport os, sys\ncomm = MPI.COMM_WORLD\n"
        "if comm.rank == 1:\n    print('no data for rank 1', file=sys.stderr, flush=True)\n    os._exit(9)\n"
        "comm.barrier()\n"
    )
    detail = stack.end(stack.submit(manifest, base=code))
    assert detail.state == "FAILED", pretty(detail)
    assert "exited with 9" in detail.reason
