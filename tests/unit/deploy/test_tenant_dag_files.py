"""The DAG files of tenants follow the file of tenants, and Airflow's rights on those DAGs are those of its people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

from updraft.auth import TenantAuthManager
from updraft.bundle import TenantDagBundle, dag_file
from updraft.ledger import NewJob, open_ledger, upgrade
from updraft.lifecycle import State, Verdict
from updraft.lifecycle.workflow import is_train_dag, job_dag, tenant_dag, tenant_of_dag
from updraft.settings import settings

RULES = """
administrators: [root]
tenants:
  default: {}
  vision: {people: [grace]}
  speech: {people: [eve]}
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "tenants.yaml"
    file.write_text(RULES)
    url = f"sqlite:///{tmp_path}/ledger.db"
    upgrade(url)
    for name, value in {
        "S3_ENDPOINT": "http://127.0.0.1:1",
        "MLFLOW_URI": "http://127.0.0.1:1",
        "CREDENTIALS_FILE": str(tmp_path / "none.json"),
        "LEDGER_URL": url,
        "TENANTS_FILE": str(file),
        "TRUSTED_TENANTS": "true",
    }.items():
        monkeypatch.setenv(f"UPDRAFT_{name}", value)
    monkeypatch.delenv("UPDRAFT_TENANTS", raising=False)
    settings.cache_clear()
    yield file
    settings.cache_clear()


@pytest.fixture
def bundle(rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TenantDagBundle:
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "bundles"))
    found = TenantDagBundle(name="tenants")
    found.initialize()
    return found


def names(bundle: TenantDagBundle) -> set[str]:
    return {path.name for path in bundle.path.iterdir()}


def test_each_tenant_but_default_has_a_file(bundle: TenantDagBundle) -> None:
    assert names(bundle) == {"vision.py", "speech.py"}
    assert (bundle.path / "vision.py").read_text() == dag_file("vision")


def test_a_new_tenant_gets_a_file_and_one_that_is_removed_keeps_it_while_its_jobs_run(
    bundle: TenantDagBundle, rules: Path
) -> None:
    ledger = open_ledger(settings().ledger_url)
    job = NewJob("digits-1", "speech", "digits", "speech.train_model", "digits-1", {"name": "digits"}, "eve")
    ledger.jobs.record(job)
    rules.write_text(RULES.replace("speech", "robots"))
    bundle.refresh()
    assert names(bundle) == {"vision.py", "robots.py", "speech.py"}
    ledger.jobs.finish("digits-1", Verdict(State.CANCELLED, "cancelled"))
    bundle.refresh()
    assert names(bundle) == {"vision.py", "robots.py"}


def test_a_file_of_tenants_that_is_wrong_changes_no_dags(bundle: TenantDagBundle, rules: Path) -> None:
    rules.write_text("tenants: []\n")
    bundle.refresh()
    assert names(bundle) == {"vision.py", "speech.py"}


def test_a_file_that_has_not_changed_is_not_written_again(bundle: TenantDagBundle) -> None:
    before = (bundle.path / "vision.py").stat()
    bundle.refresh()
    after = (bundle.path / "vision.py").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("user", "role", "dags"),
    [
        ("grace", "user", {"vision"}),
        ("eve", "op", {"speech"}),
        ("root", "user", {"default", "vision", "speech"}),
        ("admin", "admin", {"default", "vision", "speech"}),
        ("bob", "user", set()),
        ("grace", None, set()),
    ],
)
def test_whoever_is_not_of_a_tenant_has_no_right_on_its_dags(
    rules: Path, user: str, role: str | None, dags: set[str]
) -> None:
    manager, asks = TenantAuthManager(), SimpleAuthManagerUser(username=user, role=role)

    def may(method: Any, dag_id: str | None) -> bool:
        return manager.is_authorized_dag(method=method, user=asks, details=DagDetails(id=dag_id))

    for tenant in ("default", "vision", "speech", "nobodys"):
        for plain in ("train_model", "halt_job", "resume_job", "cancel_job", "job_digits"):
            for method in ("GET", "POST"):
                may_all = role == "admin"
                assert may(method, tenant_dag(plain, tenant)) is (tenant in dags or may_all)
    assert may("GET", None) is may("GET", "own.dag") is (role is not None)
    for platform in ("reaper", "elastic_sizes"):  # they tell of the jobs of all tenants
        assert may("GET", platform) is (role == "admin" or dags == {"default", "vision", "speech"})


def test_nobody_is_of_a_tenant_while_the_file_was_never_right(rules: Path) -> None:
    rules.write_text("tenants: []\n")
    asks = SimpleAuthManagerUser(username="grace", role="user")
    details = DagDetails(id="vision.train_model")
    assert not TenantAuthManager().is_authorized_dag(method="GET", user=asks, details=details)


def test_a_platform_without_other_tenants_has_an_empty_folder(
    rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow warns of a bundle whose folder does not exist."""
    rules.write_text("tenants: {default: {}}\n")
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "bundles"))
    found = TenantDagBundle(name="tenants")
    found.initialize()
    assert names(found) == set()


def test_the_tenant_of_a_dag() -> None:
    assert [tenant_of_dag(name) for name in ("train_model", "vision.halt_job", "a-b.job_x", "reaper", "own.dag")] == [
        "default",
        "vision",
        "a-b",
        None,
        None,
    ]
    assert job_dag("digits-cnn", "vision") == "vision.job_digits_cnn"
    assert is_train_dag("vision.job_digits_cnn")
    assert is_train_dag("vision.train_model")
    assert not is_train_dag("vision.halt_job")


def test_a_task_writes_the_files_only_where_one_is_missing(
    bundle: TenantDagBundle, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(TenantDagBundle, "refresh", lambda self: asked.append(self.name))
    bundle.initialize()
    assert asked == []
    (bundle.path / "vision.py").unlink()
    bundle.initialize()
    rules.write_text("tenants: []\n")
    bundle.initialize()
    assert asked == ["tenants"] * 2
