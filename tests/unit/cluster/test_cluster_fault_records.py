"""Which tests of a real cluster become runs of the fault lab, and that none do unless a file is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from faults import outcomes
from kubecluster.layout import REPOSITORY
from unit.kubernetes.api_server import Cluster, kubeconfig, serving

pytest_plugins = ["pytester"]
CONFTEST = """
from pathlib import Path
from types import SimpleNamespace
import fault_records, pytest

def pytest_configure(config):
    config.addinivalue_line("markers", "fault(kind): breaks it")
    records = fault_records.FaultRecords(Path("records.jsonl"), lambda kubeconfig: f"v of {kubeconfig}")
    config.pluginmanager.register(records)

@pytest.fixture
def target():
    return SimpleNamespace(kubeconfig="here")

@pytest.fixture
def broken(target):
    raise RuntimeError("no cluster")
"""
TESTS = """
import pytest

@pytest.mark.fault("pod_evict")
@pytest.mark.parametrize("how", ["a", "b"])
def test_evicted(target, how):
    assert how == "a", "it was lost:\\nfor good"

@pytest.mark.fault("node_drain")
def test_skipped(target):
    pytest.skip("not here")

@pytest.mark.fault("etcd_stopped")
def test_that_never_began(broken): ...

def test_that_breaks_nothing(): ...
"""


def test_each_marked_test_that_ran_is_a_run_with_its_outcome_and_code(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2, failed=1, skipped=1, errors=1)
    passed, failed = outcomes.load(pytester.path / "records.jsonl")
    assert (passed.kind, passed.outcome, passed.test, passed.violations) == (
        "pod_evict",
        "passed",
        "test_evicted[a]",
        (),
    )
    assert (failed.kind, failed.outcome, failed.test) == ("pod_evict", "failed", "test_evicted[b]")
    (violation,) = failed.violations
    assert violation.text.startswith("AssertionError: it was lost: for good assert 'b' == 'a'")
    assert failed.commands == ('make test-cluster ARGS="-k test_evicted"',)
    here = outcomes.Provenance.of_checkout()
    assert {(r.commit, r.code, r.position, r.kubernetes) for r in (passed, failed)} == {
        (here.commit, here.code, here.position, "v of here")
    }
    assert failed.at.endswith("+00:00")


def test_the_version_is_the_api_servers_and_unknown_where_it_does_not_answer(tmp_path: Path) -> None:
    from fault_records import version

    with serving(Cluster(version="v1.34.4")) as cluster:
        path = kubeconfig(tmp_path / "kubeconfig", cluster.url)
        assert version(path) == "v1.34.4"
        cluster.down = True
        assert version(path) == ""
    assert version(path) == ""


def test_nothing_is_recorded_unless_a_file_is_named() -> None:
    """And `make faults-cluster` names the one that the report is made of."""
    recipes = subprocess.run(
        ["make", "-n", "test-cluster", "faults-cluster"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    (named,) = [line for line in recipes.splitlines() if "--record-faults" in line]
    assert f"-m fault --record-faults {outcomes.CLUSTER_FILE.relative_to(REPOSITORY)}" in named
