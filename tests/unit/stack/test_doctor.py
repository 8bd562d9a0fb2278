"""What `updraft doctor` calls wrong, and what is only not there yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from updraft.exceptions import UpdraftError
from updraft.stack import control, migrate, processes, records
from updraft.stack import doctor as module
from updraft.stack.layout import Home
from updraft.stack.records import Phase, SupervisorRecord

ENVIRONMENTS = {"environment of MLflow server", "environment of Sidecar of the learners"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """In a checkout like this one, with a uv of its own; nothing is built or set up."""
    checkout = tmp_path / "checkout"
    (checkout / ".tools" / "bin").mkdir(parents=True)
    (uv := checkout / ".tools" / "bin" / "uv").write_text("#!/bin/sh\necho uv 1.2.3\n")
    uv.chmod(0o700)
    (checkout / "images").mkdir()
    catalogue = Path(__file__).parents[3] / "images" / "catalogue.toml"
    (checkout / "images" / "catalogue.toml").write_text(catalogue.read_text())
    return Home(root=tmp_path / "home", repository=checkout)


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has git, and no uv."""
    (tmp_path / "bin").mkdir()
    (git := tmp_path / "bin" / "git").write_text("#!/bin/sh\necho git version 1.2.3\n")
    git.chmod(0o700)
    monkeypatch.setenv("PATH", str(git.parent))
    monkeypatch.delenv("UPDRAFT_UV", raising=False)


def checks(home: Home) -> dict[str, module.Check]:
    return {check.name: check for check in module.doctor(home)}


def test_tenants_that_nobody_said_trust_each_other_are_wrong(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tenants" not in checks(home)
    monkeypatch.setenv("UPDRAFT_TENANTS", "vision,speech")
    found = checks(home)["tenants"]
    assert (found.ok, "object store" in found.detail, "UPDRAFT_TRUSTED_TENANTS=true" in found.advice) == (
        False,
        True,
        True,
    )
    refusal = r"vision, speech are several tenants.*UPDRAFT_TRUSTED_TENANTS=true"
    with pytest.raises(UpdraftError, match=refusal):
        control.up(home)
    with pytest.raises(SystemExit, match=refusal):
        migrate.main()
    monkeypatch.setenv("UPDRAFT_TRUSTED_TENANTS", "true")
    assert checks(home)["tenants"].ok


def test_an_airflow_without_a_log_in_is_wrong_and_no_part_starts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks(home)["log-in"].ok
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    found = checks(home)["log-in"]
    assert (found.ok, "AIRFLOW__CORE__AUTH_MANAGER" in found.advice) == (False, True)
    with pytest.raises(SystemExit, match="accepts every client as an administrator"):
        migrate.main()
    monkeypatch.delenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS")
    home.airflow.mkdir(parents=True, exist_ok=True)
    (home.airflow / "airflow.cfg").write_text("[core]\nsimple_auth_manager_all_admins = yes\n")
    assert not checks(home)["log-in"].ok


def test_before_the_first_up_nothing_is_wrong_that_it_would_build(home: Home) -> None:
    found = checks(home)
    assert {name for name in ENVIRONMENTS if found[name].ok} == ENVIRONMENTS
    assert found["environment of MLflow server"].detail == "built when it is needed"
    assert found["home"] == module.Check("home", True, "not set up yet; `updraft up` does it")
    assert found["uv"] == module.Check("uv", True, "uv 1.2.3")  # the bootstrap's, which is not on the PATH


def test_a_kubeconfig_of_the_environment_is_said_to_be_of_no_use(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    told = checks(home)["KUBECONFIG"]
    assert told.ok
    assert told.detail == "names /nowhere, which is not used; `updraft up --kubeconfig FILE` uses one"


def test_while_it_runs_what_it_needs_has_to_be_there(home: Home) -> None:
    own = processes.identify(os.getpid())
    assert own is not None
    home.run.mkdir(parents=True)
    records.write_supervisor(home, SupervisorRecord(own.pid, own.create_time, Phase.RUNNING, started=0.0))
    found = checks(home)
    wrong = {name for name, check in found.items() if name.startswith("environment of ") and not check.ok}
    assert wrong == ENVIRONMENTS
    server = found["environment of MLflow server"]
    assert server.detail == "gone, and the running stack needs it"
    assert server.advice == "run `updraft down`, then `updraft up`, which builds it"  # `up` alone only attaches


def test_a_machine_without_uv_is_told_what_installs_it(home: Home) -> None:
    (home.repository / ".tools" / "bin" / "uv").unlink()
    assert checks(home)["uv"] == module.Check(
        "uv", False, "not found; it installs packages", "run `make up`, which installs it"
    )


def test_a_configuration_that_cannot_be_read_is_wrong(home: Home) -> None:
    control.initialise(home)
    home.config_file.write_text("{")
    found = checks(home)["home"]
    assert (found.ok, "is not valid" in found.detail) == (False, True)
