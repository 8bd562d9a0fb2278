"""The list and a job's page with everything that they can show: long ids and reasons, lost attempts, many metrics."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from updraft.api.pages import PageFacts, ShownMetric
from updraft.api.pages import job_page as render_job
from updraft.api.pages import jobs_page as render_jobs
from updraft.api.pages import queue_page as render_queue
from updraft.api.pages import series_list_page as render_series_list
from updraft.api.pages import series_page as render_series
from updraft.api.pages import sizes_page as render_sizes
from updraft.schemas import (
    Attempt,
    Checkpoint,
    DataVersion,
    JobDetail,
    JobSize,
    JobSummary,
    Learner,
    Links,
    LogLine,
    LogPage,
    Loss,
    MetricPoint,
    Metrics,
    Model,
    Progress,
    QueueEntry,
    QueueList,
    Request,
    ResumePlan,
    RoundList,
    SeriesDetail,
    SeriesEvent,
    SeriesRun,
    SizeChange,
    SizingRound,
    Transition,
)

START = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)
NOW = START + timedelta(hours=3)
AIRFLOW = "http://airflow:8080"
ID = "resnet50-imagenet-lr-sweep-20260101-093000-1a2b3c4d"
REASON = (
    "attempt 2 of train was lost: learner 3 was killed from outside (SIGKILL) while node gpu-node-a-17.cluster.internal"
    " was drained; infrastructure loss 2 of 5: launched again after 10 s on another node from step-1200"
)
ERROR = "ValueError: could not convert string to float: 's3://datasets/a/very/long/path/without/a/space/part-00017.csv'"


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def jobs() -> list[JobSummary]:
    states = ("RECOVERING", "PROCESSING", "QUEUED", "COMPLETED", "FAILED", "CANCELLED", "HALTED", "PENDING")
    model = Model(name="resnet50-imagenet-classifier", version="12", alias="champion", url="http://mlflow/m")
    loss = Loss(attempt=2, role="train", cause="infrastructure", label="node.drained")
    asked = Request(seq=1, kind="halt", by="ada.lovelace@example.org", at=at(5))
    found = []
    for n in range(24):
        state = states[n % len(states)]
        ended = state in ("COMPLETED", "FAILED", "CANCELLED")
        reason = {
            "COMPLETED": "registered resnet50-imagenet-classifier version 12 as @champion: val_accuracy 0.9312 > 0.92",
            "QUEUED": f"place {n} in the queue: waits for 8 nvidia-h100 on one node; 4 are free on gpu-node-a-17",
            "FAILED": f"learner 1 exited with 1: {ERROR}",
        }.get(state, REASON)
        found.append(
            JobSummary(
                id=ID if n == 0 else f"digits-cnn-202601{n:02}-093000-1a2b3c",
                name="digits-cnn",
                tenant="default",
                user="ada.lovelace@example.org" if n % 3 else "admin",
                state=state,
                reason=reason,
                ended=ended,
                created_at=at(-n * 97),
                updated_at=at(-n * 97 + 61),
                progress=Progress(step=1200 + n, total=5000) if state in ("PROCESSING", "RECOVERING") else None,
                model=model if state == "COMPLETED" else None,
                attempt=0 if state in ("QUEUED", "PENDING") else 1 + n % 3,
                loss=loss if state in ("RECOVERING", "FAILED") else None,
                requests=(asked,) if state == "PROCESSING" else (),
            )
        )
    return found


def list_page(nonce: str = "") -> str:
    found = jobs()
    metrics = {job.id: ShownMetric("val_accuracy", 0.9 + n / 1000) for n, job in enumerate(found) if n % 2}
    return render_jobs(found, NOW, metrics, nonce=nonce)


def job_page(nonce: str = "") -> str:
    states = (
        (0, "PENDING", "accepted"), (1, "QUEUED", "place 2: waits for 8 nvidia-h100"), (9, "DOWNLOADING", "staging"),
        (12, "PROCESSING", "attempt 1 runs"), (60, "RECOVERING", REASON), (62, "PROCESSING", "attempt 2 runs"),
        (110, "HALTED", "halted by ada.lovelace@example.org"), (130, "PROCESSING", "attempt 3 runs"),
    )  # fmt: skip
    before = [None, *(state for _, state, _ in states)]
    transitions = tuple(
        Transition(at=at(m), state=state, reason=reason, previous=was)
        for (m, state, reason), was in zip(states, before, strict=False)
    )
    plan = ResumePlan(checkpoint="step-1200", step=1200, repeats=87, reason="the newest good one")
    attempts = [
        Attempt(number=1, role="train", started_at=at(12), ended_at=at(60), cause="infrastructure",
                label="node.drained", reason=REASON, action="relaunch_elsewhere", first_step=1, last_step=1287,
                done="relaunched after 10 s on another node from step-1200"),
        Attempt(number=2, role="train", started_at=at(62), ended_at=at(110), cause="halted", resume=plan,
                reason="halted", action="wait", first_step=1201, last_step=2500, done="resumed from step-2500"),
        Attempt(number=3, role="train", started_at=at(130), resume=plan.model_copy(update={"checkpoint": "step-2500"}),
                first_step=2501, last_step=3900, revision=1),
    ]  # fmt: skip
    checkpoints = [
        Checkpoint(name=f"step-{step}", step=step, attempt=1 + step // 1300, size_bytes=97_000_000,
                   created_at=at(12 + step / 26), metrics={"val_loss": 2 / step, "val_accuracy": 0.9},
                   state="kept" if step > 3000 else "deleted", reason=None if step > 3000 else "older than the newest")
        for step in range(300, 3900, 300)
    ]  # fmt: skip
    checkpoints.append(
        Checkpoint(name="step-1250", step=1250, attempt=1, created_at=at(58), state="quarantined",
                   reason="the digest of optimizer/exp_avg_sq.safetensors is not that of checkpoint.json")
    )  # fmt: skip
    names = ("loss", "val_loss", "val_accuracy", "train/learning_rate_of_the_first_parameter_group", "grad_norm",
             "samples_per_second", "epoch_seconds", "top5_accuracy")  # fmt: skip
    history = {
        name: tuple(
            MetricPoint(step=step, t=at(12 + step / 26 + (2 if step > 1287 else 0) + (20 if step > 2500 else 0))
                        .timestamp(), value=k + math.exp(-step / 900) * (1 + 0.1 * math.sin(step / 40)))
            for step in range(10, 3900, 10)
        )
        for k, name in enumerate(names[:6])
    }  # fmt: skip
    system = {
        f"system/node_{n}/{kind}": 12_345.6
        for n in range(4)
        for kind in ("learner_memory_megabytes", "learner_memory_percentage", "gpu_0_utilization_percentage",
                     "cpu_utilization_percentage", "system_memory_usage_megabytes", "disk_usage_percentage")
    }  # fmt: skip
    last = dict.fromkeys(names, 0.123456) | system
    lines = [f"epoch {n} loss {1 / (n + 1):.4f} " + "x" * (n % 90) for n in range(200)]
    logs = LogPage(
        role="train", attempt=3, latest_attempt=3, learner=1, after=200,
        lines=tuple(LogLine(n=n, t="", line=line) for n, line in enumerate([*lines, f"WARNING {ERROR}"])),
    )  # fmt: skip
    asked = [
        Request(seq=1, kind="halt", by="ada.lovelace@example.org", at=at(108), answered_at=at(110), answer="halted"),
        Request(seq=2, kind="resume", by="admin", at=at(128), changes={"params": {"lr": 0.01}, "resources": {
            "memory": "64GiB"}}, answered_at=at(130), answer="resumed"),
    ]  # fmt: skip
    learners = tuple(
        Learner(role="train", attempt=3, learner=n, phase="running", progress=Progress(step=3900 - n, total=5000),
                warnings=("metric grad_norm at step 3100 is NaN",) if n == 2 else ())
        for n in range(1, 5)
    )  # fmt: skip
    job = JobDetail(
        id=ID, name="resnet50-imagenet-lr-sweep", tenant="default", user="ada.lovelace@example.org",
        state="PROCESSING", reason="4 learners run: step 3896 of 5000", ended=False, created_at=START,
        updated_at=at(130), dag_id="train_model", run_id=ID, transitions=transitions, learners=learners, attempt=3,
        model=Model(name="resnet50-imagenet-classifier", version="12", alias="champion", url="http://mlflow/m"),
        sizes=tuple(JobSize(learners=n, batch=2048 * n, speedup=n**0.8, step_seconds=0.1234 * n if n < 5 else None,
                            current=n == 4) for n in range(1, 17)),
        size_remarks=("A step takes as long with a large batch as with a small one: the program seems to ignore "
                      "UPDRAFT_BATCH. Its batch stays 2048.",), gradient_noise=51_234.5,
        links=Links(airflow_run=f"{AIRFLOW}/dags/train_model/runs/{ID}", mlflow_run="http://mlflow:5000/#/r"),
    )  # fmt: skip
    manifest = {
        "name": "resnet50-imagenet-lr-sweep",
        "params": {"lr": 0.01, "batch_size": 256, "augmentations_of_the_training_images": "flip,crop,colour-jitter"},
        "command": "torchrun train.py " + " ".join(f"--option-{n}=value" for n in range(12)),
    }
    facts = PageFacts(attempts, checkpoints, asked, Metrics(run_id="r", last=last, history=history), logs, (),
                          manifest)  # fmt: skip
    return render_job(job, facts, AIRFLOW, NOW, nonce=nonce)


def series() -> SeriesDetail:
    model = "resnet50-imagenet-classifier"
    runs, events = [], []
    kinds = ("promoted", "rejected", "waiting", None)
    for n in range(24, 0, -1):
        kind = kinds[n % 4]
        reason = f"val_accuracy 0.93{n:02} >= 0.9312 (champion 0.9312); val_loss 0.21 is not < 0.2 on the held-out set"
        runs.append(
            SeriesRun(
                id=f"{ID[:-2]}{n:02}",
                state="COMPLETED" if kind else "FAILED",
                user="ada.lovelace@example.org",
                submitted_at=at(n * 60),
                code="c0ffee0123456789abcdef",
                data=(
                    DataVersion(source="s3://datasets/imagenet/train/2026-01/", tree="da7a0123456789"),
                    DataVersion(source="s3://datasets/imagenet/held-out/", tree="e1dd0123456789"),
                ),
                version=str(n) if kind else None,
                outcome=kind,
                reason=reason if kind else REASON,
            )
        )
        if kind:
            events.append(
                SeriesEvent(at=at(n * 60 + 50), kind=kind, model=model, version=str(n), reason=reason, over=str(n - 1))
            )
    back = SeriesEvent(
        at=at(3000), kind="rolled back", model=model, version="20", over="24", by="grace.hopper@example.org",
        reason="worse on the customers that joined in December; see the report of the support team",
    )  # fmt: skip
    return SeriesDetail(
        tenant="default", name="resnet50-imagenet-lr-sweep", jobs=24, last_submitted_at=at(1440), model=model,
        champion="20", previous="16", runs=tuple(runs), events=(back, *events),
    )  # fmt: skip


def series_page(nonce: str) -> str:
    return render_series(series(), "http://mlflow:5000/#/m", nonce=nonce)


def series_list_page(nonce: str) -> str:
    found = [series().model_copy(update={"name": f"resnet50-imagenet-lr-sweep-{n}"}) for n in range(24)]
    return render_series_list(found, nonce=nonce)


def queue_page(nonce: str) -> str:
    """A queue with long names and reasons."""
    running = QueueEntry(
        job=ID,
        name="resnet50",
        tenant="default",
        user="ann",
        state="PROCESSING",
        priority="normal",
        learners=16,
        each="8 CPUs + 64 GiB + 8 A100-SXM4-80GB GPUs",
        requested_at=datetime(2026, 1, 1, tzinfo=UTC),
        granted_at=datetime(2026, 1, 1, 1, tzinfo=UTC),
    )
    reason = f"needs 16 x {running.each}; 0 of 128 A100-SXM4-80GB GPUs free; behind {ID}, whose priority is high"
    waiting = [
        running.model_copy(
            update={
                "job": f"{ID}-{n}",
                "granted_at": None,
                "state": "QUEUED",
                "place": n,
                "reason": f"{n}th in the queue; {reason}",
            }
        )
        for n in range(4, 30)
    ]
    return render_queue(QueueList(running=(running,), waiting=tuple(waiting)), nonce=nonce)


def sizes_page(nonce: str) -> str:
    """Rounds of many changes: some measured, some not, some of jobs that started."""
    gained = (None, 1.31, None, 1.02)
    rounds = []
    for number in range(8, 0, -1):
        changes = [
            SizeChange(
                job=f"{ID}-{n}",
                name="resnet50",
                tenant="default",
                before=8 if n else 0,
                before_batch=65_536 if n else None,
                after=16 * n or 16,
                after_batch=131_072,
                reason=f"{16 * n or 16} learners instead of 8: expected to be 1.87 times as fast; {ID}-{n + 1} has "
                "left 10 of 128 A100-SXM4-80GB GPUs on gpu-node-a-17.cluster.internal",
                expected=1.87 if n else None,
                gained=gained[n] if number < 8 else None,
                pause_seconds=142.0 if n and gained[n] and number < 8 else None,
                waits=number == 8 and n > 0,
            )
            for n in range(4)
        ]
        rounds.append(SizingRound(round=48_120 + number, at=at(number * 40), changes=tuple(changes)))
    return render_sizes(RoundList(rounds=tuple(rounds)), nonce=nonce)
