"""What the platform's whole life cycle costs beyond the work itself, against an empty DAG of the same shape.

`NOTES` says what counts as work.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.pods import PodClock, PodTimes, local_clock
from benchmarks.results import Budget, Comparison, Measured, TableOf, Value
from benchmarks.stack import DAGS, BenchmarkError, Stack, running_stack
from updraft.lifecycle.workflow import PREPARE_ROLE, ROLE_OF_TASK, STAGE_TASK, TASKS, TRAIN_DAG

NAME, TITLE = "orchestration", "Orchestration of a whole life cycle"
BUDGET = Budget(at="most", value=1.15)
EMPTY_DAG = "empty_life_cycle"
END_SECONDS = 300
# The pod that prepares data is launched for the first job alone: the others find data and verdict as they are.
ROLES = {task: role for task, role in ROLE_OF_TASK.items() if task != STAGE_TASK}

NOTES = (
    "A job is a model of two numbers with data, evaluation, export, registration and promotion. Its data was staged "
    "and judged by an earlier job, so that no pod is launched to prepare it.",
    "The empty DAG (`bench/dags/empty_life_cycle.py`) has the same ten tasks in the same order, four of which defer "
    "once, to a trigger that fires at once.",
    "Orchestration is the time from the moment a DAG run is queued to its end, less the union of the spans in which "
    "something worked: staging (in `stage_data` from its first line 'Staging' to its last 'Staged'), and in each pod "
    "staging, training, evaluation and export (from the "
    "start of its sidecar, which stages, to the program's end, as a watch of the cluster showed them).",
    "All the rest counts as orchestration: processes of tasks, deferrals, creating pods, storing after a program's "
    "end, registering, promoting, the verdict, and every gap between them.",
)

Span = tuple[float, float]


@dataclass(frozen=True)
class Run:
    """One DAG run: unix seconds of its begin and end, and of each task's queueing, start and end."""

    span: Span
    tasks: Mapping[str, tuple[float, float, float]]
    tries: Mapping[str, int] = field(default_factory=dict)  # more than 1: Airflow ran the task again

    @property
    def seconds(self) -> float:
        return self.span[1] - self.span[0]


@dataclass(frozen=True)
class Life:
    """A job's run with the spans of its work, by what worked."""

    run: Run
    work: Mapping[str, Span]
    pods: Mapping[str, PodTimes]

    @property
    def worked_seconds(self) -> float:
        return union_seconds(self.work.values())

    @property
    def orchestration_seconds(self) -> float:
        return self.run.seconds - self.worked_seconds


