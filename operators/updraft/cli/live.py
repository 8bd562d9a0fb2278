"""Follow a job until it ends: with a live table on a terminal, line by line otherwise.

`updraft submit --follow`, `updraft show --follow` and `make demo` call `follow`. Pure functions of two `Snapshot`s make
its output, so that it can be tested without a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from updraft.cli.console import ago, duration, folded, number, out, state_style
from updraft.exceptions import UnavailableError, UpdraftError
from updraft.lifecycle.workflow import BEFORE_ROLES, TRAIN_ROLE
from updraft.schemas import JobDetail, JobSummary, Learner, Progress, Stage
from updraft.terminal import plain, typed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from updraft.client import Client

POLL_SECONDS = 1.5
PATIENCE_SECONDS = 300.0
SHOWN_METRICS = 6
LAST_LINES = 20
MARKS = {
    "success": ("✓", "green"),
    "failed": ("✗", "red"),
    "upstream_failed": ("·", "dim"),
    "skipped": ("–", "dim"),
    "removed": ("–", "dim"),
    "running": ("▶", "blue"),
    "deferred": ("▶", "blue"),
    "up_for_retry": ("↻", "yellow"),
    "restarting": ("↻", "yellow"),
}
WAITING = ("·", "dim")
NOT_RUN = ("skipped", "upstream_failed", "removed")


@dataclass(frozen=True)
class Snapshot:
    """The facts about a job at one moment, with the pace of its steps so far."""

    job: JobDetail
    stages: tuple[Stage, ...] = ()
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    checkpoints: int = 0
    pace: tuple[datetime, int] | None = None  # time and step when this attempt was first seen
    pace_attempt: int = 0
    trouble: str | None = None  # the error, if the platform did not answer the last request

    def seconds_left(self) -> float | None:
        """Return the time until the last training step at the pace so far; None while that is unknown."""
        progress = progress_of(self.job)
        if self.pace is None or progress is None or progress.step is None or not progress.total:
            return None
        since, first = self.pace
        seconds, steps = (self.at - since).total_seconds(), progress.step - first
        if seconds <= 0 or steps <= 0:
            return None
        return max(progress.total - progress.step, 0) * seconds / steps


def follow(
    client: Client,
    job_id: str,
    *,
    console: Console | None = None,
    poll_seconds: float = POLL_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> JobDetail:
    """Show the job until it ends, then its summary; returns the ended job.

    Raises UnavailableError when the platform stays silent for `patience_seconds`, KeyboardInterrupt on Ctrl-C: the
    job goes on in both cases.
    """
    console = console or out()
    if console.is_terminal:
        final = _follow_live(client, job_id, console, poll_seconds, patience_seconds, sleep)
    else:
        final = _follow_lines(client, job_id, console, poll_seconds, patience_seconds, sleep)
    print_summary(console, final, last_metrics(client, final))
    print_last_words(client, final, console)
    return final


def last_words(client: Client, job: JobDetail) -> list[str]:
    """Return the last lines of what failed in a job that FAILED, with a heading; none where there is no log."""
    if job.state != "FAILED":
        return []
    role = job.loss.role if job.loss is not None else TRAIN_ROLE
    known = [item for item in job.learners if item.role == role]
    number = next((item.learner for item in known if item.phase == "failed"), known[0].learner if known else 1)
    try:
        lines = client.last_lines(job.id, LAST_LINES, learner=number, role=role)
    except UpdraftError:
        return []
    return ["", f"last lines of {role}, learner {number}:", *(f"  {line.line}" for line in lines)] if lines else []


def print_last_words(client: Client, job: JobDetail, console: Console) -> None:
    for line in last_words(client, job):  # the program's own text, unchanged
        console.print(folded(plain(line), console, 0), markup=False, highlight=False, emoji=False, soft_wrap=True)


def _print(console: Console, line: str, hang: int = 0) -> None:
    text = folded(typed(plain(line)), console, hang)
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _follow_live(
    client: Client,
    job_id: str,
    console: Console,
    poll_seconds: float,
    patience_seconds: float,
    sleep: Callable[[float], None],
) -> JobDetail:
    from rich.live import Live

    snapshot = observe(client, job_id, None)
    with Live(render(snapshot), console=console, refresh_per_second=4) as live:
        while not snapshot.job.ended:
            sleep(poll_seconds)
            snapshot = _observe_patiently(client, job_id, snapshot, patience_seconds)
            live.update(render(snapshot))
    return snapshot.job


def _follow_lines(
    client: Client,
    job_id: str,
    console: Console,
    poll_seconds: float,
    patience_seconds: float,
    sleep: Callable[[float], None],
) -> JobDetail:
    previous: Snapshot | None = None
    snapshot = observe(client, job_id, None)
    while True:
        for line in changes(previous, snapshot):
            _print(console, line)
        if snapshot.job.ended:
            return snapshot.job
        sleep(poll_seconds)
        previous, snapshot = snapshot, _observe_patiently(client, job_id, snapshot, patience_seconds)


def observe(client: Client, job_id: str, previous: Snapshot | None) -> Snapshot:
    job = client.job(job_id)
    checkpoints = len(client.checkpoints(job_id).checkpoints) if job.attempt else 0
    snapshot = Snapshot(job, tuple(client.stages(job)), checkpoints=checkpoints)
    progress = progress_of(job)
    if progress is None or progress.step is None:
        return snapshot
    if previous is not None and previous.pace is not None and previous.pace_attempt == job.attempt:
        return replace(snapshot, pace=previous.pace, pace_attempt=job.attempt)
    return replace(snapshot, pace=(snapshot.at, progress.step), pace_attempt=job.attempt)


def _observe_patiently(client: Client, job_id: str, last: Snapshot, patience_seconds: float) -> Snapshot:
    """Return the last snapshot with a note while the platform is silent, for a while."""
    try:
        return observe(client, job_id, last)
    except UnavailableError as exc:
        if (datetime.now(UTC) - last.at).total_seconds() > patience_seconds:
            raise
        return replace(last, trouble=str(exc))


def progress_of(job: JobDetail) -> Progress | None:
    """Return the progress of the slowest learner of the latest attempt: a gang is as far as its last member."""
    latest = max((learner.attempt for learner in job.learners if learner.role == TRAIN_ROLE), default=0)
    found = [learner.progress for learner in job.learners if learner.attempt == latest and learner.progress is not None]
    return min(found, key=lambda p: p.step or 0) if found else job.progress


def metrics_of(job: JobDetail) -> dict[str, float]:
    """Return a few metrics to show on one line: losses and accuracies first, without the platform's own."""
    names = [name for name in job.metrics if not name.startswith("system/")]
    names.sort(key=lambda name: (not any(word in name.lower() for word in ("loss", "acc", "err")), name))
    return {name: job.metrics[name] for name in names[:SHOWN_METRICS]}


