"""The platform that is broken: a stack of the lab's own, and every way to look at it and to reach into it.

Called by `run`, `facts` and the kinds. It is started as users start theirs and always ended; the stack of the checkout
itself is never touched.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psutil
from benchmarks.machine import REPOSITORY
from benchmarks.stack import PREPARED, STACK, BenchmarkError, down, environment

from updraft.client import Client
from updraft.client import load_config as connection_of
from updraft.exceptions import NotFoundError, UpdraftError
from updraft.ledger import Job, Ledger
from updraft.lifecycle.workflow import TRAIN_DAG
from updraft.stack.config import MLFLOW_USER, load_config, load_secrets
from updraft.stack.files import NAMESPACE
from updraft.stack.layout import Home
from updraft_learner import contract

UP_SECONDS = 400
TENANT = "default"
BUCKET = "updraft"
CPUS, MEMORY_MIB = 4, 12288  # of five jobs some wait in the queue, and not for most of the run
REQUEST_SECONDS = 30.0
DISK_BYTES = 96 * 1024**2  # of a learner's pod
PROGRAMS = frozenset({"chain.py", "cnn.py", "linear.py", "members.py", "count.sh", "judge.py"})
DATA = REPOSITORY / "jobs" / "data" / "digits" / "digits.csv"


@dataclass(frozen=True)
class Lab:
    """One running stack. Durations of faults are multiplied by `scale`."""

    home: Home
    client: Client
    scale: float
    witness: Path  # where the programs note what they do
    small_disks: bool = False  # pods have disks of their own, which can be filled
    killed: Counter[str] = field(default_factory=Counter)  # of the process tree, how often each place in it

    @cached_property
    def ledger(self) -> Ledger:
        """Read only, by habit: the lab writes nothing there."""
        return Ledger(f"sqlite:///{self.home.ledger_file}")

    @cached_property
    def _node(self) -> httpx.Client:
        token = (self.home.node / "token").read_text().strip()
        address = load_config(self.home).ports.url("node")
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=address, headers=headers, timeout=REQUEST_SECONDS, trust_env=False)

    @cached_property
    def _mlflow(self) -> httpx.Client:
        password = load_secrets(self.home).mlflow_platform_password.get_secret_value()
        address = load_config(self.home).ports.url("mlflow")
        return httpx.Client(base_url=address, auth=(MLFLOW_USER, password), timeout=REQUEST_SECONDS, trust_env=False)

    # --- the cluster ------------------------------------------------------------------------------------------
    def fault(self, kind: str, **body: Any) -> dict[str, Any]:
        """Ask the local node to misbehave."""
        answer = _again(lambda: self._node.post("/faults", json={"kind": kind, **body}))
        found: dict[str, Any] = answer.json()
        return found

    def ending_pods(self) -> frozenset[str]:
        """Return the names of pods that the API has no more and that their node, found again, is still ending."""
        unseen = _again(lambda: self._node.get("/faults")).json()["unseen_pods"]
        return frozenset(pod["pod"] for pod in unseen if not pod["in_api"])

    def objects(self, resource: str, job_id: str) -> list[dict[str, Any]]:
        """Return the pods, services or secrets of a job that the cluster shows."""
        path = f"/api/v1/namespaces/{NAMESPACE}/{resource}"
        query = {"labelSelector": f"{contract.LABEL_JOB}={job_id}"}
        answer = _again(lambda: self._node.get(path, params=query), missing_is_empty=True)
        return list(answer.json()["items"]) if answer.status_code == 200 else []

    def delete_pod(self, name: str, grace_seconds: int) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
        _again(
            lambda: self._node.request("DELETE", path, params={"gracePeriodSeconds": grace_seconds}),
            missing_is_empty=True,
        )

    # --- Airflow and MLflow -----------------------------------------------------------------------------------
    def airflow(self, method: str, path: str, body: Any = None) -> Any:
        """Make a request; `path` is below the DAG of all jobs of the lab. Raises NotFoundError and UnavailableError."""
        return self.client.http.json(method, f"/api/v2/dags/{TRAIN_DAG}{path}", body=body)

    def airflow_run(self, job_id: str) -> dict[str, Any] | None:
        try:
            found = self.airflow("GET", f"/dagRuns/{job_id}")
        except NotFoundError:
            return None
        return dict(found)

    def task_states(self, job_id: str) -> dict[str, str]:
        try:
            found = self.airflow("GET", f"/dagRuns/{job_id}/taskInstances?limit=100")
        except NotFoundError:
            return {}
        return {task["task_id"]: str(task["state"]) for task in found["task_instances"]}

    def task_ends(self, job_id: str) -> dict[str, float]:
        """Return when each task of the job's run succeeded, as unix seconds."""
        try:
            found = self.airflow("GET", f"/dagRuns/{job_id}/taskInstances?limit=100")["task_instances"]
        except NotFoundError:
            return {}
        return {
            task["task_id"]: datetime.fromisoformat(task["end_date"]).timestamp()
            for task in found
            if task["state"] == "success" and task["end_date"]
        }

    def running_tasks(self, job_id: str) -> set[str]:
        """Return the tasks of the job's run that are executed or deferred now."""
        return {name for name, state in self.task_states(job_id).items() if state in ("running", "deferred")}

    def versions(self, name: str) -> list[dict[str, Any]]:
        """Return the versions of a registered model, with their aliases."""
        found = self.mlflow("model-versions/search", filter=f"name='{name}'").get("model_versions", ())
        return [dict(version) for version in found]

    def alias(self, name: str, alias: str) -> str | None:
        """Return the version that an alias points to."""
        found = self.mlflow("registered-models/alias", name=name, alias=alias)
        return str(found["model_version"]["version"]) if "model_version" in found else None

    def mlflow(self, path: str, **query: Any) -> dict[str, Any]:
        answer = _again(lambda: self._mlflow.get(f"/api/2.0/mlflow/{path}", params=query), missing_is_empty=True)
        found: dict[str, Any] = answer.json()
        return found

    # --- records and files ------------------------------------------------------------------------------------
    def job(self, job_id: str) -> Job | None:
        """Return the job as the ledger has it; None while `admit` has not recorded it."""
        try:
            return self.ledger.jobs.get(job_id)
        except NotFoundError:
            return None

    def granted(self, job_id: str) -> bool:
        """Return whether the job holds a place, as the ledger's file says."""
        query = "SELECT count(*) FROM grants WHERE job_id = ? AND granted_at IS NOT NULL AND released_at IS NULL"
        with closing(sqlite3.connect(f"file:{self.home.ledger_file}?mode=ro", uri=True, timeout=30)) as connection:
            return bool(connection.execute(query, (job_id,)).fetchone()[0])

    def data_verdicts(self, tree: str) -> list[bool]:
        """Return what was found by each suite that was run on these data, as the ledger's file says."""
        query = "SELECT success FROM validations WHERE fingerprint = ?"
        with closing(sqlite3.connect(f"file:{self.home.ledger_file}?mode=ro", uri=True, timeout=30)) as connection:
            return [bool(row[0]) for row in connection.execute(query, (tree,))]

    def stored(self, job_id: str) -> Path:
        """Return the job's folder in the object store, on the disk of the server."""
        return self.home.s3 / BUCKET / contract.Keys(TENANT).job(job_id)

    def programs(self, job_id: str) -> list[psutil.Process]:
        """Return the living processes of the job's own program, whatever the platform shows of them."""
        return [
            process
            for process, environ, words in _processes()
            if environ.get("TRAINING_ID") == job_id and PROGRAMS.intersection(words)
        ]

    def coordinators(self, job_id: str) -> list[psutil.Process]:
        """Return the process that tells the learners of the job who trains together, if it runs."""
        return _running(job_id, "updraft_learner.elastic.pod")

    def sidecars(self, job_id: str) -> list[psutil.Process]:
        return _running(job_id, "updraft_learner.sidecar")

    def processes(self, job_id: str) -> list[psutil.Process]:
        """Return everything that runs in a container of the job."""
        mark = f'"job_id": "{job_id}"'
        return [
            process
            for process, environ, _ in _processes()
            if environ.get("TRAINING_ID") == job_id or mark in environ.get(contract.CONFIG_ENV, "")
        ]