def union_seconds(spans: Iterable[Span]) -> float:
    """Return the seconds that at least one of the spans covers."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def measure(options: Options) -> Measured:
    return measured(*in_turn(options.pairs(6, 2)))


def in_turn(rounds: int, variables: Mapping[str, str] | None = None) -> tuple[list[Life], list[Run]]:
    """Run jobs and empty DAGs in turn on a platform that was started with these variables."""
    lives, empties = [], []
    with running_stack(dags=DAGS, variables=variables) as stack:
        put_data(stack)
        wait_for_dag(stack, EMPTY_DAG)
        with local_clock(stack.home) as clock:
            run_job(stack, clock)  # fills caches: the data is staged and judged, modules are compiled
            run_empty(stack)
            for _ in range(rounds):
                lives.append(run_job(stack, clock))
                empties.append(run_empty(stack))
    return lives, empties


def orchestration_pairs(lives: Sequence[Life], empties: Sequence[Run]) -> tuple[tuple[float, float], ...]:
    """Return the seconds of each job less its work beside the seconds of the empty DAG."""
    return tuple((life.orchestration_seconds, empty.seconds) for life, empty in zip(lives, empties, strict=True))


def measured(lives: Sequence[Life], empties: Sequence[Run]) -> Measured:
    pairs = orchestration_pairs(lives, empties)
    return Measured(
        settings={"rounds": len(lives), "tasks": len(TASKS), "deferrals": 4},
        comparisons=(
            Comparison(
                name="Orchestration of a whole life cycle",
                unit="s",
                a="a job less its work",
                b="an empty DAG",
                pairs=pairs,
                budget=BUDGET,
            ),
        ),
        values=(
            Value(name="A job from queued to ended", unit="s", samples=tuple(life.run.seconds for life in lives)),
            Value(name="Work in it, taken off", unit="s", samples=tuple(life.worked_seconds for life in lives)),
            Value(
                name="Tasks of a job that Airflow ran again",
                unit="",
                samples=tuple(float(sum(n > 1 for n in life.run.tries.values())) for life in lives),
            ),
        ),
        tables=(task_table(lives, empties), slowest_table(lives), pod_table(lives), work_table(lives)),
        notes=NOTES,
    )


def run_job(stack: Stack, clock: PodClock) -> Life:
    manifest = {
        "name": "bench-tiny",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": str(REPOSITORY / "bench" / "jobs" / "tiny"),
        "command": "python train.py",
        "resources": {"learners": 1, "cpus": 1, "memory": "1GiB"},
        "data": [
            {
                "source": "s3://datasets/digits/",
                "as": "training",
                "expectations": str(REPOSITORY / "jobs" / "digits-cnn" / "digits.suite.json"),
            }
        ],
        "checkpoints": {"every": "60s", "keep": {"latest": 1}},
        "evaluate": {"command": "true"},
        "export": {"formats": ["torch"], "register_as": "bench-tiny", "promote_if": {"loss": "<= 1"}},
    }
    job = stack.client.submit(manifest, base=REPOSITORY)
    stack.completed(job.id, within_seconds=END_SECONDS)
    run = ended_run(stack, TRAIN_DAG, job.id)
    pods = clock.of_job(job.id)
    work: dict[str, Span] = {}
    for role, times in pods.items():
        if (span := times.span("sidecar started", "main ended")) is None:
            raise BenchmarkError(f"the containers of {role} were not seen to start and end")
        work[f"{role}: staging and program"] = span
    if set(pods) - {PREPARE_ROLE} != set(ROLES.values()):
        raise BenchmarkError(f"pods of {', '.join(pods) or 'no role'} were seen, not of {', '.join(ROLES.values())}")
    if (span := logged_span(log_lines(stack, job.id, "stage_data"), "Staging ", "Staged ")) is not None:
        work["stage_data"] = span
    return Life(run, work, pods)


def run_empty(stack: Stack) -> Run:
    run_id = f"empty-{time.time_ns()}"
    body: dict[str, Any] = {"dag_run_id": run_id, "logical_date": None, "conf": {}}
    stack.client.http.json("POST", f"/api/v2/dags/{EMPTY_DAG}/dagRuns", body=body)
    return ended_run(stack, EMPTY_DAG, run_id)


def ended_run(stack: Stack, dag_id: str, run_id: str) -> Run:
    """Return the run as Airflow recorded it, once it has ended."""
    path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"
    deadline = time.monotonic() + END_SECONDS
    while (run := stack.client.http.json("GET", path))["state"] in ("queued", "running"):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the run {run_id} of {dag_id} did not end in {END_SECONDS} s")
        time.sleep(2)
    if run["state"] != "success":
        raise BenchmarkError(f"the run {run_id} of {dag_id} ended as {run['state']}")
    found = stack.client.http.json("GET", f"{path}/taskInstances", params={"limit": 100})["task_instances"]
    tasks = {t["task_id"]: (seconds(t["queued_when"]), seconds(t["start_date"]), seconds(t["end_date"])) for t in found}
    tries = {t["task_id"]: int(t.get("try_number") or 1) for t in found}
    return Run((seconds(run["queued_at"]), seconds(run["end_date"])), tasks, tries)


def log_lines(stack: Stack, run_id: str, task: str) -> list[tuple[float, str]]:
    path = f"/api/v2/dags/{TRAIN_DAG}/dagRuns/{run_id}/taskInstances/{task}/logs/1"
    content = stack.client.http.json("GET", path, params={"full_content": "true"})["content"]
    return [(seconds(line["timestamp"]), str(line["event"])) for line in content if line.get("timestamp")]


def logged_span(lines: Sequence[tuple[float, str]], first: str, last: str) -> Span | None:
    """Return the span from the first line that begins with `first` to the last one that holds `last`."""
    began = [at for at, text in lines if text.startswith(first)]
    ended = [at for at, text in lines if last in text and not text.startswith(first)]
    return (began[0], ended[-1]) if began and ended else None


def task_table(lives: Sequence[Life], empties: Sequence[Run]) -> TableOf:
    """Return where the time goes: for each task in turn, from the end of what it waited for."""
    rows = []
    for task in TASKS:
        job, empty = ([phases(run, task) for run in runs] for runs in ([life.run for life in lives], empties))
        worked = [union_seconds(s for w, s in life.work.items() if of_task(w, task)) for life in lives]
        whole = statistics.median(p[0] for p in job)
        rows.append(
            (
                task,
                whole,
                statistics.median(worked),
                whole - statistics.median(worked),
                statistics.median(p[0] for p in empty),
                statistics.median(p[1] for p in job),
                statistics.median(p[1] for p in empty),
            )
        )
    columns = ("task", "job", "work in it", "job less work", "empty DAG", "job: last process", "empty: last process")
    return TableOf(
        title="Seconds from the end of what a task waits for to its own end, medians", columns=columns, rows=tuple(rows)
    )


def phases(run: Run, task: str) -> tuple[float, float]:
    """Return the seconds from the end of what the task waits for to its own end, and those of its last process."""
    after = dict(zip(TASKS[1:], TASKS, strict=False))
    after |= {"watch_checkpoints": "validate_data", "evaluate": "train"}
    _, _, end = run.tasks[task]
    before = run.tasks[after[task]][2] if task in after else run.span[0]
    if task == "release":
        before = max(before, run.tasks["watch_checkpoints"][2])
    return end - before, end - run.tasks[task][1]


def slowest_table(lives: Sequence[Life]) -> TableOf:
    """Return where the slowest job lost time: each of its tasks beside the median of all jobs."""
    slowest = max(lives, key=lambda life: life.orchestration_seconds)
    rows = tuple(
        (
            task,
            phases(slowest.run, task)[0],
            statistics.median(phases(life.run, task)[0] for life in lives),
            float(slowest.run.tries.get(task, 1)),
        )
        for task in TASKS
    )
    return TableOf(
        title="The slowest job, seconds of each task", columns=("task", "slowest job", "median", "tries"), rows=rows
    )


def of_task(work: str, task: str) -> bool:
    if task == STAGE_TASK and work.startswith(f"{PREPARE_ROLE}: "):
        return True
    return work == task or (task in ROLES and work.startswith(f"{ROLES[task]}: "))


def pod_table(lives: Sequence[Life]) -> TableOf:
    """Return the phases of each pod, as the cluster's watch showed them."""
    marks = (
        ("created", "sidecar started"),
        ("sidecar started", "main started"),
        ("main started", "main ended"),
        ("main ended", "ended"),
        ("ended", "deleted"),
    )
    rows: list[tuple[str | float | None, ...]] = []
    for first, last in marks:
        row: list[str | float | None] = [f"{first} → {last}"]
        for role in ROLES.values():
            spans = [span for life in lives if (span := life.pods[role].span(first, last)) is not None]
            row.append(statistics.median(end - begin for begin, end in spans) if spans else None)
        rows.append(tuple(row))
    return TableOf(title="Seconds of each pod's phases, medians", columns=("phase", *ROLES.values()), rows=tuple(rows))


def work_table(lives: Sequence[Life]) -> TableOf:
    names = list(dict.fromkeys(name for life in lives for name in life.work))
    rows = tuple(
        (name, statistics.median(life.work[name][1] - life.work[name][0] for life in lives if name in life.work))
        for name in names
    )
    return TableOf(title="Work taken off, seconds, medians", columns=("what", "seconds"), rows=rows)


def put_data(stack: Stack) -> None:
    folder = stack.home.s3 / "datasets" / "digits"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "jobs" / "data" / "digits" / "digits.csv", folder)


def wait_for_dag(stack: Stack, dag_id: str) -> None:
    deadline = time.monotonic() + 120
    while not any(d["dag_id"] == dag_id for d in stack.client.http.json("GET", "/api/v2/dags")["dags"]):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"Airflow did not read the DAG {dag_id}")
        time.sleep(1)


def seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