def render(snapshot: Snapshot) -> RenderableType:
    """Return the live view: head line, stages, training."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    job = snapshot.job
    head = Text.assemble(
        (plain(job.id), "bold"), "  ", (plain(job.state), state_style(job.state)), "  ", plain(job.reason)
    )
    stages = Table.grid(padding=(0, 2))
    for stage in snapshot.stages:
        mark, style = MARKS.get(stage_state(stage, job), WAITING)
        name = Text(plain(stage.name), style)
        stages.add_row(Text(mark, style), name, stage_time(stage, snapshot.at), stage_note(stage))
    lost = [job.loss.text] if job.loss is not None and (not job.ended or job.loss.attempt == job.attempt) else []
    noted = [Text(plain(line), "yellow") for line in (*lost, *notes(job))]
    parts: list[RenderableType] = [head, *noted, stages]
    progress = progress_of(job)
    if progress is not None and progress.total:
        bar = Table.grid(padding=(0, 2))
        drawn = ProgressBar(total=progress.total, completed=progress.step or 0, width=40)
        bar.add_row(drawn, Text(plain(training_text(snapshot))))
        parts.append(bar)
    elif progress is not None or job.metrics:
        parts.append(Text(plain(training_text(snapshot))))
    # The role `prepare` has ended before the others begin.
    shown = [learner for learner in job.learners if learner.role not in BEFORE_ROLES]
    if len(shown) > 1:
        parts.append(Text(plain("  ".join(learner_text(learner) for learner in shown)), "dim"))
    if snapshot.trouble:
        parts.append(Text(plain(f"no answer, asking again: {snapshot.trouble}"), "yellow"))
    return Group(*parts)


def stage_state(stage: Stage, job: JobDetail) -> str:
    """Return the state that Airflow has, or `removed` for a task that had not ended when its job did: it does not
    run."""
    unfinished = stage.state not in ("success", "failed", *NOT_RUN)
    return "removed" if job.ended and unfinished else stage.state


def notes(job: JobSummary) -> list[str]:
    """Return what people asked and made Airflow say: to be known beside state and reason."""
    asked = [f"{item.kind} was asked for by {item.by} {ago(item.at)}, not answered yet" for item in job.requests]
    return [*asked, *([job.override] if job.override else [])]


def changes(previous: Snapshot | None, current: Snapshot) -> list[str]:
    """Return one line for each thing that is new, for a log file or a pipe."""
    stamp = current.at.strftime("%H:%M:%S")
    lines: list[str] = []
    if current.trouble:
        known = previous is not None and previous.trouble is not None
        return [] if known else [f"{stamp} no answer, asking again: {current.trouble}"]
    seen = len(previous.job.transitions) if previous is not None else 0
    for transition in current.job.transitions[seen:]:
        lines.append(f"{transition.at.astimezone(UTC):%H:%M:%S} {transition.state}: {transition.reason}")
    told = previous is not None and (previous.job.state, previous.job.reason) == (current.job.state, current.job.reason)
    if not told and len(current.job.transitions) <= seen:
        lines.append(f"{stamp} {current.job.state}: {current.job.reason}")
    known_asked = {asked.seq for asked in previous.job.requests} if previous is not None else set()
    for asked in current.job.requests:
        if asked.seq not in known_asked:
            lines.append(f"{stamp} {asked.by} asked to {asked.kind}")
    if current.job.override and (previous is None or previous.job.override != current.job.override):
        lines.append(f"{stamp} {current.job.override}")
    before = {stage.name: stage for stage in previous.stages} if previous is not None else {}
    for stage in current.stages:
        told_phase = _phase(before.get(stage.name))
        phase = None if current.job.ended and stage.ended_at is None else _phase(stage)
        if phase is not None and phase != told_phase:
            seconds = stage_time(stage, current.at) if stage.ended_at else ""
            took = f" after {seconds}" if seconds else ""
            lines.append(f"{stamp}   {stage.name}: {phase}{took}")
    if previous is None or _training_moved(previous, current):
        text = training_text(current)
        if text:
            lines.append(f"{stamp}   {text}")
    return lines


def _phase(stage: Stage | None) -> str | None:
    """Return the phase of a task. A task that has started runs, also while it is deferred or queued to wake up. Airflow
    gives a start to skipped tasks too."""
    if stage is None or stage.state in ("upstream_failed", "removed"):
        return None
    if stage.state in ("success", "failed", "skipped"):
        return stage.state
    return "running" if stage.started_at is not None else None


def _training_moved(previous: Snapshot, current: Snapshot) -> bool:
    """Return whether the training is an epoch further, or, where no epochs are reported, another tenth of the way."""
    old, new = progress_of(previous.job), progress_of(current.job)
    if new is None:
        return False
    if old is None or new.epoch != old.epoch or previous.checkpoints != current.checkpoints:
        return True
    if new.epoch is not None or not new.total:
        return False
    return (new.step or 0) * 10 // new.total != (old.step or 0) * 10 // new.total


def training_text(snapshot: Snapshot) -> str:
    """Return a line such as `epoch 3/10 step 120/400 loss 0.31 2 checkpoints 41 s left`."""
    progress, parts = progress_of(snapshot.job), []
    if progress is not None:
        for name, now, end in (("epoch", progress.epoch, progress.epochs), ("step", progress.step, progress.total)):
            if now is not None:
                parts.append(f"{name} {now}/{end}" if end else f"{name} {now}")
    parts += [f"{name} {number(value)}" for name, value in metrics_of(snapshot.job).items()]
    if snapshot.checkpoints:
        parts.append(f"{snapshot.checkpoints} checkpoint{'s' if snapshot.checkpoints > 1 else ''}")
    left = snapshot.seconds_left()
    if left is not None and not snapshot.job.ended and left >= 1:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def learner_text(learner: Learner) -> str:
    step = f" step {learner.progress.step}" if learner.progress and learner.progress.step is not None else ""
    return f"{learner.role} {learner.learner}: {learner.phase}{step}"


def stage_time(stage: Stage, now: datetime) -> str:
    if stage.started_at is None or stage.state in NOT_RUN:
        return ""
    return duration(((stage.ended_at or now) - stage.started_at).total_seconds())


def stage_note(stage: Stage) -> str:
    return f"try {stage.tries}" if stage.tries > 1 else ""


def last_metrics(client: Client, job: JobDetail) -> dict[str, float | None]:
    """Return the final values from MLflow, or the learners' newest values if it does not answer."""
    if not job.attempt:
        return {}
    try:
        found = client.metrics(job.id).last
    except UnavailableError:
        found = {}
    return {k: v for k, v in found.items() if not k.startswith("system/")} or dict(job.metrics)


