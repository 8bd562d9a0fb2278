"""A rank that offers a state at three steps, none of them due, and then ends: `sharded_ends.py RANK ROOT END`.

It writes how many threads of process groups there were at its very end to ROOT/threads-RANK.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

rank, root, end = sys.argv[1:]
os.environ.update(RANK=rank, WORLD_SIZE="2", LEARNER_ID=str(int(rank) + 1), UPDRAFT_ATTEMPT="1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from updraft_learner import ShardedCheckpointer  # noqa: E402


def count_threads() -> None:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    (Path(root) / f"threads-{rank}").write_text(str(sum("gloo" in name for name in names)))


atexit.register(count_threads)  # the first to be registered is the last to be called
dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=int(rank), world_size=2)
checkpoints = ShardedCheckpointer(60, directory=Path(root) / f"rank-{rank}")
step = 0


def state() -> dict[str, Any]:
    return {"w": torch.full((3,), float(step))}


for step in (1, 2, 3):
    assert not checkpoints.save_when_due(state, step)
exec(end)
