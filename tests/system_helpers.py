"""A whole stack of its own for the system tests: Airflow, MLflow, S3 and the local node as real processes.

Its environments are those that `make test` prepared. Everything is ended afterwards, and a test checks that it was.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from updraft.client import Client, load_config
from updraft.settings import Settings
from updraft.stack.environments import framework_tests
from updraft.stack.layout import Home
from updraft.stack.verbs import init
from updraft_learner import contract
from updraft_learner.pod import S3Credentials
from updraft_learner.store import S3Store

REPOSITORY = Path(__file__).parents[1]
SOURCES = (
    "pyproject.toml",
    "uv.lock",
    "README.md",
    "LICENSE",
    "operators",
    "images/data",
    "images/learner",
    "images/localnode",
    "mlflow/pyproject.toml",
    "dags",
)
APPROVER = "grace"
NOTIFIER = {"class": "updraft.notifiers.WebhookNotifier", "arguments": {"conn_id": "team_chat"}}
USERS = {APPROVER: "op", "eve": "op", "vic": "viewer"}  # in Airflow, besides the administrator
PREPARED = Path(os.environ.get("UPDRAFT_HOME") or REPOSITORY / ".updraft")
UP_SECONDS = 400
END_SECONDS = 420
CHECKPOINT_SECONDS = 600
JUDGING_BYTES = 2 << 30  # a table that swells beyond it is made quickly


@dataclass(frozen=True)
class Stack:
    """A running stack and a client of it; `started` is how much its logs held when it was ready."""

    home: Path
    client: Client
    started: dict[Path, int] = field(default_factory=dict, kw_only=True)

    def run(self, *arguments: str, timeout_seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """`updraft ...` as a user types it, with this stack as its home."""
        environment = {**os.environ, "UPDRAFT_HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "200"}
        return subprocess.run(
            [str(Path(sys.executable).parent / "updraft"), *arguments],
            env=environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def submit(self, manifest: dict[str, Any], base: Path | None = None) -> str:
        return self.client.submit(manifest, base=base).id

    def end(self, job_id: str) -> Any:
        """The job's detail after it has ended; the test's own patience is bounded."""
        return self.client.wait(job_id, timeout_seconds=END_SECONDS)

    def transitions(self, job_id: str) -> list[str]:
        states = [t.state for t in self.client.transitions(job_id).transitions]
        return [s for n, s in enumerate(states) if n == 0 or s != states[n - 1]]

    def reach(self, job_id: str, state: str) -> Any:
        """The job once it is in this state (or has ended without)."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            detail = self.client.job(job_id)
            if detail.state == state:
                return detail
            assert not detail.ended, pretty(detail)
            time.sleep(0.5)
        raise AssertionError(f"{job_id} never was {state}")

    def task_log(self, detail: Any, task: str) -> str:
        """What Airflow's page shows as the log of the task's last try."""
        run = f"/api/v2/dags/{detail.dag_id}/dagRuns/{detail.run_id}/taskInstances/{task}"
        last = self.client.http.json("GET", run)["try_number"]
        found = self.client.http.json("GET", f"{run}/logs/{last}")["content"]
        return "\n".join(f"{entry.get('event')} {entry.get('error_detail') or ''}" for entry in found)

    def trigger(self, run_id: str, conf: dict[str, Any]) -> None:
        """Starts `train_model` as the button of Airflow's form does. Raises with Airflow's own words."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self.client.http.json("POST", "/api/v2/dags/train_model/dagRuns", body=body)

    def job_page(self, job_id: str) -> str:
        """The job's page inside Airflow, as HTML."""
        with self.client.http.download(f"/updraft/jobs/{job_id}", {}) as answer:
            return answer.read().decode()

    def s3_keys(self) -> dict[str, str]:
        """`access_key` and `secret_key`, as a person may store them in a secret of theirs."""
        keys: dict[str, str] = json.loads((self.home / "credentials.json").read_text())["s3"]
        return keys

    def put_object(self, bucket: str, key: str, data: bytes) -> None:
        """Through the S3 server: it remembers for minutes what its folders hold."""
        self.store(bucket).put_bytes(key, data)

    def store(self, bucket: str) -> S3Store:
        keys = self.s3_keys()
        endpoint = f"http://127.0.0.1:{json.loads((self.home / 'config.json').read_text())['ports']['s3']}"
        return S3Store(bucket, S3Credentials(endpoint, "us-east-1", keys["access_key"], keys["secret_key"]))

    @contextmanager
    def frozen(self, part: str) -> Iterator[None]:
        """The part's processes are stopped (SIGSTOP) and go on afterwards; so is the supervisor, which would kill them
        and start the part again."""

        def leader(name: str) -> psutil.Process:
            return psutil.Process(json.loads((self.home / "run" / f"{name}.json").read_text())["pid"])

        supervisor, first = leader("supervisor"), leader(part)
        stopped = [supervisor, first, *first.children(recursive=True)]
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in reversed(stopped):
                process.resume()

    def job_of(self, dag_id: str, run_id: str) -> str:
        """Id of the job of a run that Airflow named."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            for summary in self.client.jobs(limit=100):
                detail = self.client.job(summary.id)
                if (detail.dag_id, detail.run_id) == (dag_id, run_id):
                    return str(summary.id)
            time.sleep(1)
        raise AssertionError(f"no job of {dag_id} {run_id}")

    def log(self, job_id: str, **options: Any) -> str:
        return "\n".join(line.line for line in self.client.logs(job_id, **options))


def installer() -> str:
    """Return uv as `make` finds or installs it; skips the test where there is none."""
    found = os.environ.get("UPDRAFT_UV") or shutil.which("uv")
    if not found:
        pytest.skip("uv is neither on the PATH nor named by UPDRAFT_UV; `make test` installs it")
    return found


def copy_sources(target: Path) -> None:
    """Copy what the wheels and the lock file's exports are built from into a folder."""
    for name in SOURCES:
        source, copied = REPOSITORY / name, target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, copied)


