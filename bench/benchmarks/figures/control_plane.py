"""Each part of the control plane killed while jobs train: when it serves again, when the jobs' states are current.

A job whose program ends just after the kill shows the second: how much later the ledger says so than the program's own
note, beside the same without a kill. What the learners lost is counted in steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import parts, witness
from faults.jobs import Shape, manifest
from faults.lab import Lab

from benchmarks.options import Options
from benchmarks.results import Budget, Measured, TableOf, Value
from benchmarks.stack import BenchmarkError, Stack, running_stack

NAME, TITLE = "control_plane", "A part of the control plane killed"
PARTS = {
    "triggerer": "airflow-triggerer",
    "scheduler": "airflow-scheduler",
    "api-server": "airflow-api",
    "DAG processor": "airflow-dag-processor",
    "MLflow": "mlflow",
    "S3": "s3",
    "cluster (local node)": "node",
}
NOTHING = "nothing"
STEPS, STEP_SECONDS = 60, 0.2
LEAST_STEPS = 10
BEFORE_END_STEPS = 8  # the kill comes so long before the short job's program ends
LONGER = 3  # the other job goes on for so many times as long
END_SECONDS = 300.0


@dataclass(frozen=True)
class Sample:
    """Seconds; `lost_steps` of both jobs."""

    part: str
    serves: float | None
    current: float
    verdict: float
    lost_steps: int
    pause: float


def measure(options: Options) -> Measured:
    rounds = options.pairs(3, 1)
    samples: list[Sample] = []
    with running_stack() as stack:
        for number in range(rounds):
            for part in (NOTHING, *PARTS):
                samples.append(one(stack, part, number))
    return measured(samples)


def measured(samples: Sequence[Sample]) -> Measured:
    rows = []
    for part in (NOTHING, *PARTS):
        own = [sample for sample in samples if sample.part == part]
        if not own:
            continue
        served = [sample.serves for sample in own if sample.serves is not None]
        rows.append(
            (
                part,
                statistics.median(served) if served else None,
                statistics.median(sample.current for sample in own),
                statistics.median(sample.verdict for sample in own),
                max(sample.pause for sample in own),
                float(sum(sample.lost_steps for sample in own)),
            )
        )
    killed = [sample for sample in samples if sample.part != NOTHING]
    columns = ("killed", "serves again", "state is current", "verdict", "longest pause of steps", "lost steps")
    return Measured(
        settings={"rounds": max((sum(s.part == part for s in samples) for part in PARTS), default=0)},
        values=(
            Value(
                name="Learners' lost steps, all kills",
                unit="",
                samples=(float(sum(sample.lost_steps for sample in killed)),),
                budget=Budget(at="most", value=0),
            ),
        ),
        tables=(TableOf(title="Seconds, medians (the pause: the longest)", columns=columns, rows=tuple(rows)),),
        notes=(
            f"Two jobs of `bench/faults/program` train with a step each {STEP_SECONDS} s. The part gets SIGKILL when "
            f"the first one is {BEFORE_END_STEPS} steps from its end; the other one goes on.",
            "Serves again: from the kill to the part's answer, for Airflow's daemons to its first heartbeat. It is "
            "started again by the stack's supervisor, a second after it is found dead.",
            "State is current: from the end of the first job's program, as it notes it itself, to the moment at which "
            "the ledger has the attempt's end. Verdict: to the job's end, with storing, the tasks after the training, "
            "and its MLflow run closed.",
            "Lost steps: made again, by either job.",
        ),
    )


def one(stack: Stack, part: str, number: int) -> Sample:
    folder = stack.home.root / "witness"
    lab = Lab(stack.home, stack.client, 1.0, folder)
    shapes = (Shape(steps=STEPS, step_seconds=STEP_SECONDS), Shape(steps=LONGER * STEPS, step_seconds=STEP_SECONDS))
    token = f"{part.split()[0].lower()}-{number}-{time.time_ns() // 10**9 % 16**5:05x}"
    jobs = [
        stack.client.submit(manifest(shape, "bench-control-plane", folder), job_id=f"cp-{token}-{index}").id
        for index, shape in enumerate(shapes)
    ]
    _until(lambda: witness.newest_step(folder / jobs[1]) >= LEAST_STEPS, "the second job trains")
    _until(lambda: witness.newest_step(folder / jobs[0]) >= STEPS - BEFORE_END_STEPS, "the first job is near its end")
    struck = time.time()
    serves = None
    if part != NOTHING:
        at = parts.kill(stack.home, PARTS[part])
        serves = parts.wait_serves(stack.home, PARTS[part], since=at) - at
    for job in jobs:
        stack.completed(job, within_seconds=END_SECONDS)
    attempt = next(a for a in lab.ledger.attempts.of_job(jobs[0]) if a.role == "train")
    ended = lab.ledger.jobs.get(jobs[0]).ended_at
    left = _left_at(folder / jobs[0])
    if attempt.ended_at is None or ended is None:
        raise BenchmarkError(f"{jobs[0]} has ended without times")
    sessions = [witness.read(folder / job) for job in jobs]
    return Sample(
        part=part,
        serves=serves,
        current=attempt.ended_at.timestamp() - left,
        verdict=ended.timestamp() - left,
        lost_steps=sum(loss.repeated for own in sessions for loss in witness.losses(own)),
        pause=max(witness.longest_pause(own, struck, time.time()) for own in sessions),
    )


def _left_at(folder: Path) -> float:
    """Return when the program noted that it leaves."""
    return max(session.last_at for session in witness.read(folder))


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"it did not come to pass within {END_SECONDS:.0f} s that {what}")
        time.sleep(0.05)