def print_summary(console: Console, job: JobDetail, metrics: dict[str, float | None]) -> None:
    rows = summary(job, metrics)
    width = max(len(label) for label, _ in rows)
    _print(console, "")
    for label, text in rows:
        _print(console, f"{label:<{width}}  {text}", width + 2)


def summary(job: JobDetail, metrics: dict[str, float | None]) -> list[tuple[str, str]]:
    """Return the end of a job, each fact with its label: verdict, metrics, model, addresses."""
    rows: list[tuple[str, str]] = [("job", job.id), ("verdict", f"{job.state}: {job.reason}")]
    seconds = (job.updated_at - job.created_at).total_seconds()
    rows.append(("time", duration(seconds)))
    if job.verdict:
        rows += [(key, text) for key, text in evidence(job.verdict)]
    if job.attempt > 1:
        rows.append(("attempts", str(job.attempt)))
    if job.override:
        rows.append(("but", job.override))
    if metrics:
        rows.append(("metrics", "  ".join(f"{name}={number(value)}" for name, value in sorted(metrics.items()))))
    if job.model is not None:
        alias = f" @{job.model.alias}" if job.model.alias else ""
        rows.append(("model", f"{job.model.name} version {job.model.version}{alias}"))
    return [*rows, *urls(job)]


def urls(job: JobDetail) -> list[tuple[str, str]]:
    known = (
        ("Airflow", job.links.airflow_run),
        ("MLflow", job.links.mlflow_run),
        ("model page", job.model.url if job.model else None),
        ("job page", job.links.page),
    )
    return [(label, url) for label, url in known if url]


def evidence(verdict: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the verdict's evidence, short: plain values only."""
    rows = []
    for key, value in verdict.items():
        value = _words(value)
        if value not in (None, "", [], {}) and key not in ("state", "reason"):
            rows.append((key.replace("_", " "), str(value)[:200]))
    return rows


def _words(value: object) -> object:
    """Return a document of any depth as words, without the brackets, quotes and Nones of Python."""
    if isinstance(value, dict):
        parts = []
        for key, inner in value.items():
            name, words = f"learner {key}" if str(key).isdigit() else key, _words(inner)
            if words not in (None, ""):
                parts.append(f"{name} ({words})" if isinstance(inner, dict) else f"{name}: {words}")
        return ", ".join(parts)
    if isinstance(value, list | tuple):
        return ", ".join(str(_words(item)) for item in value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
