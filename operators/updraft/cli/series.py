"""Commands for models over time: series, schedules, roll-back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from updraft.cli.console import JsonOption, ago, handled, out, print_json, print_table, say, state_style

if TYPE_CHECKING:
    from updraft.schemas import SeriesDetail, SeriesRun

DIGEST_CHARACTERS = 8
SHOWN_EVENTS = 10

TenantOption = Annotated[str, typer.Option("--tenant", help="Tenant of the series.")]


def register(app: typer.Typer) -> None:
    app.command()(series)
    app.command()(schedules)
    app.command("roll-back")(roll_back)


@handled
def series(
    name: Annotated[str | None, typer.Argument(help="Name of a series; without it, all series are listed.")] = None,
    tenant: TenantOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show the jobs of one manifest name as a series: data, code, models, champion, and what happened to them."""
    from updraft.client import Client

    with Client() as client:
        if name is not None:
            found = client.series_of(name, tenant=tenant)
            print_json(found) if as_json else _print_series(found)
            return
        listed = client.series()
    if as_json:
        print_json(listed)
    elif not listed.series:
        say("no series yet; a job's manifest name is its series")
    else:
        rows = [
            (each.name, each.tenant, each.jobs, _version(each.model, each.champion), ago(each.last_submitted_at))
            for each in listed.series
        ]
        print_table(("series", "tenant", "jobs", "champion", "last job"), rows)


@handled
def schedules(
    pause: Annotated[str | None, typer.Option("--pause", metavar="SERIES", help="Let it start no jobs.")] = None,
    unpause: Annotated[str | None, typer.Option("--unpause", metavar="SERIES", help="Let it start jobs again.")] = None,
    tenant: TenantOption = "default",
    as_json: JsonOption = False,
) -> None:
    """List the schedules of manifests in jobs/: what they wait for, when they may fire next, and when they fired."""
    from updraft.client import Client

    with Client() as client:
        for name, paused in ((pause, True), (unpause, False)):
            if name is not None:
                client.pause_schedule(name, paused=paused, tenant=tenant)
        listed = client.schedules()
    if as_json:
        print_json(listed)
    elif not listed.schedules:
        say("no schedules; a manifest in jobs/ with the section schedule has one")
    else:
        rows = [
            (
                each.series,
                each.tenant,
                each.rule.get("cron") or "",
                f"{each.next_at.astimezone():%Y-%m-%d %H:%M}" if each.next_at else "",
                ago(each.fired_at),
                each.reason,
            )
            for each in listed.schedules
        ]
        print_table(("series", "tenant", "cron", "next", "fired", "reason"), rows, stretch="reason")


@handled
def roll_back(
    name: Annotated[str, typer.Argument(help="Name of the series.")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept with the series.")],
    version: Annotated[
        str | None, typer.Option("--to", help="Version that becomes the champion; default: the champion before.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Registered model; default: what the series registered last.")
    ] = None,
    tenant: TenantOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Make an earlier version of a series' model the champion again. Nothing is deleted."""
    from updraft.client import Client

    with Client() as client:
        done = client.roll_back(name, reason, version=version, model=model, tenant=tenant)
    if as_json:
        print_json(done)
    else:
        say(done.message)


def _print_series(found: SeriesDetail) -> None:
    from rich.text import Text

    champion = _version(found.model, found.champion) or "none"
    before = f"; before it: version {found.previous}" if found.previous else ""
    say(f"{found.name}: {found.jobs} job{'s' * (found.jobs != 1)}; champion: {champion}{before}")
    rows = [
        (
            run.id,
            Text(run.state, state_style(run.state)),
            (run.code or "")[:DIGEST_CHARACTERS],
            " ".join(each.tree[:DIGEST_CHARACTERS] for each in run.data),
            _outcome(run),
            ago(run.submitted_at),
            run.reason,
        )
        for run in found.runs
    ]
    print_table(("job", "state", "code", "data", "model", "submitted", "reason"), rows, stretch="reason")
    changes = [event for event in found.events if event.kind == "rolled back"][:SHOWN_EVENTS]
    if changes:
        out().print()
        print_table(
            ("roll-back", "to version", "from", "by", "reason"),
            [(ago(e.at), e.version or "", e.over or "", e.by or "", e.reason) for e in changes],
            stretch="reason",
        )


def _version(model: str | None, version: str | None) -> str:
    return f"{model} v{version}" if model and version else ""


def _outcome(run: SeriesRun) -> str:
    return f"v{run.version} {run.outcome}" if run.version and run.outcome else ""
