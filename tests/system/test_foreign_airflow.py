"""The platform's wheels in an Airflow that somebody has: the commands of docs/howto/deploy.md, what Airflow says, and a
job that trains there.

A virtual environment with Airflow alone, of the versions in uv.lock, and a home of its own. Nothing of the checkout is
on its path. Object store, MLflow and node of the job are those of the other system tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deploy_page
import httpx
import psutil
import pytest
from system_helpers import REPOSITORY, Stack, copy_sources, installer

pytestmark = [pytest.mark.system, pytest.mark.turn(0), pytest.mark.timeout(600)]
UP_SECONDS = 180
END_SECONDS = 20
OWN_DAG = "from airflow.sdk import DAG\nwith DAG('theirs', schedule=None):\n    pass\n"
OURS = {"cancel_job", "elastic_sizes", "halt_job", "reaper", "resume_job", "train_model"}
STEPS = ("uv build", "uv pip install", "DAG_BUNDLE_CONFIG_LIST", "updraft.stack.migrate", "dags unpause")
BY_ENTRY_POINT, BY_FOLDER = "updraft==0.1.0: EntryPoint", "$PLUGINS_FOLDER/updraft_plugin.py"
ENVIRONMENT = 'import json, os; print("SEEN" + json.dumps(dict(os.environ)))'
# What the api-server sees: plugins, what was wrong with them, and an answer of our routes without a log-in.
SEEN = """
import json
from airflow import plugins_manager
from airflow.api_fastapi.app import create_app
from fastapi.testclient import TestClient
plugins, errors = plugins_manager._get_plugins()
with TestClient(create_app("core"), follow_redirects=False) as client:
    status = [client.get(p).status_code for p in ("/updraft/api/v1/jobs", "/updraft/jobs")]
