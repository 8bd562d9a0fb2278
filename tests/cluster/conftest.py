"""Fixtures of the cluster tests: a cluster, and a namespace of each test's own in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_helpers import Pods
from kubecluster.layout import find_layout
from kubecluster.running import Cluster
from kubecluster.target import Target, named_target, own_target, why_not

FIRST_BUILD_SECONDS = 1800  # the first test may have to build Kubernetes; every wait inside has a limit of its own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(FIRST_BUILD_SECONDS))


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    """The cluster to test on."""
    named = named_target()
    if named is not None:
        yield named
        return
    reason = why_not(find_layout())
    if reason:
        pytest.skip(reason)
    with own_target(print) as own:
        yield own


@pytest.fixture
def own_cluster(target: Target) -> Cluster:
    """For tests that do what nobody may do to somebody's cluster, or know how ours is made."""
    if target.own is None:
        pytest.skip("it needs the cluster of `make cluster`: it is not confined to a namespace")
    return target.own


@pytest.fixture
def pods(target: Target) -> Iterator[Pods]:
    """A namespace that enforces the Pod Security profile "restricted", as namespaces of jobs do."""
    made = Pods(target, f"updraft-test-{uuid.uuid4().hex[:8]}")
    made.create_namespace()
    try:
        yield made
    finally:
        made.core.delete_namespace(made.namespace)
