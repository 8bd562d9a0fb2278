"""The client of a platform: the verbs that the CLI and `import updraft` offer, over HTTP only.

Submits through Airflow's REST API, reads through the plugin's routes; never a database, never an object store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from updraft.client.config import Connection, load_config
from updraft.client.http import Session
from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.wire import (
    API_PREFIX,
    PART_TITLES,
    AttemptList,
    CheckpointList,
    FileList,
    Health,
    JobDetail,
    JobList,
    JobSummary,
    LogLine,
    LogPage,
    Metrics,
    RequestList,
    SecretList,
    Stage,
    TransitionList,
    Validation,
)

TRAIN_DAG = "train_model"
DEFAULT_TENANT = "default"
LIFE_CYCLE = (
    "admit",
    "stage_data",
    "validate_data",
    "train",
    "watch_checkpoints",
    "evaluate",
    "export_model",
    "register_model",
    "promote",
    "release",
)
POLL_SECONDS = 2.0
WAIT_SECONDS = 600.0  # for the answer to a request: halting waits for a checkpoint
AIRFLOW_ENDS = {"failed": "FAILED", "success": "COMPLETED"}


@dataclass(frozen=True)
class Job:
    """A submitted job: its id and the client that knows it."""

    id: str
    client: Client = field(repr=False, compare=False)
    warnings: tuple[str, ...] = ()
    existed: bool = False  # the same submission was accepted before

    def show(self) -> JobDetail:
        return self.client.job(self.id)

    def wait(self, timeout_seconds: float | None = None) -> JobDetail:
        return self.client.wait(self.id, timeout_seconds=timeout_seconds)

    def logs(self, **options: Any) -> Iterator[LogLine]:
        return self.client.logs(self.id, **options)

    def metrics(self, *keys: str) -> Metrics:
        return self.client.metrics(self.id, *keys)

    def cancel(self) -> str:
        return self.client.cancel(self.id)

    def halt(self, **options: Any) -> str:
        return self.client.halt(self.id, **options)

    def resume(self, changes: Mapping[str, Any] | None = None, **options: Any) -> str:
        return self.client.resume(self.id, changes, **options)

    def download(self, kind: str, folder: Path) -> list[Path]:
        return self.client.download(self.id, kind, folder)


class Client:
    """A platform, as one user. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        session: Session | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.http = session or Session(connection or load_config())
        self._sleep = sleep

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    # --- Submission -----------------------------------------------------------------------------------
    def submit(
        self,
        manifest: str | Path | Mapping[str, Any],
        *,
        job_id: str | None = None,
        base: Path | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> Job:
        """Pack, upload and start; returns when Airflow has recorded the run.

        `manifest` is a file or a mapping; paths in it are relative to the file's folder, or to `base`. `job_id` makes
        the call repeatable: the same manifest under the same id is the same job. `on_progress(what, bytes done, bytes
        in all)` is told of uploads. Raises ManifestError, RefusedError, DataError or UnavailableError; then nothing
        was submitted.
        """
        from updraft.client.submission import submit

        return submit(self, manifest, job_id=job_id, base=base, on_progress=on_progress)

    def validate(self, manifest: Mapping[str, Any]) -> Validation:
        """What the platform thinks of a manifest; this machine's files are not looked at."""
        return Validation.model_validate(self.http.json("POST", f"{API_PREFIX}/validate", body=dict(manifest)))

    def health(self) -> Health:
        return Health.model_validate(self.http.json("GET", f"{API_PREFIX}/health"))

    def check_health(self) -> Health:
        """Raises UnavailableError naming each part that a new job needs and that does not answer."""
        health = self.health()
        down = [part for part in health.parts if not part.ok]
        if down:
            names = " and ".join(PART_TITLES.get(part.name, part.name) for part in down)
            why = "; ".join(part.detail for part in down)
            raise UnavailableError(
                f"{names} {'is' if len(down) == 1 else 'are'} not reachable ({why}); nothing was submitted. "
                "`updraft status` shows the parts"
            )
        return health

    # --- Reading --------------------------------------------------------------------------------------
    def jobs(self, *, state: str | None = None, name: str | None = None, limit: int = 50) -> list[JobSummary]:
        """Newest first."""
        answer = self.http.json("GET", f"{API_PREFIX}/jobs", params={"state": state, "name": name, "limit": limit})
        return list(JobList.model_validate(answer).jobs)

    def job(self, job_id: str) -> JobDetail:
        """Raises NotFoundError when neither the platform nor Airflow knows the id."""
        try:
            return JobDetail.model_validate(self.http.json("GET", _job(job_id)))
        except NotFoundError as unknown:
            run = self._run(job_id)
            if run is None:
                raise unknown
            from updraft.client.unrecorded import from_run

            return from_run(self.http, job_id, run)

    def transitions(self, job_id: str) -> TransitionList:
        return TransitionList.model_validate(self.http.json("GET", f"{_job(job_id)}/transitions"))

    def stages(self, job: JobDetail) -> list[Stage]:
        """The tasks of the job's DAG run, in the order of a job's life."""
        answer = self.http.json("GET", f"{_dag_run(job.dag_id, job.run_id)}/taskInstances", params={"limit": 100})
        stages = [
            Stage(
                name=task["task_id"],
                state=task.get("state") or "none",
                started_at=task.get("start_date"),
                ended_at=task.get("end_date"),
                tries=task.get("try_number") or 0,
            )
            for task in answer["task_instances"]
        ]
        known = {name: place for place, name in enumerate(LIFE_CYCLE)}
        return sorted(stages, key=lambda stage: known.get(stage.name, len(known)))

    def logs(
        self,
        job_id: str,
        *,
        learner: int = 1,
        role: str = "train",
        attempt: int | None = None,
        after: int = 0,
        limit: int | None = None,
        follow: bool = False,
        poll_seconds: float = POLL_SECONDS,
    ) -> Iterator[LogLine]:
        """Lines of one learner's log from number `after` + 1, at most `limit` of them.

        `attempt` is the latest when none is named; with `follow` goes on over new attempts until the job ends.
        """
        current, left = attempt, limit
        while left is None or left > 0:
            ended = not follow or self.job(job_id).ended  # asked before reading: what is written later is not missed
            query = {"learner": learner, "role": role, "attempt": current, "after": after, "limit": left}
            try:
                page = LogPage.model_validate(self.http.json("GET", f"{_job(job_id)}/logs", params=query))
            except NotFoundError:
                if ended:
                    raise
                self._sleep(poll_seconds)
                continue
            current, after = page.attempt, page.after
            yield from page.lines[:left]
            left = None if left is None else left - len(page.lines)
            if page.lines:
                continue
            newer = attempt is None and page.latest_attempt > current
            if newer:
                current, after = current + 1, 0
            elif ended:
                return
            else:
                self._sleep(poll_seconds)

    def metrics(self, job_id: str, *keys: str) -> Metrics:
        """Last values, and the history of the keys asked for."""
        return Metrics.model_validate(
            self.http.json("GET", f"{_job(job_id)}/metrics", params={"key": list(keys) or None})
        )

    def checkpoints(self, job_id: str, *, all: bool = False) -> CheckpointList:
        """Those that are kept; with `all`, also those that were deleted or quarantined."""
        params = {"all": True} if all else None
        return CheckpointList.model_validate(self.http.json("GET", f"{_job(job_id)}/checkpoints", params=params))

    def attempts(self, job_id: str) -> AttemptList:
        """Every launch of the job's learners: how it began and ended, and what was done about it."""
        return AttemptList.model_validate(self.http.json("GET", f"{_job(job_id)}/attempts"))

    def requests(self, job_id: str) -> RequestList:
        """What people asked of the job, and the answers."""
        return RequestList.model_validate(self.http.json("GET", f"{_job(job_id)}/requests"))

    def files(self, job_id: str, kind: str) -> FileList:
        """`kind` is results, model or checkpoint:<name>."""
        return FileList.model_validate(self.http.json("GET", f"{_job(job_id)}/files", params={"kind": kind}))

    def download(
        self,
        job_id: str,
        kind: str,
        folder: Path,
        *,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> list[Path]:
        """Write the files of that kind below `folder`; returns them. A file appears only when it is whole."""
        from updraft.client.transfer import download_files

        return download_files(self.http, _job(job_id), self.files(job_id, kind), folder, on_progress)

    # --- Acting ---------------------------------------------------------------------------------------
    def cancel(self, job_id: str) -> str:
        """Ask the job to end as CANCELLED; says what happens next. Asking twice is harmless."""
        try:
            return str(self.act(job_id, "cancel")["message"])
        except NotFoundError:
            run = self._run(job_id)
            if run is None:
                raise
        if run.get("state") in AIRFLOW_ENDS:
            return "The run has ended in Airflow already."
        # No task has run: there is nothing to free, and nobody yet who would obey a request in the ledger.
        self.http.json("PATCH", _dag_run(run["dag_id"], job_id), body={"state": "failed"})
        return "The run was ended in Airflow before its first task started."

    def halt(self, job_id: str, *, wait: bool = False, timeout_seconds: float = WAIT_SECONDS) -> str:
        """Ask the job to save a checkpoint and stop, to go on later. With `wait`, returns its answer once it is halted.

        Raises RefusedError when it cannot be halted, UpdraftError when it ended instead, UnavailableError when it does
        not answer in time.
        """
        from updraft.client.requests import ask

        return ask(self, job_id, "halt", None, timeout_seconds if wait else None)

    def resume(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        wait: bool = False,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> str:
        """Ask a halted job to go on from its checkpoint.

        `changes` is a partial manifest: command, params, env, resources, budget, checkpoints and failures may change,
        None takes a value back to its default. Raises as `halt`, and InvalidRequestError naming every wrong field.
        """
        from updraft.client.requests import ask

        body = {"changes": dict(changes or {})}
        return ask(self, job_id, "resume", body, timeout_seconds if wait else None)

    def act(self, job_id: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """POST to one of the job's verbs."""
        return dict(self.http.json("POST", f"{_job(job_id)}/{verb}", body=body))

    def pause(self) -> None:
        self._sleep(POLL_SECONDS)

    def wait(
        self, job_id: str, *, timeout_seconds: float | None = None, poll_seconds: float = POLL_SECONDS
    ) -> JobDetail:
        """The job once it has ended. Raises UnavailableError when the time is over first."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            job = self.job(job_id)
            if job.ended:
                return job
            if deadline is not None and time.monotonic() >= deadline:
                raise UnavailableError(f"job {job_id} is still {job.state} after {timeout_seconds:g} s ({job.reason})")
            self._sleep(poll_seconds)

    # --- Secrets --------------------------------------------------------------------------------------
    def set_secret(self, name: str, data: Mapping[str, str], *, tenant: str = DEFAULT_TENANT) -> None:
        self.http.json("PUT", _secret(name), params={"tenant": tenant}, body={"data": dict(data)})

    def secrets(self, *, tenant: str = DEFAULT_TENANT) -> list[str]:
        """Names only."""
        answer = self.http.json("GET", f"{API_PREFIX}/secrets", params={"tenant": tenant})
        return list(SecretList.model_validate(answer).secrets)

    def delete_secret(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        self.http.json("DELETE", _secret(name), params={"tenant": tenant})

    # --- Airflow's own record of a job ----------------------------------------------------------------
    def trigger(self, job_id: str, conf: dict[str, Any]) -> None:
        """Start the job's DAG run. Raises ConflictError when there is a run of that id."""
        try:
            self.http.json(
                "POST",
                f"/api/v2/dags/{TRAIN_DAG}/dagRuns",
                body={"dag_run_id": job_id, "logical_date": None, "conf": conf},
            )
        except NotFoundError as exc:
            raise UnavailableError(
                f"Airflow does not know the DAG {TRAIN_DAG} yet; it has just started, or the DAG has an import error "
                f"({self.http.connection.airflow_url}/dags)"
            ) from exc

    def run_conf(self, job_id: str) -> dict[str, Any] | None:
        run = self._run(job_id)
        return None if run is None else dict(run.get("conf") or {})

    def _run(self, job_id: str) -> dict[str, Any] | None:
        """Airflow's run of `train_model` with that id; None if there is none. Other DAGs are not asked."""
        try:
            found = self.http.json("GET", _dag_run(TRAIN_DAG, job_id))
        except NotFoundError:
            return None
        if not isinstance(found, dict):
            raise UnavailableError("Airflow answered a DAG run with something else")
        return found


def _job(job_id: str) -> str:
    return f"{API_PREFIX}/jobs/{_segment(job_id)}"


def _secret(name: str) -> str:
    return f"{API_PREFIX}/secrets/{_segment(name)}"


def _dag_run(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{_segment(dag_id)}/dagRuns/{_segment(run_id)}"


def _segment(text: str) -> str:
    """One segment of a path; `.` and `..` would be another path."""
    if text in ("", ".", ".."):
        raise RefusedError(f"{text!r} is no name")
    return quote(text, safe="")
