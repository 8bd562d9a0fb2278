"""Commands that read jobs: list, show, logs, metrics, download, open."""

from __future__ import annotations

import webbrowser
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from updraft.cli.console import (
    JobArgument,
    JsonOption,
    ago,
    as_json_text,
    handled,
    number,
    out,
    print_json,
    print_table,
    say,
    size,
    state_style,
    warn,
)
from updraft.cli.jobs import FollowOption, follow_to_end
from updraft.exceptions import NotFoundError, RefusedError, UpdraftError
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.terminal import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from updraft.client import Client
    from updraft.schemas import JobDetail, JobSize, JobSummary, LogLine, MetricPoint, Metrics, Progress, Stage

SPARK_COLUMNS = 24
BAR = 24  # characters of the longest bar
METRICS_PER_REQUEST = 100  # the route takes at most 200 names, and URLs have a length limit


def register(app: typer.Typer) -> None:
    app.command("list")(list_jobs)
    app.command()(show)
    app.command()(logs)
    app.command()(metrics)
    app.command()(download)
    app.command("open")(open_pages)


@handled
def list_jobs(
    state: Annotated[str | None, typer.Option("--state", help="Only jobs in this state, such as QUEUED.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many jobs, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    from updraft.client import Client

    with Client() as client:
        jobs = client.jobs(state=state.upper() if state else None, name=name, limit=limit)
    if as_json:
        print_json({"jobs": [job.model_dump(mode="json") for job in jobs]})
        return
    if not jobs:
        say("no jobs")
        return
    from rich.text import Text

    from updraft.cli import live

    rows = [
        (
            job.id,
            Text(job.state, state_style(job.state)),
            attempt_text(job),
            progress_text(job.progress),
            f"{job.model.name} v{job.model.version}" if job.model else "",
            ago(job.created_at),
            "; ".join([job.reason, *live.notes(job)]),
        )
        for job in jobs
    ]
    print_table(("job", "state", "attempt", "progress", "model", "submitted", "reason"), rows, stretch="reason")


@handled
def show(job: JobArgument, follow: FollowOption = False, as_json: JsonOption = False) -> None:
    """Show one job: state and reason, stages, learners, verdict, model, addresses; its last lines if it FAILED."""
    from updraft.cli import live
    from updraft.client import Client

    with Client() as client:
        if follow:
            follow_to_end(client, job, as_json=as_json)
            return
        detail = client.job(job)
        stages = client.stages(detail)
        if as_json:
            stages_json = [stage.model_dump(mode="json") for stage in stages]
            print_json({**detail.model_dump(mode="json"), "stages": stages_json})
            return
        _print_job(detail, stages)
        live.print_last_words(client, detail, out())


def _print_job(job: JobDetail, stages: list[Stage]) -> None:
    from updraft.cli import live

    out().print(live.render(live.Snapshot(job, tuple(stages))))
    if job.strategy is not None:
        say(job.strategy)
    if job.queue is not None and job.queue.place is not None:
        say(f"place {job.queue.place} in the queue: {job.queue.reason}")
    history = [
        (f"{transition.at.astimezone():%Y-%m-%d %H:%M:%S}", transition.state, transition.reason)
        for transition in job.transitions
    ]
    print_table(("since", "state", "reason"), history, stretch="reason")
    if job.sizes:
        print_sizes(job.sizes)
    if job.gradient_noise is not None:
        say(f"The gradient noise scale is {job.gradient_noise:,.1f} samples.")
    for remark in job.size_remarks:
        say(remark)
    if job.ended:
        live.print_summary(out(), job, dict(job.metrics))
    else:
        for label, url in live.urls(job):
            say(f"{label}: {url}")


def print_sizes(sizes: Sequence[JobSize]) -> None:
    """Print the sizes that an elastic job may have, with a bar for how fast each is."""
    most = max(size.speedup for size in sizes)
    rows = [
        (
            f"{size.learners}{' (now)' if size.current else ''}",
            "" if size.batch is None else str(size.batch),
            "" if size.step_seconds is None else f"{size.step_seconds:.3g} s",
            f"{size.speedup:.2f}",
            "█" * max(1, round(BAR * size.speedup / most)),
        )
        for size in sizes
    ]
    print_table(("learners", "batch", "a step took", "times as fast", ""), rows)


@handled
def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    learner: Annotated[
        int | None, typer.Option("--learner", "-l", min=1, help="Which learner, from 1; default: the first.")
    ] = None,
    role: Annotated[
        str, typer.Option("--role", help="prepare, build, train, evaluate, export, champion-N or compare-N.")
    ] = TRAIN_ROLE,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Which launch; default: the latest.")] = None,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Begin after the line of this number.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="The last so many lines; with --after, the first.")
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Print each line's time before it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a learner wrote, without colours and control characters; with --json one document per line."""
    import sys

    from updraft.cli.console import err
    from updraft.client import Client

    with Client() as client:
        where: dict[str, Any] = {"learner": learner, "role": role, "attempt": attempt}
        if attempt is None:
            where["attempt"], told = _attempt_to_read(client, job, role, learner, follow)
            if told:
                err().print(told, markup=False)
        lines: Iterable[LogLine]
        if limit is not None and after is None:
            last = client.last_lines(job, limit, **where)
            follows: dict[str, Any] = {"follow": True, "after": last[-1].n if last else 0}
            lines = chain(last, client.logs(job, **where, **follows) if follow else ())
        else:
            lines = client.logs(job, **where, after=after or 0, limit=limit, follow=follow)
        for line in lines:
            shown = f"{line.t} {line.line}" if timestamps else line.line
            sys.stdout.write((as_json_text(line) if as_json else plain(shown)) + "\n")
            if follow:
                sys.stdout.flush()


def _attempt_to_read(client: Client, job: str, role: str, learner: int | None, follow: bool) -> tuple[int | None, str]:
    """Choose the attempt whose log is shown if none is named; return its number, and a sentence about the others.

    It is the newest attempt with lines. None: the newest attempt, whatever it has; a followed log begins with it and
    continues with later ones.
    """
    try:
        numbers = [item.number for item in client.attempts(job).attempts if item.role == role]
        if len(numbers) < 2:
            return None, ""
        chosen, said = numbers[-1], f"attempt {numbers[-1]}"
        if not follow:
            full = (n for n in reversed(numbers) if client.last_lines(job, 1, learner=learner, role=role, attempt=n))
            chosen = next(full, numbers[-1])
    except UpdraftError:  # the request for the log reports the error
        return None, ""
    if chosen != numbers[-1]:
        said = f"attempt {numbers[-1]} has written nothing; this is attempt {chosen}"
    others = " or ".join(str(n) for n in numbers[:-1] if n != chosen)
    return None if follow else chosen, f"{said}; --attempt {others} shows an earlier one's log" if others else said


@handled
def metrics(
    job: JobArgument,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="Only this metric, drawn; may be given again.")
    ] = None,
    system: Annotated[bool, typer.Option("--system", help="Also the system's metrics.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a job's metrics: a table with their course, or a plot of those named with --key."""
    from updraft.client import Client

    with Client() as client:
        found = client.metrics(job)
        names = key or [name for name in sorted(found.last) if system or not name.startswith("system/")]
        unknown = [name for name in names if name not in found.last]
        if unknown:
            known = ", ".join(sorted(found.last)) or "none yet"
            raise NotFoundError(f"job {job} has no metric {', '.join(unknown)}; its metrics are: {known}")
        history: dict[str, tuple[MetricPoint, ...]] = {}
        for start in range(0, len(names), METRICS_PER_REQUEST):
            history |= client.metrics(job, *names[start : start + METRICS_PER_REQUEST]).history
        found = found.model_copy(update={"history": history})
    if as_json:
        print_json(found)
    elif not names:
        say("no metrics yet")
    elif key:
        _plot(found, names)
    else:
        _metrics_table(found, names)


def _metrics_table(found: Metrics, names: list[str]) -> None:
    from updraft.cli.plot import sparkline

    rows = []
    for name in names:
        values = [point.value for point in found.history.get(name, ())]
        finite = [value for value in values if value is not None]
        low, high = (number(min(finite)), number(max(finite))) if finite else ("", "")
        rows.append((name, number(found.last[name]), low, high, str(len(values)), sparkline(values, SPARK_COLUMNS)))
    print_table(("metric", "last", "min", "max", "points", "course"), rows)


def _plot(found: Metrics, names: list[str]) -> None:
    from updraft.cli.plot import plot

    for name in names:
        points = found.history.get(name, ())
        say(f"{name}  last {number(found.last[name])}", "bold")
        say(plot([p.step for p in points], [p.value for p in points]) or "no finite value")


@handled
def download(
    job: JobArgument,
    kind: Annotated[
        str, typer.Argument(metavar="WHAT", help="model, results or checkpoint:NAME (checkpoint:latest is the newest).")
    ] = "model",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write to; default: ./JOB-WHAT.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that has files already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Download a job's model, results or one checkpoint."""
    from updraft.client import Client

    folder = output or Path(f"{job}-{kind.replace(':', '-')}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise RefusedError(f"{folder} is not an empty folder; name another with --output, or add --force")
    with Client() as client:
        if kind == "checkpoint:latest":
            kind = f"checkpoint:{_latest_checkpoint(client.checkpoints(job).checkpoints, job)}"
        written = client.download(job, kind, folder)
        if not written:
            results, found = client.files(job, "results").files, client.checkpoints(job).checkpoints
            raise NotFoundError(
                f"job {job} has no {kind} to download; what it stored: {len(results)} files of results "
                f"(`updraft download {job} results`) and {len(found)} checkpoints (`checkpoint:latest`)"
            )
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in written]})
    else:
        total = sum(path.stat().st_size for path in written)
        say(f"{len(written)} file{'s' if len(written) > 1 else ''}, {size(total)}, in {folder}")


def _latest_checkpoint(found: Any, job: str) -> str:
    if not found:
        raise NotFoundError(f"job {job} has no checkpoint")
    return str(max(found, key=lambda c: (c.step or 0, c.created_at or datetime.min)).name)


@handled
def open_pages(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Id of a job; none: the platform's pages.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Open the pages of a job, or of the platform, in a browser; print them where there is none."""
    from updraft.cli import live
    from updraft.client import Client

    with Client() as client:
        airflow_url = url = client.http.connection.airflow_url
        pages = [("Airflow", url), ("jobs", f"{url}/updraft/jobs")] if job is None else live.urls(client.job(job))
    if as_json:
        print_json(dict(pages))
    else:
        show_pages(pages, airflow_url, webbrowser.get)


def show_pages(
    pages: Sequence[tuple[str, str]], airflow_url: str, find_browser: Callable[[], webbrowser.BaseBrowser]
) -> None:
    """Print the pages' addresses and the log-ins, and open the pages, unless `find_browser` raises webbrowser.Error."""
    from updraft.stack.display import show_logins

    for label, url in pages:
        say(f"{label}: {url}")
    show_logins(airflow_url)
    try:
        browser = find_browser()
    except webbrowser.Error:
        warn("no browser was found; open the addresses above")
        return
    for _, url in pages:
        browser.open(url)


def attempt_text(job: JobSummary) -> str:
    """Return the attempt as `2`, or as `2: infrastructure (pod.evicted)` while the job recovers from a loss or ended by
    one."""
    if not job.attempt:
        return ""
    if job.loss is None or job.state not in ("RECOVERING", "FAILED"):
        return str(job.attempt)
    return f"{job.loss.attempt}: {job.loss.cause}" + (f" ({job.loss.label})" if job.loss.label else "")


def progress_text(progress: Progress | None) -> str:
    if progress is None:
        return ""
    for now, end in ((progress.step, progress.total), (progress.epoch, progress.epochs)):
        if now is not None and end:
            return f"{100 * now // end} %"
    return f"step {progress.step}" if progress.step is not None else ""
