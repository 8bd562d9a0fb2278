"""The command that compares policies for elastic jobs in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from updraft.cli.console import JsonOption, err, handled, print_json, print_table, say

if TYPE_CHECKING:
    from updraft.simulation import Outcome, Run, TrainingJob


def register(app: typer.Typer) -> None:
    app.command()(simulate)


@handled
def simulate(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="NAME", help="Compare this one; repeatable. Default: all.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="Devices of the pool.")] = 40,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs of a trace that is made.")] = 200,
    per_hour: Annotated[float, typer.Option(min=0.001, help="Jobs that arrive in an hour, on average.")] = 60.0,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="How jobs scale; repeatable. Default: all kinds in equal parts."),
    ] = None,
    batch: Annotated[
        Literal["smallest", "largest", "random"],
        typer.Option(help="The batch, of the job's range, where the policy does not choose it."),
    ] = "random",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the jobs from a CSV file: arrives, seconds, learners.")
    ] = None,
    pause: Annotated[
        float, typer.Option(min=0, help="Seconds in which a job stands still at a start or resize.")
    ] = 30.0,
    period: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Decide so often; default: as each policy does.")
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Turn jobs away that find no room, in policies that can.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Another number makes another trace.")] = 0,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a page with pictures: index.html.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare policies that share a pool of devices among elastic jobs, in virtual time, without a platform."""
    _needs("numpy")
    if report is not None:
        _needs("matplotlib")
    from updraft.simulation.catalogue import POLICIES
    from updraft.simulation.outcome import Outcome
    from updraft.simulation.report import COLUMNS, rows, write
    from updraft.simulation.traces import describe

    names = _known("policy", policy or list(POLICIES), list(POLICIES))
    made = _jobs(trace, jobs, per_hour, kind, batch, seed)
    _fits(made, devices)
    runs = {name: _run(name, made, devices, pause, period, drop) for name in names}
    outcomes: dict[str, Outcome] = {name: Outcome.of(run) for name, run in runs.items()}
    facts = [*describe(made), ("devices", f"{devices:,}"), ("pause", f"{pause:g} s")]
    path = write(report, runs, facts) if report is not None else None
    if as_json:
        print_json({"jobs": len(made), "devices": devices, "policies": {n: _figures(o) for n, o in outcomes.items()}})
        return
    say("; ".join(f"{name}: {value}" for name, value in facts))
    print_table(COLUMNS, rows(outcomes))
    if path is not None:
        say(f"The report is {path}")


def _jobs(
    trace: Path | None, jobs: int, per_hour: float, kind: list[str] | None, batch: Any, seed: int
) -> tuple[TrainingJob, ...]:
    from updraft.simulation.traces import KINDS, MIX, generate, read

    if trace is not None:
        return read(trace)
    return generate(jobs, per_hour, mix=_known("kind", kind or list(MIX), list(KINDS)), batch=batch, seed=seed)


def _run(name: str, jobs: tuple[TrainingJob, ...], devices: int, pause: float, period: float | None, drop: bool) -> Run:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from updraft.simulation import simulate as run
    from updraft.simulation.catalogue import POLICIES

    chosen = POLICIES[name]
    make = chosen.drops if drop and chosen.drops is not None else chosen.make
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err(), transient=True, disable=not err().is_terminal) as progress:
        task = progress.add_task(name, total=len(jobs))
        return run(
            jobs, devices, make(period), pause_seconds=pause,
            progress=lambda over: progress.update(task, completed=over),
        )  # fmt: skip


def _figures(outcome: Outcome) -> dict[str, float | int]:
    from updraft.simulation.outcome import percentile

    return {
        "completed": outcome.completed,
        "dropped": outcome.dropped,
        "mean_seconds": outcome.mean,
        "median_seconds": percentile(outcome.completion, 0.5),
        "p95_seconds": percentile(outcome.completion, 0.95),
        "used": outcome.used,
        "waiting": outcome.waiting,
        "resizes": outcome.resizes,
        "ended_seconds": outcome.ended,
    }


def _known(what: str, given: list[str], known: list[str]) -> list[str]:
    from difflib import get_close_matches

    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise typer.BadParameter(
                f"{name!r} is no {what}; {meant}there are {', '.join(known)}", param_hint=f"--{what}"
            )
    return list(dict.fromkeys(given))


def _fits(jobs: tuple[TrainingJob, ...], devices: int) -> None:
    """Refuse a trace with a job that never has room: policies of fixed sizes would wait for ever."""
    largest = max(jobs, key=lambda job: job.fixed.learners)
    if largest.fixed.learners > devices:
        raise typer.BadParameter(
            f"{devices} are too few: {largest.job_id} asks for {largest.fixed.learners}", param_hint="--devices"
        )


def _needs(module: str) -> None:
    from importlib.util import find_spec

    from updraft.exceptions import RefusedError

    if find_spec(module) is None:
        raise RefusedError(f"this needs {module}, which is not installed here: install it, or updraft[simulate]")
