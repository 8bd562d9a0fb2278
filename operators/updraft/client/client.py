"""Define the client of a platform: what the CLI and `import updraft` offer, over HTTP only.

It submits through Airflow's REST API and reads through the plugin's routes. It uses no database and no object store.
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
from updraft.lifecycle.workflow import DEFAULT_TENANT, TASKS, TRAIN_DAG, TRAIN_ROLE
from updraft.schemas import (
    API_PREFIX,
    NOT_NEEDED_TO_SUBMIT,
    PART_TITLES,
    Accepted,
    AttemptList,
    CheckpointList,
    FileEntry,
    FileList,
    Health,
    JobDetail,
    JobList,
    JobManifest,
    JobSummary,
    LogLine,
    LogPage,
    Metrics,
    Planned,
    QueueList,
    RequestList,
    RolledBack,
    RoundList,
    Schedule,
    ScheduleList,
    SecretList,
    SeriesDetail,
    SeriesList,
    Stage,
    TenantList,
    TransitionList,
    Validation,
)

POLL_SECONDS = 2.0
PARTS_SECONDS = 60.0  # how long a submission waits for parts that are late or unavailable
AWAY_SECONDS = 600.0  # how long `wait` outlives a platform that does not answer
WAIT_SECONDS = 600.0  # for the answer to a request: a halt waits for a checkpoint
AIRFLOW_ENDS = {"failed": "FAILED", "success": "COMPLETED"}


@dataclass(frozen=True)
class Job:
    """A submitted job: its id, and the client that submitted it.

    Every method calls the client's method of the same name with this job's id, and raises the same errors. `warnings`
    are sentences for the submitter; the job was accepted in spite of them. `existed` is True if the same manifest had
    been accepted under this id before, so that no second job was started.

        job = updraft.submit("jobs/digits/manifest.yaml")
        for line in job.logs(follow=True):
            print(line.line)
        assert job.show().state == "COMPLETED"
    """

    id: str
    client: Client = field(repr=False, compare=False)
    warnings: tuple[str, ...] = ()
    existed: bool = False  # the same manifest had been accepted before

    def show(self) -> JobDetail:
        """Return the job as it is now: state, reason, progress, metrics, links."""
        return self.client.job(self.id)

    def wait(self, timeout_seconds: float | None = None) -> JobDetail:
        """Wait until the job has ended and return it; at most `timeout_seconds`. See `Client.wait`."""
        return self.client.wait(self.id, timeout_seconds=timeout_seconds)

    def logs(self, **options: Any) -> Iterator[LogLine]:
        """Yield lines of one learner's log; `options` are those of `Client.logs`."""
        return self.client.logs(self.id, **options)

    def metrics(self, *keys: str) -> Metrics:
        """Return the last value of every metric, and the history of `keys`. See `Client.metrics`."""
        return self.client.metrics(self.id, *keys)

    def cancel(self, **options: Any) -> str:
        """Ask the job to end as CANCELLED; `options` are those of `Client.cancel`."""
        return self.client.cancel(self.id, **options)

    def halt(self, **options: Any) -> str:
        """Ask the job to save a checkpoint and stop; `options` are those of `Client.halt`."""
        return self.client.halt(self.id, **options)

    def resume(self, changes: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Ask the halted job to continue; `changes` and `options` are those of `Client.resume`."""
        return self.client.resume(self.id, changes, **options)

    def download(self, kind: str, folder: Path) -> list[Path]:
        """Download files of `kind` (results, model or checkpoint:NAME) into `folder`. See `Client.download`."""
        return self.client.download(self.id, kind, folder)


class Client:
    """A connection to one platform as one user. Close it, or use it in a `with` statement.

    Without `connection`, `updraft.client.load_config` chooses the platform and the user. `session` replaces the HTTP
    session, and `sleep` the function that waits between two requests; both are for tests.

    Every method that sends a request may raise UnavailableError (Airflow or a part of the platform does not answer;
    trying again may help) and RefusedError (the log-in is refused, or this user may not do that). Methods that take a
    `job_id` raise NotFoundError if the job does not exist or belongs to another tenant. Answers are the frozen models
    of `updraft.schemas`; their times are UTC, their sizes are in bytes.

        with Client(Connection("https://airflow.example.org", token_file=Path("token"))) as client:
            for job in client.jobs(state="PROCESSING"):
                print(job.id, job.reason)
    """

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
        """Close the HTTP connections."""
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
        """Submit a job: check the manifest, upload its local code and data, start the DAG run.

        Returns when Airflow has recorded the run; the job may still have to wait in the queue. Nothing is started
        before everything is uploaded.

        Args:
            manifest: a file, the text of one, or a mapping. Local paths in it are relative to `base`.
            job_id: id of the job, by default made of the manifest's name and the time. Makes the call repeatable: the
                same manifest under the same id is the same job.
            base: by default the folder of the manifest's file; of a text or a mapping, the working directory.
            on_progress: called with (field, bytes uploaded, bytes in all) during uploads.
            params: new values for params of the manifest, as text; each is read as the type of the value it replaces.
            on_wait: called with a sentence that says which part of the platform is waited for.

        Raises:
            ManifestError: the manifest is wrong; names every wrong field.
            InvalidRequestError: this platform cannot run it (image, size, tenant, secrets); names every such field.
            DataError: local code or data cannot be packed, or is larger than the platform allows.
            RefusedError: the id is not allowed, or another manifest was submitted under it.
            UnavailableError: a part that submitting needs does not answer.

        Example:
            job = client.submit("jobs/digits/manifest.yaml", params={"epochs": "3"})
            print(job.wait().state)
        """
        from updraft.client.submission import submit

        started = submit(
            self, manifest, job_id=job_id, base=base, on_progress=on_progress, params=params, on_wait=on_wait
        )
        return Job(started.id, self, started.warnings, started.existed)

    def train(
        self,
        program: str | Path | Callable[..., object],
        *,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Job:
        """Submit a script, with the folder that it lies in, or a Python function as a job.

        The manifest is drafted as by `updraft init`; `fields` are fields of the manifest and take the place of what was
        drafted. A function's source text is sent, so it imports and defines what it uses in its own body.

        Args:
            program: path of a script, or a function that is written with `def`.
            params: the job's params; a function is called with them as keyword arguments.
            fields: `resources={"gpus": 1}`, `data=[{"source": "s3://datasets/digits/"}]` and so on. Local paths are
                relative to the working directory.

        Raises:
            DataError: the program cannot be sent, or a framework cannot be told from what it imports.
            ManifestError, InvalidRequestError, RefusedError, UnavailableError: as `submit`.

        Example:
            job = client.train("train.py", resources={"cpus": 2}, checkpoints={"every": "5m"})
            print(job.wait().state)
        """
        from updraft.client.train import train

        return train(self, program, params or {}, fields)

    def validate(self, manifest: Mapping[str, Any]) -> Validation:
        """Ask the platform whether `manifest` is well-formed. Local files that it names are not looked at.

        Never raises for a wrong manifest: `errors` of the answer names every wrong field.
        """
        return Validation.model_validate(self.http.json("POST", f"{API_PREFIX}/validate", body=dict(manifest)))

    def possible(self, manifest: Mapping[str, Any], *, secrets: Iterable[str] = ()) -> Validation:
        """Ask whether this platform can run `manifest` as it is now: image, size, data, secrets.

        `secrets` names secrets that need not exist yet because the caller is about to store them. Needs the right to
        start jobs. `errors` of the answer names what is missing.
        """
        body = {"manifest": dict(manifest), "secrets": list(secrets)}
        return Validation.model_validate(self.http.json("POST", f"{API_PREFIX}/possible", body=body, repeatable=True))

    def planned(self, manifest: Mapping[str, Any]) -> Planned:
        """Return the Kubernetes objects that a job of `manifest` would create, by role.

        Needs the right to start jobs. Nothing is created, and no secret's content is returned.
        """
        body = {"manifest": dict(manifest), "secrets": []}
        return Planned.model_validate(self.http.json("POST", f"{API_PREFIX}/planned", body=body, repeatable=True))

    def series(self, limit: int = 100) -> SeriesList:
        """Return at most `limit` series, most recent job first: the jobs of one manifest name each."""
        query = {"limit": limit}
        return SeriesList.model_validate(self.http.json("GET", f"{API_PREFIX}/series", params=query))

    def series_of(self, name: str, *, tenant: str = "default") -> SeriesDetail:
        """Return the series `name` of `tenant`: its newest jobs, its champion, and what happened to its models.

        Raises NotFoundError.
        """
        path = f"{API_PREFIX}/series/{quote(name, safe='')}"
        return SeriesDetail.model_validate(self.http.json("GET", path, params={"tenant": tenant}))

    def queue(self) -> QueueList:
        """Return the jobs that have room in the cluster, and those that wait for it, in their order."""
        return QueueList.model_validate(self.http.json("GET", f"{API_PREFIX}/queue"))

    def sizes(self) -> RoundList:
        """Return how the sizes of elastic jobs changed in the newest rounds, newest first, and what that brought."""
        return RoundList.model_validate(self.http.json("GET", f"{API_PREFIX}/sizes"))

    def queue_state(self) -> dict[str, Any]:
        """Return nodes, running jobs and queue as `updraft plan` reads them: the input of the next decision."""
        return self.http.json("GET", f"{API_PREFIX}/queue/state")

    def tenants(self) -> TenantList:
        """Return what the caller's tenants may use of the cluster, and what they use."""
        return TenantList.model_validate(self.http.json("GET", f"{API_PREFIX}/tenants"))

    def prioritize(self, job_id: str, priority: str) -> str:
        """Give a job the priority `low`, `normal` or `high`; return a sentence that says what that changes.

        Raises RefusedError for a job that has ended, InvalidRequestError for another word.
        """
        path = f"{API_PREFIX}/jobs/{quote(job_id, safe='')}/priority"
        answer = Accepted.model_validate(self.http.json("POST", path, body={"priority": priority}))
        return answer.message

    def scale(self, job_id: str, learners: int | None) -> str:
        """Fix the number of learners of an elastic job, None: leave it to the platform again; return a sentence that
        says what that changes.

        Raises RefusedError if it is being resized, has no learners, or there is no room; InvalidRequestError for a
        number that its manifest does not allow.
        """
        path = f"{API_PREFIX}/jobs/{quote(job_id, safe='')}/scale"
        return Accepted.model_validate(self.http.json("POST", path, body={"learners": learners})).message

    def schedules(self) -> ScheduleList:
        """Return the schedules, and what the last look at each decided."""
        return ScheduleList.model_validate(self.http.json("GET", f"{API_PREFIX}/schedules"))

    def pause_schedule(self, name: str, *, paused: bool = True, tenant: str = "default") -> Schedule:
        """Let the schedule of the series `name` of `tenant` start no jobs; `paused=False`: let it start them again.

        Raises NotFoundError for a series without a schedule.
        """
        path = f"{API_PREFIX}/series/{quote(name, safe='')}/{'pause' if paused else 'unpause'}"
        return Schedule.model_validate(self.http.json("POST", path, params={"tenant": tenant}))

    def roll_back(
        self, name: str, reason: str, *, version: str | None = None, model: str | None = None, tenant: str = "default"
    ) -> RolledBack:
        """Make an earlier version of a series' model the champion again; nothing is deleted.

        Args:
            name: name of the series.
            reason: kept with the series, together with the user's name.
            version: by default the champion before the present one.
            model: by default the model that the series registered last.
            tenant: tenant of the series.

        Raises:
            RefusedError: there is no such version, or no champion before.
            UnavailableError: no answer came. The roll-back may have been made: look at the series first.

        Example:
            client.roll_back("digits-cnn", "worse on the new customers")
        """
        path = f"{API_PREFIX}/series/{quote(name, safe='')}/roll-back"
        body = {"version": version, "model": model, "reason": reason}
        return RolledBack.model_validate(self.http.json("POST", path, body=body, params={"tenant": tenant}))

    def health(self) -> Health:
        """Return whether a job that is submitted now can run, and the state of each part of the platform."""
        return Health.model_validate(self.http.json("GET", f"{API_PREFIX}/health"))

    def check_health(self, on_wait: Callable[[str], None] | None = None) -> Health:
        """Return the platform's health once every part that submitting needs answers; MLflow is not needed yet.

        Waits up to `PARTS_SECONDS` for parts that do not answer, which a busy machine makes late. `on_wait` is called
        with a sentence that says what is waited for.

        Raises:
            UnavailableError: a part still does not answer; the message names it.
        """
        waited_seconds, told = 0.0, ""
        while True:
            asked = time.monotonic()
            health = self.health()
            down = [part for part in health.parts if not part.ok and part.name not in NOT_NEEDED_TO_SUBMIT]
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
        """Return at most `limit` jobs, newest first; `state` and `name` select jobs in that state or of that name."""
        answer = self.http.json("GET", f"{API_PREFIX}/jobs", params={"state": state, "name": name, "limit": limit})
        return list(JobList.model_validate(answer).jobs)

    def job(self, job_id: str) -> JobDetail:
        """Return one job: state, reason, progress, metrics, links and, once it has ended, its verdict.

        Raises NotFoundError when neither the platform nor Airflow knows the id.
        """
        return JobDetail.model_validate(self.http.json("GET", _job(job_id)))

    def manifest(self, job_id: str) -> dict[str, Any]:
        """Return the job's manifest as of its last launch, with every field.

        Uploaded code and data are `tree:SHA256` sources in it.
        """
        return JobManifest.model_validate(self.http.json("GET", f"{_job(job_id)}/manifest")).manifest

    def transitions(self, job_id: str) -> TransitionList:
        """Return every change of the job's state, oldest first, with its time, reason and evidence."""
        return TransitionList.model_validate(self.http.json("GET", f"{_job(job_id)}/transitions"))

    def stages(self, job: JobDetail) -> list[Stage]:
        """Return the tasks of the job's DAG run in the order in which a job goes through them."""
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
        learner: int | None = None,
        role: str = TRAIN_ROLE,
        attempt: int | None = None,
        after: int = 0,
        limit: int | None = None,
        follow: bool = False,
        poll_seconds: float = POLL_SECONDS,
    ) -> Iterator[LogLine]:
        """Yield lines of one learner's log, oldest first.

        Args:
            learner: which learner, from 1; without it, the first one that belongs to the job when an attempt's log
                begins to be read.
            role: prepare, build, train, evaluate, export, champion-N or compare-N.
            attempt: which attempt; without it, the latest.
            after: number of the line after which to begin; 0 begins with the first line.
            limit: how many lines at most.
            follow: wait for new lines, and go on with new attempts, until the job has ended.
            poll_seconds: how long `follow` waits before it asks again.

        Raises NotFoundError when there is no such log; with `follow`, only once the job has ended.
        """
        current, left, asked = attempt, limit, learner
        while left is None or left > 0:
            ended = not follow or self.job(job_id).ended  # asked before reading, so that no later line is missed
            query = {"learner": learner, "role": role, "attempt": current, "after": after, "limit": left}
            try:
                page = LogPage.model_validate(self.http.json("GET", f"{_job(job_id)}/logs", params=query))
            except NotFoundError:
                if ended:
                    raise
                self._sleep(poll_seconds)
                continue
            current, after, learner = page.attempt, page.after, page.learner
            yield from page.lines[:left]
            left = None if left is None else left - len(page.lines)
            if page.lines:
                continue
            newer = attempt is None and page.latest_attempt > current
            if newer:
                current, after, learner = current + 1, 0, asked
            elif ended:
                return
            else:
                self._sleep(poll_seconds)

    def last_lines(
        self, job_id: str, count: int, *, learner: int | None = None, role: str = TRAIN_ROLE, attempt: int | None = None
    ) -> tuple[LogLine, ...]:
        """Return the last `count` lines of one learner's log, oldest first.

        `learner`, `role` and `attempt` are those of `logs`.
        """
        query = {"learner": learner, "role": role, "attempt": attempt, "limit": count, "last": True}
        return LogPage.model_validate(self.http.json("GET", f"{_job(job_id)}/logs", params=query)).lines

    def metrics(self, job_id: str, *keys: str) -> Metrics:
        """Return the last value of every metric, and all points of the metrics that `keys` names.

        Example:
            points = client.metrics(job_id, "val_accuracy").history["val_accuracy"]
            best = max(point.value for point in points if point.value is not None)
        """
        return Metrics.model_validate(
            self.http.json("GET", f"{_job(job_id)}/metrics", params={"key": list(keys) or None})
        )

    def checkpoints(self, job_id: str, *, all: bool = False) -> CheckpointList:
        """Return the kept checkpoints, lowest step first; with `all`, also the deleted and quarantined ones."""
        params = {"all": True} if all else None
        return CheckpointList.model_validate(self.http.json("GET", f"{_job(job_id)}/checkpoints", params=params))

    def attempts(self, job_id: str) -> AttemptList:
        """Return every launch of the job's learners: how it began, how it ended and what was decided then."""
        return AttemptList.model_validate(self.http.json("GET", f"{_job(job_id)}/attempts"))

    def requests(self, job_id: str) -> RequestList:
        """Return every request to halt, resume or cancel the job, with the answer once there is one."""
        return RequestList.model_validate(self.http.json("GET", f"{_job(job_id)}/requests"))

    def files(self, job_id: str, kind: str) -> FileList:
        """Return the paths and sizes of all stored files of a kind. `kind` is `results`, `model` or `checkpoint:NAME`.

        Raises NotFoundError for a kind or a checkpoint that does not exist.
        """
        found: list[FileEntry] = []
        after: str | None = ""
        while after is not None:
            query = {"kind": kind, "after": after}
            page = FileList.model_validate(self.http.json("GET", f"{_job(job_id)}/files", params=query))
            found += page.files
            after = page.after
        return FileList(kind=kind, files=tuple(found))

    def download(
        self,
        job_id: str,
        kind: str,
        folder: Path,
        *,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> list[Path]:
        """Download all files of one `kind` (see `files`) into `folder`, and return their paths.

        `on_progress` is called with (path, bytes downloaded, bytes in all). A file appears only when it is complete.

            client.download(job_id, "model", Path("out"))
        """
        from updraft.client.transfer import download_files

        return download_files(self.http, _job(job_id), self.files(job_id, kind), folder, on_progress)

    # --- Acting ---------------------------------------------------------------------------------------
    def cancel(self, job_id: str, *, wait: bool = False, timeout_seconds: float = WAIT_SECONDS) -> str:
        """Ask the job to end as CANCELLED, and return a sentence that says what happens next.

        Asking twice is harmless. A run whose first task has not started is ended in Airflow at once. With `wait`,
        returns once the job is CANCELLED; `timeout_seconds` is how long it waits, after that the request stays.

        Raises:
            UpdraftError: the job ended in another state (only with `wait`).
            UnavailableError: the job has not ended within `timeout_seconds` (only with `wait`).
        """
        try:
            message = str(self.act(job_id, "cancel")["message"])
        except NotFoundError:
            ended = self._end_run(job_id)
            if ended is None:
                raise
            return ended
        if not wait:
            return message
        from updraft.client.job_requests import wait_cancelled

        return wait_cancelled(self, job_id, timeout_seconds)

    def _end_run(self, job_id: str) -> str | None:
        """End a run whose job the ledger does not know: no task has run, so nothing has to be released, and no
        controller exists that would obey a request. Returns None if Airflow has no such run either."""
        run = find_run(self.http, job_id)
        if run is None:
            return None
        if run.get("state") in AIRFLOW_ENDS:
            return "The run has ended in Airflow already."
        self.http.json("PATCH", _dag_run(run["dag_id"], job_id), body={"state": "failed"})
        return "The run was ended in Airflow before its first task started."

    def halt(self, job_id: str, *, wait: bool = False, timeout_seconds: float = WAIT_SECONDS) -> str:
        """Ask the job to save a checkpoint and to stop, so that `resume` can continue it later.

        Returns a sentence that says what happens next, or with `wait` the job's answer once it has halted.
        `timeout_seconds` is how long `wait` waits; after that the request stays.

        Raises:
            RefusedError: the job cannot be halted.
            UpdraftError: the job ended instead (only with `wait`).
            UnavailableError: no answer within `timeout_seconds` (only with `wait`).
        """
        from updraft.client.job_requests import ask

        return ask(self, job_id, "halt", None, timeout_seconds if wait else None)

    def resume(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        wait: bool = False,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> str:
        """Ask a halted job to continue from its checkpoint.

        `changes` is a partial manifest. Its command, params, env, resources, budget, checkpoints, failures and priority
        may change; None sets a value back to its default. `wait` and `timeout_seconds` are those of `halt`, and so is
        what is raised.

        Raises InvalidRequestError, which names every wrong field, for changes that are not allowed.

            client.resume(job_id, {"params": {"lr": 0.0001}, "resources": {"memory": "8GiB"}})
        """
        from updraft.client.job_requests import ask

        body = {"changes": dict(changes or {})}
        return ask(self, job_id, "resume", body, timeout_seconds if wait else None)

    def act(self, job_id: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send POST with `body` to the job's route `verb` and return the decoded answer.

        Prefer the methods `halt`, `resume` and `cancel`.
        """
        return self.http.json("POST", f"{_job(job_id)}/{verb}", body=body)

    def pause(self) -> None:
        """Wait for the time between two requests, `POLL_SECONDS`."""
        self._sleep(POLL_SECONDS)

    def wait(
        self, job_id: str, *, timeout_seconds: float | None = None, poll_seconds: float = POLL_SECONDS
    ) -> JobDetail:
        """Wait until the job has ended, in whatever state, and return it. Asks every `poll_seconds`.

        Raises UnavailableError when it has not ended after `timeout_seconds`, or when the platform has not answered for
        AWAY_SECONDS: it may be restarting, and the job goes on meanwhile.
        """
        answered = began = time.monotonic()
        while True:
            try:
                job = self.job(job_id)
            except UnavailableError:
                now = time.monotonic()
                if now - answered >= AWAY_SECONDS or (timeout_seconds is not None and now - began >= timeout_seconds):
                    raise
            else:
                answered = time.monotonic()
                if job.ended:
                    return job
                if timeout_seconds is not None and answered - began >= timeout_seconds:
                    late = f"job {job_id} is still {job.state} after {timeout_seconds:g} s ({job.reason})"
                    raise UnavailableError(late)
            self._sleep(poll_seconds)

    # --- Secrets --------------------------------------------------------------------------------------
    def set_secret(self, name: str, data: Mapping[str, str], *, tenant: str = DEFAULT_TENANT) -> None:
        """Store a secret for the jobs of `tenant`, or replace it. `data` maps keys to values; nothing reads them back.

        Example:
            client.set_secret("hub", {"token": "..."})
            # In a manifest: secrets: [{name: hub, key: token, as: HUB_TOKEN}]
        """
        self.http.json("PUT", _secret(name), params={"tenant": tenant}, body={"data": dict(data)})

    def secrets(self, *, tenant: str = DEFAULT_TENANT) -> list[str]:
        """Return the names of the tenant's stored secrets; their values cannot be read."""
        answer = self.http.json("GET", f"{API_PREFIX}/secrets", params={"tenant": tenant})
        return list(SecretList.model_validate(answer).secrets)

    def delete_secret(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Delete a stored secret of `tenant`. Raises NotFoundError if there is none of that name."""
        self.http.json("DELETE", _secret(name), params={"tenant": tenant})

    # --- Airflow's own record of a job ----------------------------------------------------------------
    def trigger(self, job_id: str, conf: dict[str, Any], dag_id: str = TRAIN_DAG) -> None:
        """Start a run of the DAG `dag_id`, configured with `conf` and with `job_id` as its run id.

        Raises ConflictError when there is a run of that id.
        """
        start_run(self.http, dag_id, job_id, conf)

    def dag_for(self, job_id: str, name: str, tenant: str = DEFAULT_TENANT) -> str:
        """Return the id of the DAG that has a run of this id, else of the DAG that starts the tenant's jobs of this
        name."""
        run = find_run(self.http, job_id)
        return str(run["dag_id"]) if run is not None else dag_of(self.http, name, tenant)

    def run_conf(self, job_id: str) -> dict[str, Any] | None:
        """Return the configuration that the job's DAG run was started with; None if there is no such run."""
        run = find_run(self.http, job_id)
        return None if run is None else dict(run.get("conf") or {})


def _job(job_id: str) -> str:
    return f"{API_PREFIX}/jobs/{_segment(job_id)}"


def _secret(name: str) -> str:
    return f"{API_PREFIX}/secrets/{_segment(name)}"


def _dag_run(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{_segment(dag_id)}/dagRuns/{_segment(run_id)}"


def _segment(text: str) -> str:
    """Quote one segment of a path; `.` and `..` would be another path."""
    if text in ("", ".", ".."):
        raise RefusedError(f"{text!r} is no name")
    return quote(text, safe="")