def _running(job_id: str, module: str) -> list[psutil.Process]:
    """Return the processes of the platform's own module in the job's pods."""
    mark = f'"job_id": "{job_id}"'
    return [
        process
        for process, environ, words in _processes()
        if mark in environ.get(contract.CONFIG_ENV, "") and module in words
    ]


def _processes() -> Iterator[tuple[psutil.Process, dict[str, str], list[str]]]:
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            ours = "TRAINING_ID" in environ or contract.CONFIG_ENV in environ
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process, environ, process.cmdline()
        except (psutil.Error, OSError):
            continue


class RefusedError(BenchmarkError):
    """An answer that asking again would not change."""

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(problem)
        self.status = status


def _again(request: Any, *, missing_is_empty: bool = False, seconds: float = 60.0) -> httpx.Response:
    """Return the lab looks at what it has just broken: it asks until it is answered."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer: httpx.Response = request()
            if answer.is_success or (missing_is_empty and answer.status_code == 404):
                return answer
            problem = (
                f"{answer.request.method} {answer.request.url.path} gave {answer.status_code}: {answer.text[:300]}"
            )
            if answer.status_code == 501 or (answer.status_code < 500 and answer.status_code not in (408, 429)):
                raise RefusedError(problem, answer.status_code)
        except httpx.HTTPError as exc:
            problem = f"{type(exc).__name__}: {exc}"
        if time.monotonic() > deadline:
            raise BenchmarkError(problem)
        time.sleep(0.5)


@contextmanager
def running_lab(root: Path, scale: float) -> Iterator[Lab]:
    """Start a fresh platform below `root`; it is ended and, when all went well, removed afterwards."""
    home = Home(root=root.absolute(), repository=REPOSITORY)
    down(home)
    shutil.rmtree(home.root, ignore_errors=True)
    home.root.mkdir(parents=True, mode=0o700)
    for folder in (home.images, home.environments):
        folder.symlink_to(PREPARED / folder.name, target_is_directory=True)
    check_environment(home)
    witness = home.root / "witness"
    witness.mkdir()
    try:
        _put_data(home)
        start(home)
        with Client(connection_of({"UPDRAFT_HOME": str(home.root)})) as client:
            lab = Lab(home, client, scale, witness)
            yield replace(lab, small_disks=_small_disks(lab))
    finally:
        down(home)


def _put_data(home: Home) -> None:
    """Put the data where the S3 server will serve it, before its start: it remembers for minutes what its folders
    hold."""
    target = home.s3 / "datasets" / "fault-lab" / DATA.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DATA, target)


def check_environment(home: Home) -> None:
    """Check the environments. The homes of a checkout share them: one that was rebuilt or removed is no defect of a
    job.

    Raises BenchmarkError.
    """
    python = home.images / "updraft-sidecar-0-1" / "bin" / "python"
    asked = [str(python), "-c", "import updraft_learner.sidecar.__main__, botocore"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        problem = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    except OSError as exc:
        problem = str(exc)
    if problem:
        raise BenchmarkError(f"the environment of the jobs is broken ({problem}): python -m updraft.stack prepare")


def _small_disks(lab: Lab) -> bool:
    """Return whether pods get small disks, which only some machines can give."""
    try:
        lab.fault("small_disks", bytes=DISK_BYTES)
    except BenchmarkError:
        return False
    return True


def start(home: Home) -> None:
    """Start the stack with the same number of CPUs whatever the machine has, so that all machines do the same."""
    done = subprocess.run(
        [*STACK, "up", "--cpus", str(CPUS), "--memory-mib", str(MEMORY_MIB)],
        # Without jobs that give room back: the faults alone have to explain why learners started again.
        env={**environment(home), "UPDRAFT_BACKFILL": "false", "UPDRAFT_ELASTIC_HANG_SECONDS": "10"},
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"the platform did not start:\n{done.stdout}{done.stderr}")


def state_of(lab: Lab, job_id: str) -> str:
    """Return the job's state in the ledger, `not accepted` for a job that it lacks, `?` while it cannot be read."""
    try:
        job = lab.job(job_id)
    except UpdraftError:
        return "?"
    return "not accepted" if job is None else str(job.state)


def is_over(lab: Lab, job_id: str) -> bool:
    """Return whether the ledger has the job's verdict; an unreadable ledger says no."""
    try:
        job = lab.job(job_id)
    except UpdraftError:
        return False
    return job is not None and job.ended
