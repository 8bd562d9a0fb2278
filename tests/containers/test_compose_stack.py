"""docker-compose.yaml for real: an empty disk, one `up`, a trained model; down, up, and the job is still there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import account_helpers
import pytest
from account_helpers import REGISTRY, Account
from containers import build, recipes
from containers.engine import Engine
from containers.forwarding import forwarded
from containers.places import REPOSITORY, Places
from kubecluster import running
from kubecluster.layout import STATE_VARIABLE, find_layout
from kubecluster.running import Cluster
from kubecluster.target import Target, why_not

from updraft.ledger.migrate import VERSION_TABLE

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]
UP_SECONDS = 900
AIRFLOW = ("airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
# The databases as earlier versions of our images had them: by the service that migrates each, what takes it back.
OLDER_LEDGER = """
import os
from alembic import command
from updraft.ledger.engine import make_engine, writing
from updraft.ledger.migrate import configuration
with writing(make_engine(os.environ["UPDRAFT_LEDGER_URL"])) as connection:
    command.downgrade(configuration(connection), "0001")
"""
OLDER_MLFLOW = """
import os
from alembic import command
from mlflow.store.db.utils import _get_alembic_config
command.downgrade(_get_alembic_config(os.environ["MLFLOW_BACKEND_STORE_URI"]), "-1")
"""
OLDER_LOGINS = """
import os
from alembic import command
from mlflow.server.auth.db.utils import _get_alembic_config
command.downgrade(_get_alembic_config(os.environ["MLFLOW_BACKEND_STORE_URI"] + "_auth"), "-1")
"""
OLDER = {
    "airflow": ("airflow-migrate", "airflow", "db", "downgrade", "--to-version", "3.2.0", "--yes"),
    "ledger": ("ledger-migrate", "python", "-c", OLDER_LEDGER),
    "mlflow": ("mlflow-migrate", "python", "-c", OLDER_MLFLOW),
    "mlflow_auth": ("mlflow-migrate", "python", "-c", OLDER_LOGINS),  # whose server takes them up by itself
}
# What every task does before it touches a cluster.
ASK_CLUSTER = """
from updraft.kubernetes.clients import check_connection, core_api
from updraft.settings import settings
check_connection(settings())
core_api(settings()).list_namespaced_pod(settings().namespace("default"))
print(settings().node_lost_seconds, core_api(settings()).api_client.configuration.host)
"""
JOB_SECONDS = 600


@dataclass(frozen=True)
class Stack:
    """A compose project of its own: other names, ports and volumes than anybody's real one."""

    command: tuple[str, ...]
    environment: dict[str, str]
    engine: Engine
    project: str

    def compose(self, *arguments: str, check: bool = True, seconds: float = 300, stderr: bool = False) -> str:
        done = subprocess.run(
            [*self.command, "--project-name", self.project, *arguments],
            cwd=REPOSITORY,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
        if check and done.returncode != 0:
            states = self.compose("ps", "--all", check=False)
            logs = self.compose("logs", "--no-color", "--tail", "40", check=False)
            raise AssertionError(
                f"compose {arguments[0]} ended with {done.returncode}:\n{done.stderr}\n{states}\n{logs}"
            )
        return done.stdout + (done.stderr if stderr else "")

    def cli(self, *arguments: str, seconds: float = 120) -> str:
        return self.compose("run", "--rm", "--no-TTY", "cli", *arguments, seconds=seconds)

    def up(self) -> None:
        self.compose("up", "--wait", "--wait-timeout", str(UP_SECONDS), seconds=UP_SECONDS + 60)


@pytest.fixture(scope="module")
def stack(
    engine: Engine,
    composing: Future[list[str]],  # before the images, which are built meanwhile
    images: dict[str, build.Built],
    compose_command: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    secrets = tmp_path_factory.mktemp("compose") / "secrets"
    made = [sys.executable, str(REPOSITORY / "scripts" / "compose_secrets.py"), str(secrets)]
    subprocess.run(made, check=True, capture_output=True)
    environment = {
        **engine.environment,
        "UPDRAFT_SECRETS": str(secrets),
        **{name: str(free_port()) for name in ("UPDRAFT_AIRFLOW_PORT", "UPDRAFT_MLFLOW_PORT", "UPDRAFT_S3_PORT")},
    }
    stack = Stack(tuple(compose_command), environment, engine, f"updraft-test-{os.getpid()}")
    try:
        yield stack
    finally:
        stack.compose("--profile", "tools", "down", "--volumes", "--timeout", "20", check=False, seconds=300)
        shutil.rmtree(secrets)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A real one, of this test's own."""
    layout = find_layout({**os.environ, STATE_VARIABLE: str(tmp_path / "cluster")})
    if reason := why_not(layout):
        pytest.skip(f"SKIPPED COMPOSE WITH A CLUSTER OF ONE'S OWN: {reason}")
    try:
        yield running.up(layout, build.warn)
    finally:
        running.down(layout, build.warn)


@pytest.fixture
def account(cluster: Cluster, tmp_path: Path) -> Iterator[Account]:
    """As the page wants it: what docs/howto/cluster.md makes."""
    folder = tmp_path / "account"
    folder.mkdir()
    with account_helpers.made(Target(cluster.layout.kubeconfig, "", cluster), folder) as made:
        yield made


def test_a_job_trains_and_outlives_the_containers(stack: Stack) -> None:
    stack.up()
    said = stack.cli(*("submit", "jobs/digits-sklearn/manifest.yaml", "--id", "kept", "--follow"), seconds=JOB_SECONDS)
    assert "val_accuracy" in said
    before = job(stack)
    assert before["state"] == "COMPLETED"
    stack.compose("down", "--timeout", "60", seconds=300)
    assert not stack.engine.docker(
        "ps", "--quiet", "--filter", f"label=com.docker.compose.project={stack.project}"
    ).stdout
    stack.up()
    assert job(stack) == before
    metrics = json.loads(stack.cli("metrics", "kept", "--json"))
    assert "val_accuracy" in json.dumps(metrics)
    # The second life takes jobs too, in an image without Python.
    stack.cli("submit", "jobs/shell-hello/manifest.yaml", "--id", "second", "--follow", seconds=JOB_SECONDS)
    assert job(stack, "second")["state"] == "COMPLETED"


def test_an_older_versions_tables_are_brought_up_to_date_before_anything_uses_them(stack: Stack) -> None:
    stack.up()
    before, metrics, newest = job(stack), stack.cli("metrics", "kept", "--json"), revisions(stack)
    stack.compose("stop", *AIRFLOW, "mlflow")
    for command in OLDER.values():
        stack.compose("run", "--rm", "--no-TTY", *command)
    assert not revisions(stack).items() & newest.items()
    stack.up()
    assert revisions(stack) == newest
    # Revision 0002 of the ledger cannot hold attempts of `prepare`: its downgrade deletes them.
    learners = [each for each in before["learners"] if each["role"] != "prepare"]
    assert len(learners) == len(before["learners"]) - 1
    assert job(stack) == {**before, "learners": learners}
    assert stack.cli("metrics", "kept", "--json") == metrics
    assert "second" in stack.cli("list", "--json")


def test_the_pages_backup_restored_on_an_empty_disk_has_the_job_and_its_files(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    before, metrics, result = job(stack), stack.cli("metrics", "kept", "--json"), counted(stack)
    assert len(result.splitlines()) == 10
    backup, restore = page_blocks("Back up and restore")
    for _ in range(2):  # a later backup takes the place of an earlier one
        run_page(stack, backup, tmp_path)
    kept = tmp_path / "updraft-backup"
    secrets = Path(stack.environment["UPDRAFT_SECRETS"])
    assert {file.name for file in (kept / "secrets").iterdir()} == {file.name for file in secrets.iterdir()}
    assert {file.name for file in kept.iterdir()} == {"secrets", "databases.sql", "s3.tar"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    stack.compose("--profile", "tools", "down", "--volumes", "--timeout", "60", seconds=300)
    run_page(stack, restore, tmp_path)
    assert job(stack) == before
    assert stack.cli("metrics", "kept", "--json") == metrics
    assert counted(stack) == result
    stack.cli("submit", "jobs/shell-hello/manifest.yaml", "--id", "third", "--follow", seconds=JOB_SECONDS)
    assert job(stack, "third")["state"] == "COMPLETED"


def test_a_clusters_kubeconfig_takes_the_place_of_the_bundled_nodes(stack: Stack, tmp_path: Path) -> None:
    mine = tmp_path / "kubeconfig"
    theirs = {
        "UPDRAFT_S3_ENDPOINT": "https://s3.example.org",
        "UPDRAFT_S3_REGION": "eu-central-1",
        "UPDRAFT_MLFLOW_BUCKET": "site-mlflow",
        "UPDRAFT_SIDECAR_IMAGE": "registry.example.org/sidecar:1",
    }
    theirs["UPDRAFT_FRAMEWORK_IMAGES"] = '{"shell": "registry.example.org/shell:1"}'
    variables = {"UPDRAFT_KUBECONFIG": str(mine), **theirs}
    described = replace(stack, environment={**stack.environment, **variables}).compose("config", "--format", "json")
    found = json.loads(described)
    assert found["secrets"]["kubeconfig"]["file"] == str(mine)
    scheduler = found["services"]["airflow-scheduler"]
    assert theirs.items() <= scheduler["environment"].items()
    assert not scheduler["environment"].get("UPDRAFT_TENANTS")  # what nobody names keeps its default
    assert "kubeconfig" in {secret["source"] for secret in scheduler["secrets"]}
    assert found["services"]["mlflow"]["environment"]["AWS_DEFAULT_REGION"] == "eu-central-1"
    assert "--artifacts-destination=s3://site-mlflow/artifacts" in found["services"]["mlflow"]["command"]


def test_of_a_kubeconfigs_contexts_the_one_named_is_meant(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    document = json.loads((Path(stack.environment["UPDRAFT_SECRETS"]) / "kubeconfig").read_text())
    bundled, server = document["contexts"][0], document["clusters"][0]["cluster"]["server"]
    document["clusters"].append({"name": "elsewhere", "cluster": {"server": "https://127.0.0.1:9"}})
    document["contexts"].append({"name": "elsewhere", "context": {**bundled["context"], "cluster": "elsewhere"}})
    mine = tmp_path / "kubeconfig"
    mine.write_text(json.dumps({**document, "current-context": "elsewhere"}))
    mine.chmod(0o444)
    given = {"UPDRAFT_KUBECONFIG": str(mine), "UPDRAFT_NODE_LOST_SECONDS": "77"}
    several = replace(stack, environment={**stack.environment, **given})
    ask = ("run", "--rm", "--no-TTY", "--no-deps", "airflow-triggerer", "python", "-c", ASK_CLUSTER)
    assert "holds 2 contexts" in several.compose(*ask, check=False, stderr=True)
    named = replace(several, environment={**several.environment, "UPDRAFT_KUBERNETES_CONTEXT": bundled["name"]})
    assert named.compose(*ask).splitlines()[-1] == f"77 {server}"


def test_secrets_are_in_no_containers_description_and_ports_on_loopback_only(stack: Stack) -> None:
    stack.up()
    containers = stack.compose("ps", "--all", "--quiet").split()
    text = stack.engine.docker("inspect", *containers).stdout
    words = secret_words(Path(stack.environment["UPDRAFT_SECRETS"]))
    assert len(words) > 10
    assert not [word for word in words if word in text]
    for container in json.loads(text):
        assert container["HostConfig"]["ReadonlyRootfs"] is True
        for bindings in (container["NetworkSettings"]["Ports"] or {}).values():
            assert {b["HostIp"] for b in bindings or []} <= {"127.0.0.1"}
    with urllib.request.urlopen(
        f"http://127.0.0.1:{stack.environment['UPDRAFT_AIRFLOW_PORT']}/api/v2/version"
    ) as answer:
        assert json.load(answer)["version"].startswith("3.")


@pytest.mark.cluster
def test_a_job_trains_on_a_cluster_outside_of_the_containers(
    stack: Stack, images: dict[str, build.Built], places: Places, cluster: Cluster, account: Account
) -> None:
    """By the page's settings. Containers reach this machine, pods too, and neither of them the other."""
    for archive in build.save(
        stack.engine, (recipes.SIDECAR, recipes.DATA, recipes.SKLEARN), places.archives, build.warn
    ):
        cluster.load_image(archive)
    host, ours = cluster.network.host, stack.environment
    with (
        forwarded(host, (cluster.network.control, 443)) as api,
        forwarded(host, ("127.0.0.1", int(ours["UPDRAFT_S3_PORT"]))) as s3,
        forwarded(host, ("127.0.0.1", int(ours["UPDRAFT_MLFLOW_PORT"]))) as mlflow,
    ):
        account.shell(
            f"kubectl --kubeconfig updraft.kubeconfig config set-cluster updraft-test --server https://{host}:{api}\n"
            "chmod 0444 updraft.kubeconfig"
        )
        settings = page_settings(
            {
                "./kubeconfig": str(account.kubeconfig),
                "https://s3.example.org": f"http://{host}:{s3}",
                "https://mlflow.example.org": f"http://{host}:{mlflow}",
                "mlflow.example.org": f"{host}:{mlflow}",
                REGISTRY: "",
            }
        )
        outside = replace(stack, environment={**ours, **settings})
        outside.up()
        submit = ("submit", "jobs/digits-sklearn/manifest.yaml", "--id", "outside", "--follow")
        assert "val_accuracy" in outside.cli(*submit, seconds=JOB_SECONDS)
        assert job(outside, "outside")["state"] == "COMPLETED"
        assert "val_accuracy" in outside.cli("metrics", "outside", "--json")
        events = json.loads(account.shell("kubectl --namespace updraft-default get events --output json"))["items"]
        started = {
            e["source"].get("host") for e in events if e["reason"] == "Started" and "outside" in e["metadata"]["name"]
        }
        assert started & {"node-a", "node-b"}


def job(stack: Stack, name: str = "kept") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stack.cli("show", name, "--json"))
    return found


def revisions(stack: Stack) -> dict[str, str]:
    """Which migration each database is at."""
    tables = {"ledger": VERSION_TABLE, "mlflow_auth": "alembic_version_auth"}
    found = {}
    for database in OLDER:
        table = tables.get(database, "alembic_version")
        script = (
            "PGPASSWORD=$(cat /run/secrets/postgres_password) exec psql --host 127.0.0.1 --username postgres "
            f"--tuples-only --no-align --dbname {database} --command 'SELECT version_num FROM {table}'"
        )
        found[database] = stack.compose("exec", "--no-TTY", "postgres", "sh", "-c", script).strip()
    return found


def counted(stack: Stack) -> str:
    """The second job's result, from the store, as a user gets it."""
    script = (
        "updraft download second results --output /tmp/result >/dev/null && cat $(find /tmp/result -name counts.txt)"
    )
    shell = ("--entrypoint", "/opt/updraft/entrypoint.sh", "cli", "sh", "-c", script)
    return stack.compose("run", "--rm", "--no-TTY", *shell)


def page_blocks(heading: str) -> list[str]:
    """The shell blocks below a heading of docs/howto/compose.md."""
    page = (REPOSITORY / "docs" / "howto" / "compose.md").read_text()
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def page_settings(values: dict[str, str]) -> dict[str, str]:
    """What the page writes to `.env` for a cluster of one's own, with its examples replaced in this order."""
    _, block = page_blocks("With a cluster of your own")
    for example, value in values.items():
        assert example in block, example
        block = block.replace(example, value)
    lines = block.partition("<<'END'\n")[2].partition("\nEND\n")[0].splitlines()
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


def run_page(stack: Stack, block: str, home: Path) -> None:
    """What the page says, as it says it, but for names: this stack's project and secrets, another home."""
    named = shlex.join([*stack.command, "--project-name", stack.project])
    text = block.replace("docker compose", named).replace(".updraft/compose", stack.environment["UPDRAFT_SECRETS"])
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", text],
        cwd=REPOSITORY,
        env={**stack.environment, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=UP_SECONDS + 60,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def secret_words(folder: Path) -> set[str]:
    """What of the files is random: long, and of capitals and digits too."""
    words = {word for file in folder.iterdir() for word in re.findall(r"[A-Za-z0-9_=-]{16,}", file.read_text())}
    return {word for word in words if re.search(r"[A-Z]", word) and re.search(r"\d", word)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
