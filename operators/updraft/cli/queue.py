"""Commands for the queue: what waits for room in the cluster, why, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from updraft.cli.console import JobArgument, JsonOption, ago, duration, handled, print_json, print_table, say

if TYPE_CHECKING:
    from updraft.allocation import Plan, Resized
    from updraft.allocation.document import StateDocument
    from updraft.schemas import QueueEntry, SizeChange

SHOWN = 10


def register(app: typer.Typer) -> None:
    app.command()(queue)
    app.command()(sizes)
    app.command()(why)
    app.command()(prioritize)
    app.command()(scale)
    app.command()(profile)
    app.command()(plan)


@handled
def queue(
    state: Annotated[bool, typer.Option("--state", help="Print what `updraft plan` reads, as JSON.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the jobs that have room in the cluster, and those that wait for it, in their order."""
    from updraft.client import Client

    with Client() as client:
        if state:
            print_json(client.queue_state())
            return
        found = client.queue()
    if as_json:
        print_json(found)
        return
    if not found.running and not found.waiting:
        say("no job has room in the cluster, and none waits")
        return
    several = len({each.tenant for each in (*found.running, *found.waiting)}) > 1
    rows = [("", *_facts(each, several), ago(each.granted_at), "", each.reason) for each in found.running]
    rows += [
        (str(each.place or "?"), *_facts(each, several), ago(each.requested_at), _starts(each), each.reason)
        for each in found.waiting
    ]
    tenant = ("tenant",) if several else ()
    print_table(("place", "job", *tenant, "state", "priority", "learners", "since", "starts", "reason"), rows)
    if (off := found.estimates) is not None and found.waiting:
        jobs = "the last job was" if off.jobs == 1 else f"the last {off.jobs} jobs were"
        most = f", and at most {duration(off.largest_seconds)}" if off.jobs > 1 else ""
        say(f"Estimates of {jobs} off by {duration(off.median_seconds)}{' (median)' if off.jobs > 1 else ''}{most}.")


@handled
def sizes(
    rounds: Annotated[int, typer.Option("--rounds", "-n", min=1, max=100, help="How many of the newest.")] = SHOWN,
    as_json: JsonOption = False,
) -> None:
    """Show how the sizes of elastic jobs changed, why, and what that brought: the newest decision last."""
    from updraft.client import Client

    with Client() as client:
        found = client.sizes().rounds[:rounds]
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    if not found:
        say("no elastic job has got another size yet")
    for each in reversed(found):
        say(f"Round {each.round}, {each.at.astimezone():%Y-%m-%d %H:%M:%S}")
        print_table(
            ("job", "learners", "batch", "expected", "measured", "pause", "reason"),
            [_change(change) for change in each.changes],
            stretch="reason",
        )


def _change(change: SizeChange) -> tuple[str, ...]:
    arrow = f"{change.before} → {change.after}" if change.before else f"starts with {change.after}"
    batch = "" if change.after_batch is None else str(change.after_batch)
    if change.before_batch not in (None, change.after_batch):
        batch = f"{change.before_batch} → {batch}"
    measured = "" if change.gained is None else f"x {change.gained:.2f}"
    if change.gained is None and change.before:
        measured = "waits" if change.waits else "no"
    expected = "" if change.expected is None else f"x {change.expected:.2f}"
    pause = "" if change.pause_seconds is None else duration(change.pause_seconds)
    return change.job, arrow, batch, expected, measured, pause, change.reason


@handled
def why(job: JobArgument, as_json: JsonOption = False) -> None:
    """Say why a job waits: its place, what it needs, and which jobs are before it."""
    from updraft.client import Client

    with Client() as client:
        detail, found = client.job(job), client.queue()
    mine = next((each for each in found.waiting if each.job == job), None)
    before = [each for each in found.waiting if mine and each.place and mine.place and each.place < mine.place]
    if as_json:
        place = None if mine is None else mine.place
        reason = detail.reason if mine is None else mine.reason
        print_json(
            {"job": job, "state": detail.state, "place": place, "reason": reason, "before": [e.job for e in before]}
        )
        return
    if mine is None:
        holds = next((each for each in found.running if each.job == job), None)
        say(f"{detail.id} is {detail.state}: {detail.reason}")
        if holds is not None and holds.granted_at is not None:
            say(f"It got room for {holds.learners} x {holds.each} {ago(holds.granted_at)}.")
        return
    say(f"{mine.job} joined the queue {ago(mine.requested_at)}, with the priority {mine.priority}: {mine.reason}.")
    starts = "When it starts is unknown: too few jobs of the series before it have completed."
    if mine.starts_at is not None:
        starts = f"It probably starts {_starts(mine)}, if the others take as long as the last jobs of their series."
    say(starts)
    _print("Before it in the queue:", before)
    _print("What has room now:", list(found.running))


