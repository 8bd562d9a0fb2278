"""Learners that share the memory of one pod on a real Kubernetes, through kills. They need the image of PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_helpers import eventually
from loss_helpers import begun, evict
from platform_helpers import OwnPlatform
from system_helpers import REPOSITORY

from updraft_learner.contract import MAIN_CONTAINER

pytestmark = pytest.mark.cluster
JOBS = REPOSITORY / "jobs"
# The server and the learners, in this order, are forked from one helper process. Kill those with these numbers.
KILL = """
import os, sys
found = {}
for process in filter(str.isdigit, os.listdir('/proc')):
    if b'forkserver' in open(f'/proc/{process}/cmdline', 'rb').read():
        fields = open(f'/proc/{process}/stat').read().rpartition(')')[2].split()
        found[process] = fields[1], int(fields[19])
parts = sorted((process for process in found if found[process][0] in found), key=lambda process: found[process][1])
assert len(parts) == 3, parts
for number in sys.argv[1:]:
    os.kill(int(parts[int(number)]), 9)
"""


def test_an_eviction_and_kills_of_server_and_learner(
    own_platform: OwnPlatform, pytorch_image: None, tmp_path: Path
) -> None:
    manifest: dict[str, Any] = yaml.safe_load((JOBS / "digits-shared" / "manifest.yaml").read_text())
    manifest["params"]["epochs"] = 150
    manifest["checkpoints"]["every"] = "5s"
    job = own_platform.submit(manifest, base=JOBS / "digits-shared")
    begun(own_platform, job)
    evict(own_platform, job)
    eventually(lambda: "resumed after step" in own_platform.log(job), within_seconds=300)
    eventually(lambda: _killed(own_platform, job), within_seconds=300)
    detail = own_platform.completed(job)
    told = re.findall(r"Trained\(.*\)", own_platform.log(job))
    assert len(told) == 1, told
    assert "'server 0': 1" in told[0]
    assert re.search(r"'learner [01]': 1", told[0]), told
    assert detail.metrics["val_accuracy"] > 0.9
    own_platform.nothing_is_left(job)


def _killed(platform: OwnPlatform, job: str) -> bool:
    """Kill the server and a learner of the running pod; return whether they were there."""
    name = platform.witness.running(job)
    try:
        platform.kubectl(
            *("exec", "-n", platform.namespace, str(name), "-c", MAIN_CONTAINER, "--", "python", "-c", KILL, "0", "1")
        )
    except AssertionError:
        return False
    return True


def test_two_lines_become_a_model(own_platform: OwnPlatform, pytorch_image: None) -> None:
    manifest = yaml.safe_load((JOBS / "messages" / "manifest.yaml").read_text())
    detail = own_platform.completed(own_platform.submit(manifest, base=JOBS / "messages"))
    assert detail.model is not None
    assert detail.model.alias == "champion"
    own_platform.nothing_is_left(detail.id)
