"""Distributed PyTorch programs that really fail: what their learners say, and which of them counts."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.recovery.outcome import Action, FailureClass, Outcome, judge

TORCH = os.environ.get("UPDRAFT_TEST_TORCH_PYTHON")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(TORCH is None, reason="needs the PyTorch learner environment"),
]
TAIL_LINES = 20
GANG = """
import datetime, os, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds={seconds}))
dist.all_reduce(torch.ones(2), group=group)
if rank == 0:
    {act}
for _ in range(5):
    dist.all_reduce(torch.ones(2), group=group)
"""
WORKER = """
import os, signal, torch
from torch.utils.data import DataLoader, Dataset
class Killed(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): os.kill(os.getpid(), signal.SIGKILL)
for batch in DataLoader(Killed(), num_workers=1): pass
"""
ALONE = """
import datetime, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
"""


def run(folder: Path, programs: list[str]) -> tuple[dict[int, int], dict[int, list[str]]]:
    """Exit codes of so many learners that run at the same time, in the order of their ends, and their last lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    learners: dict[int, subprocess.Popen[bytes]] = {}
    for number, program in enumerate(programs, 1):
        env = {
            "PATH": "/usr/bin:/bin",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": _loopback(),
        }
        env |= {"RANK": str(number - 1), "WORLD_SIZE": str(max(2, len(programs))), "OMP_NUM_THREADS": "1"}
        with (folder / f"{number}.log").open("wb") as log:
            command = [str(TORCH), "-c", program]
            learners[number] = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
    ends: dict[int, int] = {}
    until = time.monotonic() + 240
    try:
        while len(ends) < len(learners) and time.monotonic() < until:
            for number, learner in learners.items():
                if number not in ends and (code := learner.poll()) is not None:
                    ends[number] = code if code >= 0 else 128 - code
            time.sleep(0.02)
    finally:
        for learner in learners.values():
            learner.kill()
            learner.wait()
    assert len(ends) == len(learners), f"still running after 240 s: {set(learners) - set(ends)}"
    tails = {n: (folder / f"{n}.log").read_text(errors="replace").splitlines()[-TAIL_LINES:] for n in learners}
    return ends, tails


def _loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def judged(folder: Path, *programs: str) -> Outcome:
    ends, tails = run(folder, list(programs))
    sidecar = ContainerFacts("running")
    pods = [
        PodFacts(
            f"p-{n}", "u", n, "Failed", "", "", False, None, sidecar,
            ContainerFacts("terminated", reason="Error", exit_code=code),
        )
        for n, code in ends.items()
    ]  # fmt: skip
    outcome = judge(pods, membership=Membership.first(len(pods)), markers={}, tails=tails, memory="1 GiB")
    assert outcome is not None
    return outcome


def labels(outcome: Outcome) -> dict[int, str]:
    return {failure.learner: failure.label for failure in outcome.evidence.failures}


def test_a_peer_that_dies_does_not_hide_the_first_cause(tmp_path: Path) -> None:
    gang = GANG.format(act="raise ValueError('no labels')", seconds=60)
    outcome = judged(tmp_path, gang, gang)
    # Now and then PyTorch aborts while the failed program leaves with a group open: the same cause by another signal.
    assert labels(outcome) in ({1: "program.exit", 2: "network.gloo"}, {1: "program.abort", 2: "network.gloo"})
    assert (outcome.cause, outcome.action) == (FailureClass.PROGRAM, Action.RELAUNCH)


def test_a_peer_that_is_killed_is_what_counts(tmp_path: Path) -> None:
    gang = GANG.format(act="os.kill(os.getpid(), 9)", seconds=60)
    outcome = judged(tmp_path, gang, gang)
    assert labels(outcome) == {1: "container.killed", 2: "network.gloo"}
    assert outcome.cause is FailureClass.INFRASTRUCTURE


def test_a_peer_that_hangs_is_a_timeout(tmp_path: Path) -> None:
    gang = GANG.format(act="time.sleep(20)", seconds=5)
    outcome = judged(tmp_path, gang, gang)
    assert labels(outcome) == {2: "network.timeout", 1: "network.gloo"}
    assert (outcome.label, outcome.cause) == ("network.timeout", FailureClass.INFRASTRUCTURE)


def test_a_first_learner_that_never_comes_is_a_rendezvous_failure(tmp_path: Path) -> None:
    outcome = judged(tmp_path, ALONE)
    assert (outcome.label, outcome.cause) == ("network.rendezvous", FailureClass.INFRASTRUCTURE)


def test_a_gpu_that_the_job_did_not_ask_for_is_named(tmp_path: Path) -> None:
    outcome = judged(tmp_path, "import torch; torch.ones(1).cuda(); raise SystemExit('No CUDA GPUs are available')")
    assert (outcome.label, outcome.cause, outcome.action) == ("program.no_gpu", FailureClass.CONFIGURATION, Action.STOP)
    assert "set resources.gpus" in outcome.reason


def test_a_killed_data_loader_worker_is_named(tmp_path: Path) -> None:
    outcome = judged(tmp_path, WORKER)
    assert (outcome.label, outcome.cause) == ("program.worker_killed", FailureClass.PROGRAM)
    assert "DataLoader worker" in outcome.reason
