"""Other people's programs on a real Kubernetes: packages that a pod installs, MPI across nodes, public programs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pages
import platform_images
import pytest
import yaml
from cluster_helpers import eventually
from kubecluster.running import Cluster
from learner.package_index import package_mirror
from platform_helpers import OwnPlatform
from public_programs import NoSources, lay_out, repositories_folder

pytestmark = pytest.mark.cluster
KILL_SECONDS = 300.0
# Those whose images have less than 2 GB. The commands of docs/howto/cluster.md give the platform sklearn's image alone.
PUBLIC = {
    "lightgbm-guide": {"framework": None, "image": "updraft/learner-lightgbm:4"},
    "optuna-sklearn": {},
    "xgboost-guide": {"framework": None, "image": "updraft/learner-xgboost:3.2"},
}
MPI_PROGRAM = """
import os
from mpi4py import MPI
import updraft_learner as updraft

comm = MPI.COMM_WORLD
total = comm.allreduce(comm.Get_rank())
places = comm.gather((updraft.rank(), updraft.world_size(), os.environ["LEARNER_ID"]))
if comm.Get_rank() == 0:
    updraft.log_metrics({"total": total}, step=1)
    print("places", places, flush=True)
"""


@pytest.fixture(scope="module")
def index(own_cluster: Cluster) -> Iterator[str]:
    """PyPI, at the address that pods reach."""
    with package_mirror(own_cluster.network.host) as url:
        yield url


@pytest.fixture(scope="module")
def repositories() -> Path | None:
    if not platform_images.with_public_programs():
        pytest.skip(
            "SKIPPED PUBLIC PROGRAMS ON A REAL CLUSTER: set UPDRAFT_TEST_PUBLIC_PROGRAMS=1 to build the images of "
            "LightGBM and XGBoost too, and to fetch the programs"
        )
    try:
        return repositories_folder()
    except NoSources as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def jobs(
    own_platform: OwnPlatform,
    repositories: Path | None,
    index: str,
    node_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """All public programs at once; each loses its pod after its first checkpoint."""
    found = {}
    for name, other in PUBLIC.items():
        folder = lay_out(name, repositories, tmp_path_factory.mktemp(name) / "sources")
        manifest = yaml.safe_load((folder / "manifest.yaml").read_text()) | other
        if "environment" in manifest:
            manifest["environment"]["index"] = {"url": index}
        found[name] = own_platform.submit(manifest, base=folder)
    left = set(found.values())
    eventually(partial(delete_pods, own_platform, left), within_seconds=KILL_SECONDS)
    return found


def delete_pods(platform: OwnPlatform, left: set[str]) -> bool:
    """Delete the pod of each job that has a checkpoint; remove it from `left`. Return whether none is left."""
    for job_id in list(left):
        if not platform.client.checkpoints(job_id).checkpoints:
            assert not platform.client.job(job_id).ended, platform.explained(job_id)
            continue
        if (pod := platform.witness.running(job_id)) is not None:
            platform.witness.core.delete_namespaced_pod(pod, platform.namespace, grace_period_seconds=0)
            left.remove(job_id)
    return not left


def test_mpi_across_nodes_with_packages_that_a_pod_installs(
    own_platform: OwnPlatform, index: str, node_cache: Path, tmp_path: Path
) -> None:
    """The job of docs/howto/several-processes.md; the second one starts without installing anything."""
    blocks = [block.text for block in pages.blocks("docs/howto/several-processes.md") if block.language == "yaml"]
    manifest: dict[str, Any] = next(yaml.safe_load(text) for text in blocks if "mpi: true" in text)
    manifest["environment"]["index"] = {"url": index}
    (tmp_path / "train.py").write_text(MPI_PROGRAM)
    for built in (True, False):
        job_id = own_platform.submit(manifest, base=tmp_path)
        detail = own_platform.completed(job_id)
        assert detail.metrics["total"] == 6
        assert "places [(0, 4, '1'), (1, 4, '1'), (2, 4, '2'), (3, 4, '2')]" in own_platform.log(job_id)
        assert bool(own_platform.witness.pods(job_id, "build")) is built


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_program_that_lost_its_pod_is_registered(
    own_platform: OwnPlatform, jobs: dict[str, str], name: str
) -> None:
    """As docs/howto/public-programs.md has it, on the local node."""
    job_id = jobs[name]
    detail = own_platform.completed(job_id)
    attempts = [a for a in own_platform.client.attempts(job_id).attempts if a.role == "train"]
    assert attempts[0].cause == "infrastructure", own_platform.explained(job_id)
    assert attempts[1].resume is not None, own_platform.explained(job_id)
    assert attempts[1].resume.checkpoint is not None, own_platform.explained(job_id)
    assert detail.model is not None
    assert detail.model.name == name
