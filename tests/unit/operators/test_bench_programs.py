"""The programs of `bench` launch as the platform does: they call its own functions, and mypy does not read them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pages import REPOSITORY
from unit.operators.airflow_fakes import Platform, until

PROGRAMS = ("defer_pods", "launch_pods")


@pytest.fixture
def defer_pods(environment: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with the one that imports it; both read the settings of this test."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "bench" / "programs"))
    loaded = {name: importlib.import_module(name) for name in PROGRAMS}
    yield loaded["defer_pods"]
    for name in PROGRAMS:
        del sys.modules[name]


def test_a_pod_of_the_benchmarks_is_a_learners(make_platform: Callable[..., Platform], defer_pods: Any) -> None:
    platform = until(make_platform(resources={"learners": 1}), "train")
    name = defer_pods.launch_pod(platform.services, platform.services.core, platform.job)
    assert list(platform.cluster.pods) == [name]
    spec = platform.cluster.pods[name]["spec"]
    assert [each["name"] for each in (*spec["containers"], *spec["initContainers"])] == ["base", "updraft-sidecar"]
    assert spec["containers"][0]["image"] == "updraft/learner-pytorch:2.15"
