"""Commands for halts and recovery: halt, resume, attempts, checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from updraft.cli.console import (
    JobArgument,
    JsonOption,
    ago,
    duration,
    handled,
    number,
    print_json,
    print_table,
    say,
    size,
)
from updraft.exceptions import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from updraft.schemas import Attempt, Checkpoint

TEXTS = ("command", "env")  # these stay text: in `command=true`, `true` is a command
ASKED = ("halted", "cancelled")  # ended by a user: these are not in the failure catalogue
WAIT_SECONDS = 600.0

WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until the job has done it.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0, help="With --wait: leave with 4 after so many seconds; the request stays.")
]


def register(app: typer.Typer) -> None:
    app.command()(cancel)
    app.command()(halt)
    app.command()(resume)
    app.command()(attempts)
    app.command()(checkpoints)


@handled
def cancel(
    job: JobArgument, wait: WaitOption = False, timeout: TimeoutOption = WAIT_SECONDS, as_json: JsonOption = False
) -> None:
    """Ask a job to end as CANCELLED. Its checkpoints and logs stay."""
    from updraft.client import Client

    with Client() as client:
        _told(job, client.cancel(job, wait=wait, timeout_seconds=timeout), as_json=as_json)


@handled
def halt(
    job: JobArgument, wait: WaitOption = False, timeout: TimeoutOption = WAIT_SECONDS, as_json: JsonOption = False
) -> None:
    """Ask a job to save a checkpoint and stop. What it held is free for others; `updraft resume` lets it go on."""
    from updraft.client import Client

    with Client() as client:
        _told(job, client.halt(job, wait=wait, timeout_seconds=timeout), as_json=as_json)


@handled
def resume(
    job: JobArgument,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of command, params, env, resources, budget, checkpoints, failures or priority, such "
            "as resources.memory=4GiB; null takes it back to its default; may be given again.",
        ),
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option("--params", metavar="NAME=VALUE", help="Change a parameter, such as lr=0.01; may be given again."),
    ] = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = WAIT_SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Resume a halted job from its checkpoint, unchanged or with changes."""
    from updraft.client import Client

    changes = read_changes(settings or (), params or ())
    with Client() as client:
        _told(job, client.resume(job, changes, wait=wait, timeout_seconds=timeout), as_json=as_json)


def _told(job: str, message: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": job, "message": message})
    else:
        say(f"{job}: {message}")


def read_changes(settings: Sequence[str], params: Sequence[str] = ()) -> dict[str, Any]:
    """Parse assignments such as `["resources.memory=4GiB"]` and `["lr=0.01"]` into a partial manifest. A value that is
    JSON is read as JSON, all others are text; so are commands and environment variables. Raises DataError."""
    changes: dict[str, Any] = {}
    for item, is_param in [*((item, False) for item in settings), *((item, True) for item in params)]:
        path, equals, text = item.partition("=")
        path = path.strip()
        names = ["params", path] if is_param else path.split(".", 2 if path.startswith("checkpoints.") else 1)
        if not equals or not all(names):
            if is_param:
                raise DataError(f"--params {item!r}: write NAME=VALUE, such as lr=0.01")
            raise DataError(f"--set {item!r}: write FIELD=VALUE, such as resources.memory=4GiB")
        option = "--params" if is_param else "--set"
        node = changes
        for name in names[:-1]:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise DataError(f"{option} {path!r}: {name} is given as a whole already")
        if names[-1] in node:
            raise DataError(f"{option} {path!r}: is given twice")
        node[names[-1]] = _value(names[0], text)
    return changes


def _value(section: str, text: str) -> object:
    if section in TEXTS and text != "null":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


@handled
def attempts(job: JobArgument, as_json: JsonOption = False) -> None:
    """List a job's launches: how each began and ended, and what the platform did about it."""
    from updraft.client import Client

    with Client() as client:
        found = client.attempts(job)
    if as_json:
        print_json(found)
    elif not found.attempts:
        say("nothing was launched yet")
    else:
        headings = ("attempt", "role", "learners", "began", "took", "from", "steps", "end", "what was done", "reason")
        print_table(headings, [_attempt_row(item) for item in found.attempts], stretch="reason")


def _attempt_row(item: Attempt) -> tuple[str, ...]:
    named = [name for name in (item.label, item.code) if name]
    label = f" ({', '.join(named)})" if named and item.cause not in ASKED else ""
    end = "runs" if item.cause is None else item.cause + label
    steps = "" if item.first_step is None else f"{item.first_step} to {item.last_step}"
    repeats = item.resume.repeats if item.resume is not None else None
    return (
        str(item.number),
        item.role,
        str(item.learners) + (f", batch {item.batch}" if item.batch is not None else ""),
        ago(item.started_at),
        duration(_seconds(item.started_at, item.ended_at)),
        "" if item.resume is None else item.resume.checkpoint or "the beginning",
        steps + (f", {repeats} repeated" if repeats else ""),
        end,
        item.done,
        item.reason or "",
    )


def _seconds(since: datetime, until: datetime | None) -> float:
    from datetime import UTC, datetime

    return ((until or datetime.now(UTC)) - since).total_seconds()


@handled
def checkpoints(
    job: JobArgument,
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that were deleted or quarantined, with the reason.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List a job's complete checkpoints."""
    from updraft.client import Client

    with Client() as client:
        found = client.checkpoints(job, all=True)
    kept = [item for item in found.checkpoints if all_states or item.state == "kept"]
    gone = [item.state for item in found.checkpoints if item not in kept]
    if as_json:
        print_json({"checkpoints": [item.model_dump(mode="json") for item in kept]})
        return
    if kept:
        headings = ("checkpoint", "step", "attempt", "size", "made", "metrics", *(("state",) if all_states else ()))
        print_table(headings, [_checkpoint_row(item, all_states) for item in kept], stretch="metrics")
    elif not gone:
        say("no checkpoints")
    if gone:
        counts = ", ".join(f"{gone.count(state)} {state}" for state in ("deleted", "quarantined") if state in gone)
        say(f"not kept: {counts}; show them with --all")


def _checkpoint_row(item: Checkpoint, all_states: bool) -> tuple[str, ...]:
    state = item.state + (f": {item.reason}" if item.reason else "")
    return (
        item.name,
        "" if item.step is None else str(item.step),
        str(item.attempt or ""),
        size(item.size_bytes),
        ago(item.created_at),
        "  ".join(f"{name}={number(value)}" for name, value in item.metrics.items()),
        *((state,) if all_states else ()),
    )
