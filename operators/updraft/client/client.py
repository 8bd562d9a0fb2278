"""The client of a platform: the verbs that the CLI and `import updraft` offer, over HTTP only.

Submits through Airflow's REST API, reads through the plugin's routes; never a database, never an object store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from updraft.client.airflow_runs import dag_of, find_run, start_run
from updraft.client.config import Connection, load_config
from updraft.client.http import Session
from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.lifecycle.workflow import TASKS, TRAIN_DAG, TRAIN_ROLE
from updraft.wire import (
    API_PREFIX,
    PART_TITLES,
    AttemptList,
    CheckpointList,
    FileList,
    Health,
    JobDetail,
    JobList,
    JobManifest,
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

DEFAULT_TENANT = "default"
POLL_SECONDS = 2.0
PARTS_SECONDS = 60.0  # for parts that are late or away, before a submission is given up
NOT_NEEDED = frozenset({"mlflow"})  # for a submission: the job's first task waits for it
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
        params: Mapping[str, str] | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Job:
        """Pack, upload and start; returns when Airflow has recorded the run.

        `manifest` is a file or a mapping; paths in it are relative to the file's folder, or to `base`. `job_id` makes
        the call repeatable: the same manifest under the same id is the same job. `params` replaces values of the
        manifest's params, as text. `on_progress(what, bytes done, bytes in all)` is told of uploads, `on_wait(text)` of
        what is waited for. Raises ManifestError, RefusedError, DataError or UnavailableError; then nothing
        was submitted.
        """
        from updraft.client.submission import submit

        return submit(self, manifest, job_id=job_id, base=base, on_progress=on_progress, params=params, on_wait=on_wait)

    def validate(self, manifest: Mapping[str, Any]) -> Validation:
        """What the platform thinks of a manifest; this machine's files are not looked at."""
        return Validation.model_validate(self.http.json("POST", f"{API_PREFIX}/validate", body=dict(manifest)))

    def possible(self, manifest: Mapping[str, Any], *, secrets: Iterable[str] = ()) -> Validation:
        """What of a manifest cannot run on the platform as it is: its image, its size, its data, its secrets but for
        those named in `secrets`, which are about to be made. Needs the right to start jobs."""
        body = {"manifest": dict(manifest), "secrets": list(secrets)}
        return Validation.model_validate(self.http.json("POST", f"{API_PREFIX}/possible", body=body, repeatable=True))

    def health(self) -> Health:
        return Health.model_validate(self.http.json("GET", f"{API_PREFIX}/health"))

    def check_health(self, on_wait: Callable[[str], None] | None = None) -> Health:
        """The platform's health once every part answers that submitting needs; MLflow is told later.

        Waits up to `PARTS_SECONDS` for parts that do not answer, which a busy machine makes late; `on_wait` is told
        what is waited for. Raises UnavailableError naming them.
        """
        waited_seconds, told = 0.0, ""
        while True:
            asked = time.monotonic()
            health = self.health()
            down = [part for part in health.parts if not part.ok and part.name not in NOT_NEEDED]
            if not down:
                return health
            names = " and ".join(PART_TITLES.get(part.name, part.name).replace("The ", "the ") for part in down)
            if waited_seconds >= PARTS_SECONDS:
                why = "; ".join(part.detail for part in down)
                are = "is" if len(down) == 1 else "are"
                raise UnavailableError(
                    f"{names[0].upper()}{names[1:]} {are} not reachable ({why}); nothing was submitted. "
                    "`updraft status` shows the parts"
                )
            if on_wait is not None and names != told:
                on_wait(f"waiting for {names}, up to {PARTS_SECONDS:.0f} s")
            told = names
            self._sleep(POLL_SECONDS)
            waited_seconds += POLL_SECONDS + time.monotonic() - asked

    # --- Reading --------------------------------------------------------------------------------------
    def jobs(self, *, state: str | None = None, name: str | None = None, limit: int = 50) -> list[JobSummary]:
        """Newest first."""
        answer = self.http.json("GET", f"{API_PREFIX}/jobs", params={"state": state, "name": name, "limit": limit})
        return list(JobList.model_validate(answer).jobs)

    def job(self, job_id: str) -> JobDetail:
        """Raises NotFoundError when neither the platform nor Airflow knows the id."""
        return JobDetail.model_validate(self.http.json("GET", _job(job_id)))

    def manifest(self, job_id: str) -> dict[str, Any]:
        """The job's manifest with every field; uploaded code and data are `tree:` sources."""
        return JobManifest.model_validate(self.http.json("GET", f"{_job(job_id)}/manifest")).manifest

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
        known = {name: place for place, name in enumerate(TASKS)}
        return sorted(stages, key=lambda stage: known.get(stage.name, len(known)))

    def logs(
        self,
        job_id: str,
        *,
        learner: int = 1,
        role: str = TRAIN_ROLE,
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

    def last_lines(
        self, job_id: str, count: int, *, learner: int = 1, role: str = TRAIN_ROLE, attempt: int | None = None
    ) -> tuple[LogLine, ...]:
        """The last `count` lines of one learner's log."""
        query = {"learner": learner, "role": role, "attempt": attempt, "limit": count, "last": True}
        return LogPage.model_validate(self.http.json("GET", f"{_job(job_id)}/logs", params=query)).lines

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
            run = find_run(self.http, job_id)
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
    def trigger(self, job_id: str, conf: dict[str, Any], dag_id: str = TRAIN_DAG) -> None:
        """Start the job's DAG run. Raises ConflictError when there is a run of that id."""
        start_run(self.http, dag_id, job_id, conf)

    def dag_for(self, job_id: str, name: str) -> str:
        """The DAG that has a run of this id, else the one that starts jobs of this name."""
        run = find_run(self.http, job_id)
        return str(run["dag_id"]) if run is not None else dag_of(self.http, name)

    def run_conf(self, job_id: str) -> dict[str, Any] | None:
        run = find_run(self.http, job_id)
        return None if run is None else dict(run.get("conf") or {})


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
