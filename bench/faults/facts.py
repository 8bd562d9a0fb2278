"""What is there of a job after a run, read from outside of the platform's own claims where that is possible.

The ledger's file, Airflow's REST, MLflow's API, the store's files, the cluster's objects, the machine's processes, and
what the programs noted for themselves. `checks` judges it. Called by `run`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from faults import witness
from faults.jobs import model_name
from faults.kinds.base import Subject
from faults.lab import Lab
from faults.witness import Session
from updraft.exceptions import UpdraftError
from updraft_learner import contract

KEYS = ("chain", "loss")  # of learner 1
POINTS = 20_000


@dataclass(frozen=True)
class AttemptFacts:
    role: str
    number: int
    started_at: float
    ended_at: float | None
    outcome: str | None
    reason: str | None
    label: str | None = None
    resumed_from: str | None = None


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint that the ledger counts, with the time at which its marker came to be in the store."""

    name: str
    step: int
    attempt: int
    stored_at: float | None
    counts: bool  # neither deleted nor quarantined


@dataclass(frozen=True)
class LogFacts:
    """The platform's record of one learner's log in one attempt, against the steps that the program printed."""

    attempt: int
    learner: int
    steps: tuple[int, ...]  # as recorded, in order of the lines' numbers
    twice: int  # numbers that stand for two different lines
    gaps: int  # numbers that are missing between the first and the last


@dataclass(frozen=True)
class VersionFacts:
    """A version in MLflow's registry."""

    version: str
    run_id: str
    status: str
    own_run: bool  # it names the run of the job


@dataclass(frozen=True)
class JobFacts:
    id: str
    state: str | None  # None: the ledger does not know the job
    reason: str = ""
    cause: str = ""
    processing_at: float | None = None  # first time in that state
    ended_at: float | None = None
    override: bool = False
    attempts: tuple[AttemptFacts, ...] = ()
    checkpoints: tuple[CheckpointFacts, ...] = ()
    granted: bool = False
    open_messages: int = 0
    airflow: str | None = None  # None: there is no such run
    tasks: dict[str, str] = field(default_factory=dict)
    mlflow: str | None = None
    mlflow_verdict: str | None = None
    points: dict[str, list[int]] = field(default_factory=dict)  # key -> step of each point, in the server's order
    pods: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    result: dict[str, Any] | None = None
    judged: bool | None = None  # what the job's own evaluation found
    sessions: tuple[Session, ...] = ()
    logs: tuple[LogFacts, ...] = ()
    versions: tuple[VersionFacts, ...] = ()  # of the model name that only this job registers
    champion: str | None = None  # the version that the alias points to
    data_verdicts: tuple[bool, ...] = ()  # of the suites that were run on the job's data
    downloaded: dict[str, Any] | None = None  # result.json as the API gives it to its user
    unread: tuple[str, ...] = ()  # what could not be read, and why

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


def collect(lab: Lab, subject: Subject) -> JobFacts:
    """Collect all facts at once; what cannot be read is named in `unread`."""
    found: dict[str, Any] = {"state": None}
    unread: list[str] = []
    job = None
    try:
        job = lab.job(subject.id)
        if job is not None:
            found |= _of_ledger(lab, job)
    except UpdraftError as exc:
        unread.append(f"ledger: {exc}")
    run_id = None if job is None else job.mlflow_run_id
    readers: dict[str, Callable[[], dict[str, Any]]] = {
        "airflow": lambda: _of_airflow(lab, subject.id),
        "mlflow": lambda: _of_mlflow(lab, run_id) if run_id else {},
        "cluster": lambda: _of_cluster(lab, subject.id),
        "registry": lambda: _of_registry(lab, subject, run_id) if subject.shape.registers else {},
        "results": lambda: _downloaded(lab, subject.id) if found["state"] == "COMPLETED" else {},
        "data": lambda: _of_data(lab, job) if job is not None and job.data else {},
    }
    for name, read in readers.items():
        try:
            found |= read()
        except Exception as exc:  # noqa: BLE001 - whatever is broken, the rest is still worth knowing
            unread.append(f"{name}: {exc}")
    folder = lab.stored(subject.id)
    found |= {
        "processes": tuple(_shown(process) for process in lab.processes(subject.id)),
        "result": _result(folder / "results"),
        "judged": (_json(folder / "results" / "evaluate" / "judgement.json") or {}).get("right"),
        "sessions": tuple(witness.read(lab.witness / subject.id)),
        "logs": tuple(_logs(folder)),
    }
    return JobFacts(id=subject.id, unread=tuple(unread), **found)


