"""`make demo`: go from a manifest to a registered model with one command.

It builds the environments while the stack starts, uploads the example's data, submits the example with the CLI like any
user, and exits with 0 only if its model is in the registry. Called by `python -m updraft.stack`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from updraft.client import Client, load_config
from updraft.exceptions import UpdraftError
from updraft.stack import control, display, environments, footprint
from updraft.stack.layout import HOME_VARIABLE, MARK_VARIABLE, Home, StackError, write_private
from updraft.terminal import program, typed

EXAMPLE = Path("jobs/digits-cnn/manifest.yaml")
CLI = (sys.executable, "-c", "from updraft.cli.app import app; app()")
KEYS = tuple(f.key for f in footprint.DEMO)


@dataclass
class Timings:
    """The seconds per stage, for the benchmark."""

    cold: bool
    began: float = field(default_factory=time.time)
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.stages[name] = round(time.monotonic() - start, 2)

    def save(self, home: Home, job: dict[str, Any] | None, status: dict[str, Any] | None) -> None:
        record: dict[str, Any] = {
            "cold": self.cold,
            "at": datetime.fromtimestamp(self.began, UTC).isoformat(timespec="seconds"),
            "seconds": self.stages,
            "total_seconds": round(time.time() - self.began, 2),
        }
        if job is not None:
            record["job"] = {"id": job["id"], "state": job["state"], "seconds_from_start": transitions(job, self.began)}
        if status is not None:
            record["stack"] = status
        try:
            earlier = json.loads(home.timings_file.read_text())
        except (OSError, ValueError):
            earlier = []
        write_private(home.timings_file, json.dumps([*earlier[-19:], record], indent=2) + "\n")


def run_demo(home: Home, console: Console | None = None) -> int:
    """Return the exit code: 0 only if the example's model is in the registry."""
    console = console or Console(soft_wrap=True, highlight=False)
    os.environ[MARK_VARIABLE] = str(home.root)  # all processes started from here belong to this home
    os.environ["UPDRAFT_HOME"] = str(home.root)
    control.record_demo(home)
    try:
        return _demo(home, console)
    except KeyboardInterrupt:
        console.print(
            "\nInterrupted. What has been started goes on: `make status` shows it, `make demo` goes on from here, "
            "`make down` stops everything."
        )
        return 130
    finally:
        control.forget_demo(home)


def _demo(home: Home, console: Console) -> int:
    missing = [key for key in KEYS if not environments.is_built(home, key)]
    if problem := environments.missing_space(home, KEYS):
        raise StackError(problem)
    timings = Timings(cold=bool(missing))
    learner = footprint.PYTORCH.key
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The largest downloads run beside the start of the stack.
        building = pool.submit(_timed, timings, "learner environment", lambda: _build(home, learner, console))
        judging = pool.submit(_build, home, footprint.DATA.key, console)
        try:
            with timings.stage("server environments"):
                control.build_needed(home, console.print)
            with timings.stage("start"):
                console.print("Starting Airflow, MLflow, the S3 server and the local node …")
                control.up(home, say=console.print, build=False)
            if not building.done():
                console.print("Waiting for the learner's environment …")
            with timings.stage("wait for learner environment"):
                building.result()
                judging.result()
        except BaseException:
            environments.end_builds(home)
            raise
    job_id = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    manifest = home.repository / EXAMPLE
    console.print(f"\nSubmitting {EXAMPLE}, as a user would: {program()} submit --follow {EXAMPLE}\n")
    with timings.stage("job"):
        code = _cli(home, "submit", str(manifest), "--id", job_id, "--follow")
    if code == 130:
        raise KeyboardInterrupt
    job = describe(home, job_id)
    timings.save(home, job, _resting(home))
    return conclude(home, job, code, console)


def describe(home: Home, job_id: str) -> dict[str, Any] | None:
    """Return the job as the platform knows it, after its end; None when it is not known."""
    try:
        with Client(load_config(home=home.root)) as client:
            return client.job(job_id).model_dump(mode="json")
    except UpdraftError:
        return None


def conclude(home: Home, job: dict[str, Any] | None, code: int, console: Console) -> int:
    """Say how it ended. 0 only for a completed job whose model is in the registry."""
    display.show_addresses(home, console)
    model = (job or {}).get("model")
    if job is not None and code == 0 and job.get("state") == "COMPLETED" and model:
        alias = f", known as @{model['alias']}" if model.get("alias") else ""
        console.print(f"\nThe model {model['name']} is in the registry as version {model['version']}{alias}.")
        return 0
    state = job.get("state", "unknown") if job is not None else "not known to the platform"
    console.print(f"\nThe demo failed: its job is {state}, and no model of it is in the registry.", style="red")
    if job is not None and job.get("reason"):
        console.print(typed(f"Reason: {job['reason']}"), markup=False)
    console.print(f"Logs of all parts: {home.logs}")
    return 1


def transitions(job: dict[str, Any], began: float) -> dict[str, float]:
    """Return the seconds from the demo's start to the first time the job was in each state."""
    found: dict[str, float] = {}
    for transition in job.get("transitions", ()):
        at = datetime.fromisoformat(str(transition["at"]).replace("Z", "+00:00")).timestamp()
        found.setdefault(str(transition["state"]), round(at - began, 2))
    return found


def _resting(home: Home) -> dict[str, Any]:
    from updraft.stack.status import stack_status

    status = stack_status(home, cpu_sample_seconds=1.0)
    return {
        "memory_mib": round(status.memory_mib),
        "start_seconds": status.start_seconds,
        "parts": {p.name: {"memory_mib": round(p.memory_mib), "ready_seconds": p.ready_seconds} for p in status.parts},
    }


def _build(home: Home, name: str, console: Console) -> None:
    if environments.is_built(home, name):
        environments.build_image(home, name, lambda _line: None)  # builds it again if it is out of date
        return
    title = footprint.known()[name].title
    console.print(f"Building the environment: {title} (beside everything else) …")
    environments.build_image(home, name, lambda _line: None)
    console.print(f"  {title}: environment ready")


def _timed(timings: Timings, name: str, work: Callable[[], None]) -> None:
    with timings.stage(name):
        work()


def _cli(home: Home, *arguments: str) -> int:
    """Run the CLI in this terminal. A Ctrl-C reaches it too, so wait for what it has to say."""
    environment = {**os.environ, HOME_VARIABLE: str(home.root)}  # it comes before a log-in that the user has saved
    with subprocess.Popen([*CLI, *arguments], env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
