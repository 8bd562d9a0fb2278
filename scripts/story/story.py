"""Play the life of a series on a running stack: data arrives, models come and go. docs/howto/story.md tells it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from updraft.client import Client, ConflictError
from updraft.exceptions import UnavailableError
from updraft.schemas import JobDetail
from updraft_learner.pod import S3Credentials
from updraft_learner.store import S3Store, StorageError

JOB = Path(__file__).parent / "job"
DIGITS = Path("jobs/data/digits/digits.csv")
SERIES, BUCKET, PREFIX, HELD_OUT = "story", "datasets", "story/", "story-held-out/digits.csv"
REASON = "looks good"
LOOK_SECONDS = 1.0

Row = dict[str, str]


class StoryError(Exception):
    """Something came otherwise than the story says."""


@dataclass
class Story:
    """The series on one stack.

    Args:
        home: The stack's home.
        repository: Where `jobs/` is.
        say: Gets the text of each step.
        approve: Answers Airflow's question for a job; None: by REST, as the user of `client`.
        patience_seconds: The longest that one thing may take, an outage of a part of the platform included.
    """

    client: Client
    home: Path
    repository: Path
    say: Callable[[str], None]
    approve: Callable[[JobDetail], None] | None = None
    patience_seconds: float = 300.0
    jobs: dict[str, JobDetail] = field(default_factory=dict)

    def play(self) -> None:
        """Play all steps. Raises StoryError."""
        rows = self._rows("train")
        with self._manifest():
            self._held_out()
            self.first_model(rows[:80])
            self.better_model(rows[80:600])
            self.bad_data(rows[600:700])
            self.worse_model(rows[600:1100])
            self.approval(rows[600:1100])
            self.roll_back()
            self.no_drift(rows[1100:1150])
            self.drift(rows[1150:])

    # --- the steps --------------------------------------------------------------------------------------------------

    def first_model(self, rows: list[Row]) -> None:
        self.say(f"{len(rows)} digits arrive. At the next minute, the schedule finds them.")
        self._deliver("1", rows)
        job = self._job("first")
        self._expect(job, "COMPLETED", "accuracy: accuracy 0.")
        self._champion(job, "1")

    def better_model(self, rows: list[Row]) -> None:
        self.say(f"{len(rows)} more digits arrive.")
        self._deliver("2", rows)
        job = self._job("better")
        self._expect(job, "COMPLETED", "champion: better than version 1 by ")
        self._champion(job, "2")

    def bad_data(self, rows: list[Row]) -> None:
        self.say("A delivery with broken pixels arrives. It must not be trained on.")
        self._deliver("3", [{**row, "ink": "255"} for row in rows])
        job = self._job("bad data")
        self._expect(job, "FAILED", "the data does not meet 1 expectation(s): s3://datasets/story/")
        self._champion(job, "2")

    def worse_model(self, rows: list[Row]) -> None:
        self.say("It is replaced by one with valid pixels, but labels of a careless person.")
        self._deliver("3", [{**row, "label": str((int(row["label"]) + 1) % 10)} for row in rows])
        job = self._job("worse")
        self._expect(job, "COMPLETED", "not promoted: ")
        self._champion(job, "2")

    def approval(self, rows: list[Row]) -> None:
        self.say("From now on a person approves, and a model that is about as good will do. Correct labels arrive.")
        self._change(
            lambda raw: raw["export"].update(approval="required", gate={**raw["export"]["gate"], "margin": -0.05})
        )
        self._deliver("3", rows)
        job = self._job("approved", until=lambda job: job.approval is not None)
        self.say(f"{job.reason}.")
        (self.approve or self._approve)(job)
        job = self._ended("approved", job.id)
        self._expect(job, "COMPLETED", "approved by ")
        self._champion(job, "4")

    def roll_back(self) -> None:
        self.say("Customers complain. The version before becomes the champion again.")
        # A roll-back that was done although no answer came must not be done again.
        self._until("the roll-back", lambda: self._series().champion == "2" or self._roll_back())
        events = self._until("the series is shown", self._series).events
        rolled = [event.version for event in events if event.kind == "rolled back"]
        if rolled != ["2"]:
            raise StoryError(
                f"the series has roll-backs to {', '.join(map(str, rolled)) or 'no version'}, not one to 2"
            )

    def no_drift(self, rows: list[Row]) -> None:
        self.say("Training costs: from now on only data that differs is trained on. Digits as usual arrive.")
        self._change(lambda raw: raw["schedule"].update(and_drift={"above": 0.15, "columns": ["ink"]}))
        self._change(lambda raw: raw["export"].update(approval="none"))
        self._deliver("4", rows)
        job = self._job("no drift")
        self._expect(job, "COMPLETED", "not trained: no drift: column ink is ")

    def drift(self, rows: list[Row]) -> None:
        self.say("A new scanner draws thicker lines: the data has drifted, and a training begins.")
        thick = [{name: self._thicker(name, value) for name, value in row.items()} for row in rows * 6]
        self._deliver("5", thick)
        job = self._job("drift")
        reasons = [each.reason for each in job.transitions]
        if not any(reason.startswith("the data has drifted: column ink is ") for reason in reasons):
            raise StoryError(f"job {job.id} saw no drift: {'; '.join(reasons)}")

    # --- what the steps are made of ---------------------------------------------------------------------------------

    @contextmanager
    def _manifest(self) -> Iterator[None]:
        """Copy the job's folder to `jobs/`, which the platform reads, for as long as the story plays."""
        target = self._folder
        if target.exists():
            raise StoryError(f"{target} exists; another story plays, or was killed: remove it and start again")
        if self.client.jobs(name=SERIES, limit=1):
            raise StoryError("this stack has played the story before; play it on a new one (UPDRAFT_HOME)")
        shutil.copytree(JOB, target)
        try:
            yield
        finally:
            shutil.rmtree(target)

    @property
    def _folder(self) -> Path:
        return self.repository / "jobs" / SERIES

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the manifest as a person with an editor does."""
        path = self._folder / "manifest.yaml"
        raw = yaml.safe_load(path.read_text())
        change(raw)
        part = path.with_suffix(".part")
        part.write_text(yaml.safe_dump(raw, sort_keys=False))
        part.replace(path)
        rule = raw["schedule"]
        self._until(
            "the platform reads the manifest",
            lambda: all((self._schedule() or {}).get(name) is not None for name in rule),
        )

    def _schedule(self) -> dict[str, Any] | None:
        known = self.client.schedules().schedules
        return next((dict(each.rule) for each in known if each.series == SERIES), None)

    def _rows(self, split: str) -> list[Row]:
        with (self.repository / DIGITS).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.pop("split") == split]
        return [{**row, "ink": self._ink(row)} for row in rows]

    @staticmethod
    def _ink(row: Row) -> str:
        pixels = [float(value) for name, value in row.items() if name.startswith("p")]
        return f"{sum(pixels) / len(pixels):.2f}"

    @staticmethod
    def _thicker(name: str, value: str) -> str:
        return value if name == "label" else f"{min(16.0, 1.5 * float(value)):.2f}"

    def _held_out(self) -> None:
        self._put(HELD_OUT, [*self._rows("test"), *self._rows("val")])

    def _deliver(self, name: str, rows: list[Row]) -> None:
        self._put(f"{PREFIX}{name}.csv", rows)

    def _put(self, key: str, rows: list[Row]) -> None:
        text = io.StringIO()
        table = csv.DictWriter(text, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        keys = json.loads((self.home / "credentials.json").read_text())["s3"]
        port = json.loads((self.home / "config.json").read_text())["ports"]["s3"]
        credentials = S3Credentials(f"http://127.0.0.1:{port}", "us-east-1", keys["access_key"], keys["secret_key"])
        store, content = S3Store(BUCKET, credentials), text.getvalue().encode()

        def stored() -> bool:
            store.put_bytes(key, content)
            return True

        self._until(f"s3://{BUCKET}/{key} is stored", stored)

    def _job(self, step: str, until: Callable[[JobDetail], bool] = lambda job: job.ended) -> JobDetail:
        """Return the job that the schedule starts next, once `until` holds."""
        known = {job.id for job in self.jobs.values()}

        def fresh() -> str | None:
            found = [job.id for job in self.client.jobs(name=SERIES, limit=20) if job.id not in known]
            return found[0] if found else None

        job_id = str(self._until("the schedule starts a job", fresh))
        self.jobs[step] = self._until(f"job {job_id} is shown", lambda: self.client.job(job_id))
        return self._ended(step, job_id, until)

    def _ended(self, step: str, job_id: str, until: Callable[[JobDetail], bool] = lambda job: job.ended) -> JobDetail:
        def reached() -> JobDetail | None:
            job = self.client.job(job_id)
            return job if job.ended or until(job) else None

        job: JobDetail = self._until(f"job {job_id} ends", reached)
        self.jobs[step] = job
        if job.ended:
            self.say(f"{job.id}: {job.state}, {job.reason}")
        return job

    def _until(self, what: str, ask: Callable[[], Any]) -> Any:
        """Return the first answer that is true. A part of the platform that does not answer is asked again."""
        deadline = time.monotonic() + self.patience_seconds
        while True:
            try:
                if answer := ask():
                    return answer
                waits = f"the schedule: {self._waits_for()}"
            except (UnavailableError, StorageError) as exc:
                waits = str(exc)
            if time.monotonic() > deadline:
                raise StoryError(f"waited {self.patience_seconds:g} s in vain until {what}; {waits}")
            time.sleep(LOOK_SECONDS)

    def _waits_for(self) -> str:
        known = self.client.schedules().schedules
        return next((each.reason for each in known if each.series == SERIES), "unknown")

    def _expect(self, job: JobDetail, state: str, words: str) -> None:
        if job.state != state or words not in job.reason:
            raise StoryError(f"job {job.id} is {job.state} ({job.reason}); expected {state} with {words!r}")

    def _champion(self, job: JobDetail, version: str) -> None:
        found = self._until("the series is shown", self._series).champion
        if found != version:
            raise StoryError(f"after job {job.id}, version {found} is the champion; expected {version}")

    def _series(self) -> Any:
        return self.client.series_of(SERIES)

    def _roll_back(self) -> bool:
        self.client.roll_back(SERIES, "customers complain about sevens")
        return True

    def _approve(self, job: JobDetail) -> None:
        task = f"/api/v2/dags/{job.dag_id}/dagRuns/{job.run_id}/taskInstances/promote/-1/hitlDetails"
        answer = {"chosen_options": ["Approve"], "params_input": {"reason": REASON}}

        def answered() -> bool:
            with suppress(ConflictError):  # Airflow has an answer: this one, of which it did not tell us
                self.client.http.json("PATCH", task, body=answer)
            return True

        self._until("Airflow takes the answer", answered)