named = [[p.name, str(p.source).partition("(")[0]] for p in plugins]
print("SEEN" + json.dumps({"plugins": named, "errors": errors, "status": status}))
"""
PLUGINS = """
import json
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
named = [[p.name, str(p.source).partition("(")[0]] for p in plugins]
print("SEEN" + json.dumps({"plugins": named, "errors": errors}))
"""


@dataclass(frozen=True)
class Foreign:
    """`folder` is where somebody types the page's commands."""

    folder: Path
    environment: dict[str, str]

    def shell(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"set -e\n{script}"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done.stdout

    def listed(self, command: str) -> list[dict[str, Any]]:
        """What `airflow ... --output json` prints; its log may come before."""
        said = self.shell(f"{command} --output json")
        found: list[dict[str, Any]] = json.loads(said[re.search(r"^\[", said, re.MULTILINE).start() :])  # type: ignore[union-attr]
        return found

    def seen(self, program: str, **more: str) -> dict[str, Any]:
        foreign = Foreign(self.folder, {**self.environment, "PROGRAM": program, **more})
        found: dict[str, Any] = json.loads(foreign.shell('python -c "$PROGRAM"').rpartition("SEEN")[2])
        return found


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    """The page's commands in their order."""
    found = deploy_page.marked(deploy_page.SYSTEM)
    assert [step for step, text in zip(STEPS, found, strict=True) if step not in text] == []
    return found


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, blocks: list[str]) -> Foreign:
    folder = tmp_path_factory.mktemp("foreign")
    checkout, home = folder / "checkout", folder / "airflow"
    copy_sources(checkout)
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "theirs.py").write_text(OWN_DAG)
    python = folder / "env" / "bin" / "python"
    uv = installer()
    environment = {
        **{n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "UPDRAFT", "PYTHON", "VIRTUAL_ENV"))},
        "PATH": os.pathsep.join([str(python.parent), str(Path(uv).parent), os.environ["PATH"]]),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_PYTHON": str(python),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "UPDRAFT_LEDGER_URL": f"sqlite:///{folder}/ledger.db",
        "UV_CONSTRAINT": str(folder / "constraints.txt"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    theirs = Foreign(checkout, environment)
    version = re.search(r'name = "apache-airflow"\nversion = "([\d.]+)"', (checkout / "uv.lock").read_text())
    assert version
    theirs.shell(
        "uv export --quiet --frozen --no-dev --no-emit-workspace --no-hashes --extra platform --extra postgres"
        " --format requirements.txt"
        " | sed '/^-e/d' >../constraints.txt\n"
        f"uv venv --quiet --no-project --python {sys.executable} ../env\n"
        f'uv pip install --quiet --python "$AIRFLOW_PYTHON" apache-airflow=={version[1]}'
    )
    before = theirs.listed("airflow providers list")
    assert "updraft" not in {provider["package_name"] for provider in before}
    theirs.shell("\n".join(blocks[:2]))
    # What the page exports holds in every command from here on.
    said = theirs.shell("\n".join([*blocks[2:4], "airflow db migrate >&2", f"python -c '{ENVIRONMENT}'"]))
    return Foreign(checkout, json.loads(said.rpartition("SEEN")[2]))


def test_each_wheel_carries_the_licence(foreign: Foreign) -> None:
    wheels = sorted((foreign.folder / "dist").glob("*.whl"))
    packages = ["updraft", "updraft_data", "updraft_learner", "updraft_localnode"]
    assert [wheel.name.partition("-")[0] for wheel in wheels] == packages
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
            assert "\nLicense-Expression: Apache-2.0\n" in archive.read(names["METADATA"]).decode()
            assert archive.read(names["licenses/LICENSE"]) == (REPOSITORY / "LICENSE").read_bytes()


def test_an_airflow_that_somebody_has_takes_the_platform(foreign: Foreign, blocks: list[str]) -> None:
    with ThreadPoolExecutor(2) as threads:
        providers = threads.submit(foreign.listed, "airflow providers list")
        plugins = threads.submit(foreign.listed, "airflow plugins")
        hooks = threads.submit(foreign.listed, "airflow providers hooks")
        version = threads.submit(foreign.shell, "updraft --version && updraft --help")
        parsed = threads.submit(foreign.shell, "airflow dags reserialize")
        seen = threads.submit(foreign.seen, SEEN)
        twice = threads.submit(foreign.seen, PLUGINS, AIRFLOW__CORE__PLUGINS_FOLDER=str(REPOSITORY / "plugins"))
        parsed.result()
        errors = threads.submit(foreign.listed, "airflow dags list-import-errors")
        dags = threads.submit(foreign.listed, "airflow dags list")
    assert [p["package_name"] for p in providers.result()].count("updraft") == 1
    assert [p["name"] for p in plugins.result()].count("updraft") == 1
    assert [hook["connection_type"] for hook in hooks.result()].count("kubernetes") == 1
    assert version.result().startswith("0.1.0\n")
    assert "submit" in version.result()
    assert seen.result() == {"plugins": [["updraft", BY_ENTRY_POINT]], "errors": {}, "status": [401, 303]}
    assert twice.result() == {"plugins": [["updraft", BY_FOLDER]], "errors": {}}
    assert errors.result() == []
    found = {(dag["bundle_name"], dag["dag_id"]) for dag in dags.result()}
    assert found == {("dags-folder", "theirs"), *(("updraft", name) for name in OURS)}
    foreign.shell(blocks[4])
    paused = {dag["dag_id"] for dag in foreign.listed("airflow dags list") if dag["is_paused"] in (True, "True")}
    assert paused == {"theirs"}


def test_a_job_trains_in_it(foreign: Foreign, stack: Stack, blocks: list[str]) -> None:
    """By Airflow's own programs; the platform's connection and settings are variables, as the page has them."""
    with standing(beside(foreign, stack)) as theirs:
        theirs.shell(blocks[4])
        said = theirs.shell(f"updraft submit {REPOSITORY / 'jobs' / 'shell-hello' / 'manifest.yaml'} --follow")
        (job,) = json.loads(theirs.shell("updraft list --json"))["jobs"]
        assert (job["state"], job["name"]) == ("COMPLETED", "shell-hello"), said
        theirs.shell(f"updraft download {job['id']} results --output ../results")
    assert [len(file.read_text().splitlines()) for file in (foreign.folder.parent / "results").rglob("*.*")] == [10]
    assert job["id"] not in [each.id for each in stack.client.jobs(limit=100)]  # the other Airflow knows nothing of it


def beside(foreign: Foreign, stack: Stack) -> Foreign:
    """The placeholders of the page replaced by what the system tests have started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    ports = json.loads((stack.home / "config.json").read_text())["ports"]
    cluster = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(stack.home / "node" / "kubeconfig")}}
    environment = {
        **foreign.environment,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW_CONN_UPDRAFT_KUBERNETES": json.dumps(cluster),
        "UPDRAFT_S3_ENDPOINT": f"http://127.0.0.1:{ports['s3']}",
        "UPDRAFT_MLFLOW_URI": f"http://127.0.0.1:{ports['mlflow']}",
        "UPDRAFT_CREDENTIALS_FILE": str(stack.home / "credentials.json"),
        "UPDRAFT_AIRFLOW_URL": url,
        "UPDRAFT_AIRFLOW_TOKEN_FILE": str(foreign.folder.parent / "token"),
    }
    return Foreign(foreign.folder, environment)


@contextmanager
def standing(theirs: Foreign) -> Iterator[Foreign]:
    """While `airflow standalone` runs; logged in, and with the DAG read."""
    home = Path(theirs.environment["AIRFLOW_HOME"])
    log = home / "standalone.log"
    with log.open("w") as output:
        airflow = psutil.Popen(
            ["airflow", "standalone"],
            cwd=theirs.folder,
            env=theirs.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url, deadline = theirs.environment["UPDRAFT_AIRFLOW_URL"], time.monotonic() + UP_SECONDS
        passwords = home / "simple_auth_manager_passwords.json.generated"
        while not (token := answered(url, passwords)):
            assert airflow.poll() is None, log.read_text()[-5000:]
            assert time.monotonic() < deadline, log.read_text()[-5000:]
            time.sleep(1)
        Path(theirs.environment["UPDRAFT_AIRFLOW_TOKEN_FILE"]).write_text(token)
        yield theirs
    finally:
        parts = airflow.children(recursive=True) if airflow.poll() is None else []
        for process in (airflow, *parts):
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs([airflow, *parts], timeout=END_SECONDS)[1]:
            process.kill()
        with suppress(ProcessLookupError):
            os.killpg(airflow.pid, signal.SIGKILL)  # what a dead one has left


def answered(url: str, passwords: Path) -> str | None:
    """A token, once the api-server gives one and knows the DAG."""
    try:
        login = {"username": "admin", "password": json.loads(passwords.read_text())["admin"]}
        token = str(httpx.post(f"{url}/auth/token", json=login).raise_for_status().json()["access_token"])
        headers = {"Authorization": f"Bearer {token}"}
        httpx.get(f"{url}/api/v2/dags/train_model", headers=headers).raise_for_status()
    except (OSError, ValueError, httpx.HTTPError):  # the file is made empty, then written
        return None
    return token
