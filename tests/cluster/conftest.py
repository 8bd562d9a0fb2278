"""Fixtures of the cluster tests: a cluster, a namespace of each test's own in it, and a platform that uses it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import account_helpers
import namespace_platform
import pages
import platform_helpers
import platform_images
import pytest
import yaml
from account_helpers import Account
from cluster_helpers import Pods, pods_apart
from containers import recipes
from kubecluster.layout import find_layout
from kubecluster.running import Cluster, Say
from kubecluster.target import Target, named_target, own_target, why_not
from platform_helpers import OwnPlatform, Platform

from updraft.kubernetes.objects import JOB_GID

FIRST_BUILD_SECONDS = 1800  # the first test may have to build Kubernetes; every wait inside has a limit of its own
NOT_OURS = "it needs the cluster of `make cluster`: it is not confined to a namespace"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-faults", type=Path, metavar="FILE", help="append a line for each test marked `fault`")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record-faults", None)
    if path is not None:
        from fault_records import FaultRecords, version  # the fault lab takes seconds to import

        config.pluginmanager.register(FaultRecords(path, version))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(FIRST_BUILD_SECONDS))


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Say:
    """Told at once, past pytest's capture: a first build takes minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def told(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, flush=True)

    return told


@pytest.fixture(scope="session")
def target(say: Say) -> Iterator[Target]:
    """The cluster to test on."""
    named = named_target()
    if named is not None:
        yield named
        return
    reason = why_not(find_layout())
    if reason:
        pytest.skip(reason)
    with own_target(say) as own:
        yield own


@pytest.fixture(scope="session")
def own_cluster(target: Target) -> Cluster:
    """For tests that do what nobody may do to somebody's cluster, or know how ours is made."""
    if target.own is None:
        pytest.skip(NOT_OURS)
    return target.own


@pytest.fixture
def pods(target: Target) -> Iterator[Pods]:
    with pods_apart(target) as made:
        yield made


@pytest.fixture(scope="session")
def account(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """That of deploy/kustomize, made as docs/howto/cluster.md says."""
    if target.own is None:
        pytest.skip(NOT_OURS)
    with account_helpers.made(target, tmp_path_factory.mktemp("account")) as made:
        yield made


@pytest.fixture(scope="session")
def platform(
    request: pytest.FixtureRequest, say: Say, target: Target, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """One whose learners are pods of the cluster, in the platform's images."""
    if reason := (namespace_platform if target.own is None else platform_images).why_not():
        pytest.skip(f"SKIPPED JOBS ON A REAL CLUSTER: {reason}")
    if target.own is None:
        with platform_helpers.inside(target, tmp_path_factory.mktemp("platform"), say) as within:
            yield within
        return
    account: Account = request.getfixturevalue("account")
    platform_images.bring(target.own, say)
    with platform_helpers.beside(target.own, account) as running:
        yield running


@pytest.fixture(scope="session")
def own_platform(target: Target, platform: Platform) -> OwnPlatform:
    """For tests that do with nodes, control plane and registries what nobody may do to somebody's cluster."""
    if not isinstance(platform, OwnPlatform):
        pytest.skip(NOT_OURS)
    return platform


@pytest.fixture(scope="session")
def pytorch_image(own_cluster: Cluster) -> None:
    if recipes.PYTORCH not in platform_images.wanted():
        pytest.skip(
            "SKIPPED PYTORCH'S JOBS ON A REAL CLUSTER: set UPDRAFT_TEST_PYTORCH_IMAGE=1 to build its image (6 GB) "
            "and to keep it on two nodes (40 GB of disk in all)"
        )


@pytest.fixture(scope="session")
def node_cache(own_platform: OwnPlatform) -> Iterator[Path]:
    """The claim of UPDRAFT_NODE_CACHE_CLAIM, as docs/howto/data.md says, in a folder that both machines see."""
    folder = own_platform.cluster.layout.root / "node-cache"
    folder.mkdir()
    os.chown(folder, -1, JOB_GID)
    folder.chmod(0o2770)
    name, core = platform_helpers.SETTINGS["UPDRAFT_NODE_CACHE_CLAIM"], own_platform.witness.core
    text = next(b.text for b in pages.blocks("docs/howto/data.md") if "PersistentVolumeClaim" in b.text)
    volume, wanted = yaml.safe_load_all(text)
    volume["metadata"]["name"] = wanted["spec"]["volumeName"] = name
    volume["spec"]["hostPath"]["path"] = str(folder)
    wanted["metadata"] = {"name": name, "namespace": own_platform.namespace}
    core.create_persistent_volume(volume)
    core.create_namespaced_persistent_volume_claim(own_platform.namespace, wanted)
    try:
        yield folder
    finally:
        core.delete_namespaced_persistent_volume_claim(name, own_platform.namespace)
        core.delete_persistent_volume(name)
        shutil.rmtree(folder)