def _of_ledger(lab: Lab, job: Any) -> dict[str, Any]:
    book = lab.ledger
    details = job.verdict.evidence.details if job.verdict else {}
    folder = lab.stored(job.id) / "checkpoints"
    return {
        "state": str(job.state),
        "reason": job.reason,
        "cause": str(details.get("cause") or ""),
        "processing_at": _seconds(job.started_at),
        "ended_at": _seconds(job.ended_at),
        "override": bool(job.override),
        "attempts": tuple(
            AttemptFacts(
                role=a.role,
                number=a.number,
                started_at=a.started_at.timestamp(),
                ended_at=_seconds(a.ended_at),
                outcome=a.outcome,
                reason=a.reason,
                label=a.label,
                resumed_from=a.resume.checkpoint if a.resume else None,
            )
            for a in book.attempts.of_job(job.id)
        ),
        "checkpoints": tuple(
            CheckpointFacts(
                name=c.name,
                step=c.step,
                attempt=c.attempt,
                stored_at=_written(folder / c.name / contract.CHECKPOINT_MARKER),
                counts=c.deleted_at is None and c.quarantined_at is None,
            )
            for c in book.checkpoints.of_job(job.id, with_deleted=True)
        ),
        "granted": lab.granted(job.id),
        "open_messages": len(book.outbox.undelivered(job.id)),
    }


def _of_airflow(lab: Lab, job_id: str) -> dict[str, Any]:
    run = lab.airflow_run(job_id)
    return {"airflow": None if run is None else str(run["state"]), "tasks": lab.task_states(job_id)}


def _of_mlflow(lab: Lab, run_id: str) -> dict[str, Any]:
    run = lab.mlflow("runs/get", run_id=run_id)["run"]
    tags = {tag["key"]: tag["value"] for tag in run["data"].get("tags", ())}
    points = {}
    for key in KEYS:
        found: list[int] = []
        token = None
        while True:
            query = {"run_id": run_id, "metric_key": key, "max_results": POINTS}
            page = lab.mlflow("metrics/get-history", **query, **({"page_token": token} if token else {}))
            found += [int(point["step"]) for point in page.get("metrics", ())]
            if not (token := page.get("next_page_token")):
                break
        points[key] = found
    return {"mlflow": run["info"]["status"], "mlflow_verdict": tags.get("updraft.verdict"), "points": points}


def _of_cluster(lab: Lab, job_id: str) -> dict[str, Any]:
    def names(resource: str) -> tuple[str, ...]:
        return tuple(item["metadata"]["name"] for item in lab.objects(resource, job_id))

    return {"pods": names("pods"), "secrets": (*names("secrets"), *names("services"))}


def _of_registry(lab: Lab, subject: Subject, run_id: str | None) -> dict[str, Any]:
    name = model_name(subject.id)
    versions = tuple(
        VersionFacts(str(v["version"]), str(v.get("run_id", "")), str(v.get("status")), v.get("run_id") == run_id)
        for v in lab.versions(name)
    )
    return {"versions": versions, "champion": lab.alias(name, "champion") if versions else None}


def _downloaded(lab: Lab, job_id: str) -> dict[str, Any]:
    """Download the job's files as its user does: from the api-server, file by file."""
    with tempfile.TemporaryDirectory(prefix="fault-lab-") as folder:
        files = lab.client.download(job_id, "results", Path(folder))
        results = [path for path in files if path.name == "result.json"]
        return {"downloaded": _json(results[0]) if results else None}


def _of_data(lab: Lab, job: Any) -> dict[str, Any]:
    return {"data_verdicts": tuple(v for item in job.data for v in lab.data_verdicts(str(item["tree"])))}


def _logs(folder: Path) -> list[LogFacts]:
    """Return the logs of all trainings' learners. A number that was written twice with the same line is one line."""
    found = []
    for place in sorted(folder.glob("attempts/train-*/learner-*/logs")):
        lines: dict[int, str] = {}
        twice = 0
        for chunk in sorted(place.glob("*.jsonl")):
            for raw in chunk.read_text(errors="replace").splitlines():
                try:
                    line = json.loads(raw)
                except ValueError:
                    continue
                twice += lines.setdefault(int(line["n"]), str(line["line"])) != str(line["line"])
        steps = [int(text.split()[1]) for _, text in sorted(lines.items()) if text.startswith("step ")]
        found.append(
            LogFacts(
                attempt=int(place.parents[1].name.rpartition("-")[2]),
                learner=int(place.parent.name.rpartition("-")[2]),
                steps=tuple(steps),
                twice=twice,
                gaps=max(lines) - min(lines) + 1 - len(lines) if lines else 0,
            )
        )
    return found


def _result(folder: Path) -> dict[str, Any] | None:
    """Return what learner 1 has found; if learners join and leave, whichever of them wrote it."""
    written = sorted(folder.glob("learner-*/result.json"), key=lambda path: path.parent.name != "learner-1")
    return _json(written[0]) if written else None


def _shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:80]}"
    except psutil.Error:
        return str(process.pid)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def as_json(facts: JobFacts) -> dict[str, Any]:
    """Return the facts as JSON for the bundle of a failed run."""
    return asdict(facts)