def on_demand_examples() -> list[str]:
    """Return the examples in `jobs/` whose framework's image is built when a job needs it."""
    images = Settings.model_fields["framework_images"].default
    on_demand = {images[name] for name in framework_tests(Home(root=PREPARED, repository=REPOSITORY))}
    manifests = {path.parent.name: yaml.safe_load(path.read_text()) for path in REPOSITORY.glob("jobs/*/manifest.yaml")}
    named = {name: manifest.get("framework") or {} for name, manifest in manifests.items()}
    return sorted(name for name, framework in named.items() if images.get(framework.get("name")) in on_demand)


@contextmanager
def running_stack(name: str, variables: Mapping[str, str], *, gpus: int = 1) -> Iterator[Stack]:
    """A stack with a new home of this name, started with these variables and ended afterwards."""
    if not (PREPARED / "envs" / "mlflow").exists():
        pytest.skip("SKIPPED SYSTEM TESTS: the environments are not built; run `make test`, which builds them")
    home = PREPARED / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for folder in ("images", "envs"):
        (home / folder).symlink_to(PREPARED / folder, target_is_directory=True)
    environment = {**os.environ, "UPDRAFT_HOME": str(home), **variables}
    (home / "dags").mkdir()  # for DAG files of a user's own; a test may add one
    made = init(home).model_copy(update={"users": USERS})
    (home / "config.json").write_text(made.model_dump_json())
    stack_command = [sys.executable, "-m", "updraft.stack"]
    try:
        # Two CPUs whatever the machine has, so that waiting in the queue is really seen; devices are imaginary.
        started = subprocess.run(
            [*stack_command, "up", "--cpus", "2", "--memory-mib", "12288", "--gpus", str(gpus)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=UP_SECONDS,
            check=False,
        )
        assert started.returncode == 0, started.stdout + started.stderr
        with Client(load_config({"UPDRAFT_HOME": str(home)})) as client:
            yield Stack(home, client, started=log_sizes(home))
    finally:
        subprocess.run([*stack_command, "down"], env=environment, timeout=180, check=False)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    lab = {
        "UPDRAFT_GIT_PROTOCOLS": "https,file",
        "UPDRAFT_VALIDATION_MEMORY_BYTES": str(JUDGING_BYTES),
        "UPDRAFT_APPROVERS": json.dumps({"default": [APPROVER]}),
        "UPDRAFT_NOTIFIERS": json.dumps({"team": NOTIFIER}),
    }
    with running_stack("system-tests", lab) as started:
        yield started


def log_sizes(home: Path) -> dict[Path, int]:
    """How many bytes each log of a home holds, its tasks' included."""
    files = [*(home / "logs").glob("*.log"), *(home / "airflow" / "logs").rglob("*.log")]
    return {path: path.stat().st_size for path in files if path.is_file()}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder for a job's code."""
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def shell_job(name: str, script: str, **fields: Any) -> dict[str, Any]:
    """A manifest of a job without Python: quick, and half a CPU wide."""
    return {
        "name": name,
        "framework": {"name": "shell"},
        "command": script,
        "resources": {"learners": 1, "cpus": 0.5, "memory": "256MiB"},
        **fields,
    }


# Makes the tool that NVIDIA's toolkit puts on the PATH of a container, and stays until it was asked.
ITS_OWN_DRIVER = """\
mkdir "$JOB_STATE_DIR/bin"
printf '#!/bin/sh\\necho "0, 87, 2000, 80000, 301.50"\\n' >"$JOB_STATE_DIR/bin/part"
chmod +x "$JOB_STATE_DIR/bin/part"
mv "$JOB_STATE_DIR/bin/part" "$JOB_STATE_DIR/bin/nvidia-smi"
seconds=0
until [ -e "$JOB_STATE_DIR/gpus.csv" ] || [ $seconds -ge 40 ]; do sleep 1; seconds=$((seconds + 1)); done
sleep 3
"""
ITS_VALUES = {
    "system/node_0/gpu_0_utilization_percentage": 87.0,
    "system/node_0/gpu_0_memory_usage_megabytes": 2097.2,
    "system/node_0/gpu_0_memory_usage_percentage": 2.5,
    "system/node_0/gpu_0_power_usage_watts": 301.5,
}


def counting_job(
    name: str, tenant: str, *, learners: int = 1, gpus: int = 1, pause_seconds: float = 2
) -> dict[str, Any]:
    """A job of ten steps with a checkpoint after each, which leaves when it is asked to. Its code is in `jobs`."""
    return {
        "name": name,
        "tenant": tenant,
        "framework": {"name": "shell"},
        "code": "shell-hello",
        "command": "sh count.sh",
        "params": {"pause_seconds": pause_seconds},
        "resources": {"learners": learners, "cpus": 0.1, "memory": "128MiB", "gpus": gpus},
        "data": [{"source": "s3://datasets/digits/", "as": "training"}],
        "checkpoints": {"every": "1s", "keep": {"latest": 2}},
    }


def gpu_job(name: str, resources: dict[str, Any]) -> dict[str, Any]:
    """A job on imaginary GPUs with an `nvidia-smi` that tells ITS_VALUES."""
    path = f"{contract.IO_DIR}/bin:/usr/local/bin:/usr/bin:/bin"
    return shell_job(name, ITS_OWN_DRIVER, env={"PATH": path}, resources=resources)


def values_of_gpus(client: Client, job_id: str) -> dict[str, float | None]:
    """In MLflow."""
    return {name: value for name, value in client.metrics(job_id).last.items() if "/gpu_" in name}


def until(found: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    """What `found` returns once it is true; `what` says what is missing after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.3)
    return result


def pretty(detail: Any) -> str:
    return json.dumps(detail.model_dump(mode="json"), indent=1)


def kill_after_a_checkpoint(stack: Stack, job: str) -> None:
    """Kill the programs of the job's training once it has a checkpoint."""
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    while not stack.client.checkpoints(job).checkpoints:
        detail = stack.client.job(job)
        assert not detail.ended, pretty(detail)
        assert time.monotonic() < deadline, pretty(detail)
        time.sleep(0.5)
    programs = [process for process in psutil.process_iter(["cmdline", "environ"]) if _is_program(process, job)]
    assert programs, "no program of the job runs"
    for program in programs:
        program.kill()


def _is_program(process: psutil.Process, job: str) -> bool:
    """Whether this is a Python process of the job's training; its sidecar has no TRAINING_ID."""
    variables = process.info["environ"] or {}
    command = process.info["cmdline"] or [""]
    mine = variables.get("TRAINING_ID") == job and variables.get("UPDRAFT_ROLE") == "train"
    return mine and "python" in Path(command[0]).name