@handled
def prioritize(
    job: JobArgument,
    priority: Annotated[str, typer.Argument(help="low, normal or high.", metavar="PRIORITY")],
    as_json: JsonOption = False,
) -> None:
    """Give a job another priority; a job of a higher one starts before others that came up to some hours earlier."""
    from updraft.client import Client

    with Client() as client:
        message = client.prioritize(job, priority)
    print_json({"job": job, "message": message}) if as_json else say(message)


@handled
def scale(
    job: JobArgument,
    learners: Annotated[str, typer.Argument(help="A number, or auto: the platform chooses again.", metavar="N|auto")],
    as_json: JsonOption = False,
) -> None:
    """Give an elastic job a number of learners, which it keeps until you say auto. While it is being resized, this is
    refused: retry then."""
    from updraft.client import Client

    number = _learners(learners)
    with Client() as client:
        message = client.scale(job, number)
    print_json({"job": job, "learners": number, "message": message}) if as_json else say(message)


def _learners(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise typer.BadParameter(f"{text!r} is neither a number above 0 nor auto", param_hint="N|auto")
    return int(text)


@handled
def profile(
    job: JobArgument,
    least: Annotated[
        int | None, typer.Option("--min", min=1, help="Fewest learners; by default, as it allows.")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Most learners; by default, as it allows.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast an elastic job is with each number of learners: give it the most, and then fewer and fewer. It
    trains on meanwhile. In the end the platform chooses its size again, with what was measured."""
    from updraft.cli.profiling import measured_sizes
    from updraft.client import Client

    with Client() as client:
        found = measured_sizes(client, job, least, most, say=(lambda text: None) if as_json else say)
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    rows = [
        (str(each.learners), f"{1000 * each.step_seconds:.1f} ms", f"{each.speedup:.2f}")
        for each in found
        if each.step_seconds is not None
    ]
    print_table(("learners", "step", "times as fast"), rows)


@handled
def plan(
    state: Annotated[Path, typer.Argument(metavar="FILE", help="As `updraft queue --state` prints it.", exists=True)],
    explain: Annotated[str | None, typer.Option("--explain", metavar="JOB", help="Say which rule decided.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decide about a queue that a file describes, without a platform: which jobs start, which wait and why, which give
    their room back, and which elastic jobs are resized."""
    from dataclasses import asdict

    from pydantic import ValidationError

    from updraft.allocation.document import StateDocument
    from updraft.exceptions import RefusedError

    try:
        found = StateDocument.model_validate_json(state.read_bytes())
    except ValidationError as exc:
        lines = [f"{'.'.join(map(str, each['loc'])) or 'the document'}: {each['msg']}" for each in exc.errors()]
        more = f"\nand {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        raise RefusedError(f"{state} is not a state of the queue:\n" + "\n".join(lines[:SHOWN]) + more) from None
    try:
        decided = found.decide()
    except ImportError:
        raise RefusedError(
            f"{state} has elastic jobs; install what sizes need: pip install 'updraft[simulate]'"
        ) from None
    if explain is not None:
        _explain(found, decided, explain, as_json)
        return
    if as_json:
        print_json(asdict(decided))
        return
    sized = {each.job_id: each for each in decided.resized}
    rows = [(job, "starts", "", _passes(decided, job) or _size(sized.get(job))) for job in decided.granted]
    rows += [(each.job_id, "waits", str(each.place), each.reason) for each in decided.waiting]
    rows += [(each.job_id, "never starts", "", each.reason) for each in decided.impossible]
    rows += [(each.job_id, "gives its room back", "", each.reason) for each in decided.reclaimed]
    rows += [(job, "is resized", "", each.reason) for job, each in sized.items() if job not in decided.granted]
    print_table(("job", "decision", "place", "reason"), rows) if rows else say("no job is in the queue")


def _explain(state: StateDocument, decided: Plan, job: str, as_json: bool) -> None:
    """Print the decision about one job and the rule behind it."""
    from updraft.exceptions import RefusedError

    mine = next((each for each in (*state.queue, *state.running) if each.job == job), None)
    if mine is None:
        raise RefusedError(f"{job}: is neither in the queue nor running; name a job of the file")
    shares, limits = state.shares(), state.tenants.get(mine.tenant)
    decision, reason, rule = _decided(decided, job, getattr(mine, "behind", None))
    used, quota = shares.used(mine.tenant), dict(limits.quota) if limits else {}
    tenants = sorted({each.tenant for each in (*state.queue, *state.running)}, key=shares.claim)
    claims = {tenant: round(shares.claim(tenant), 6) for tenant in tenants}
    if as_json:
        facts = {"tenant": mine.tenant, "uses": used, "quota": quota, "claims": claims}
        print_json({"job": job, "decision": decision, "reason": reason, "rule": rule, **facts})
        return
    say(f"{job} {decision}" + (f": {reason}" if reason else ""))
    say(rule)
    say(
        f"Tenant {mine.tenant} uses {_devices(used) or 'nothing'}, and its quota is {_devices(quota) or 'not limited'}."
    )
    say("Claims of the tenants, of which the smallest is served next:")
    for tenant, claim in claims.items():
        say(f"  {tenant}: {claim:.3f}")


def _size(resized: Resized | None) -> str:
    """Return with which size it starts, if it is elastic."""
    return "" if resized is None else resized.reason


def _passes(decided: Plan, job: str) -> str:
    """Return which job it passes, if it does."""
    return f"passes {decided.passing[job]}" if job in decided.passing else ""


def _decided(decided: Plan, job: str, behind: str | None) -> tuple[str, str, str]:
    """Return the decision about a job, the reason, and the rule in words. `behind`: the job that it has passed."""
    if job in decided.passing:
        rule = "It fits into what is free. As soon as the job that it passes can start with its room, it gives it back."
        return "starts", _passes(decided, job), rule
    if job in decided.granted:
        chosen = _size(next((each for each in decided.resized if each.job_id == job), None))
        return "starts", chosen, "It is within the limits of its tenant, it is its turn, and the whole gang has room."
    for waiting in decided.waiting:
        if waiting.job_id == job:
            return "waits", waiting.reason, _RULES[waiting.rule]
    for impossible in decided.impossible:
        if impossible.job_id == job:
            return "never starts", impossible.reason, "No job that ends would make room for it."
    for reclaimed in decided.reclaimed:
        if reclaimed.job_id == job:
            passed = behind == reclaimed.for_job
            rule = "It has passed the first job that waits for room." if passed else "Its tenant has borrowed."
            return "gives its room back", reclaimed.reason, f"{rule} Its stop costs least."
    for resized in decided.resized:
        if resized.job_id == job:
            return "is resized", resized.reason, "It is elastic; docs/howto/elastic.md says how sizes are chosen."
    return "runs", "", "Nothing asks for its room."


def _devices(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(numbers.items()))


_RULES = {
    "room": "There is no room for it, or a job for which there is none is before it and can use the same nodes.",
    "quota": "Its tenant may use no more devices of this kind, by its quota and what it may borrow.",
    "tenant": "An earlier job of its tenant waits for the tenant's quota, and needs the same kind of device.",
}


def _facts(each: QueueEntry, several: bool) -> tuple[str, ...]:
    tenant = (each.tenant,) if several else ()
    return each.job, *tenant, each.state, each.priority, f"{each.learners} x {each.each}"


def _starts(each: QueueEntry) -> str:
    if each.starts_at is None:
        return "unknown"
    seconds = (each.starts_at - datetime.now(UTC)).total_seconds()
    return f"in {duration(seconds)}" if seconds >= 1 else "now"


def _print(title: str, entries: list[QueueEntry]) -> None:
    if entries:
        say(title)
        for each in entries[:SHOWN]:
            say(f"  {each.job} ({each.priority}): {each.learners} x {each.each}")
        if len(entries) > SHOWN:
            say(f"  and {len(entries) - SHOWN} more")
