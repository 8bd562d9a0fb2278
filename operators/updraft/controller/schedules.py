"""Look whether a series that has a schedule trains again now, and record what was decided."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from updraft.controller.promotion import changes_of
from updraft.exceptions import UpdraftError
from updraft.ledger import NewSeriesEvent, Schedule, SeriesEvent
from updraft.manifest.model import Schedule as ScheduleSection
from updraft.retraining.schedule import DataSeen, Look, ScheduleRule, SeriesFacts, look, waits_for

if TYPE_CHECKING:
    from updraft.ledger import Ledger
    from updraft.services import Services

WRITE_SECONDS = 60.0  # between writes of looks that decide nothing new
RECENT_JOBS = 20
AT_MOST_EVERY = timedelta(hours=1)


@dataclass(frozen=True)
class Watched:
    """A series whose schedule has conditions. `model`: what its jobs register; None: nothing."""

    tenant: str
    series: str
    dag_id: str
    rule: Mapping[str, Any]
    model: str | None = None


def rule_of(section: ScheduleSection) -> ScheduleRule:
    return ScheduleRule(
        section.cron,
        section.timezone,
        section.and_new,
        section.quiet or timedelta(0),
        section.or_champion_older,
        section.at_most_every or AT_MOST_EVERY,
    )


def look_at(services: Services, watched: Watched) -> SeriesEvent | None:
    """Decide whether the series fires, record the decision, and return the firing that no job has taken yet.

    Raises UnavailableError while the ledger does not answer.
    """
    book = services.ledger
    waiting = book.schedules.untaken(watched.tenant, watched.series)
    if waiting is not None:
        return waiting
    schedule = book.schedules.ensure(watched.tenant, watched.series, watched.dag_id, watched.rule)
    section = ScheduleSection.model_validate(watched.rule)
    rule = rule_of(section)
    facts = _facts(book, watched, schedule)
    found = waits_for(rule, facts)
    if found is None:
        if rule.and_new:
            facts = _with_data(services, watched, section, schedule, facts)
        found = look(rule, facts)
    return _record(book, watched, schedule, facts, found)


def _facts(book: Ledger, watched: Watched, schedule: Schedule) -> SeriesFacts:
    jobs = book.jobs.find(watched.tenant, None, watched.series, RECENT_JOBS)
    moves = book.series.of_model(watched.tenant, watched.model) if watched.model else []
    changed = [event for event in moves if changes_of([event])]
    return SeriesFacts(
        now=book.now(),
        since=schedule.since,
        slot=schedule.slot,
        fired_at=schedule.fired_at,
        fired_on=schedule.fired_on,
        champion_since=changed[-1].at if changed else None,
        running=next((job.id for job in jobs if not job.ended), None),
        paused=schedule.paused_by,
    )


def _with_data(
    services: Services, watched: Watched, section: ScheduleSection, schedule: Schedule, facts: SeriesFacts
) -> SeriesFacts:
    from updraft.kubernetes.secrets import read_secret
    from updraft.storage.remote import list_for_schedule

    try:
        credentials = None
        if section.secret is not None:
            namespace = services.settings.namespace(watched.tenant)
            credentials = read_secret(services.core, namespace, section.secret)
        objects = list_for_schedule(
            section.and_new,
            watched.tenant,
            credentials=credentials,
            secret=section.secret,
            marker=section.marker,
            settings=services.settings,
        )
    except UpdraftError as exc:
        return replace(facts, trouble=str(exc))
    lines = "".join(f"{source} {item.key} {item.size} {item.version}\n" for source, item in objects)
    fingerprint = hashlib.sha256(lines.encode()).hexdigest() if objects else None
    same = schedule.seen_since is not None and schedule.seen == fingerprint
    since = schedule.seen_since if same and schedule.seen_since is not None else facts.now
    size_bytes = sum(item.size for _, item in objects)
    return replace(facts, data=DataSeen(fingerprint, len(objects), size_bytes, since))


def _record(book: Ledger, watched: Watched, schedule: Schedule, facts: SeriesFacts, found: Look) -> SeriesEvent | None:
    changed = replace(
        schedule, slot=found.slot or schedule.slot, reason=found.reason, next_at=found.next_at, looked_at=facts.now
    )
    if facts.data is not None:
        changed = replace(changed, seen=facts.data.fingerprint, seen_since=facts.data.unchanged_since)
    fired = None
    if found.fires:
        moment = found.slot or facts.now
        data = None if facts.data is None else facts.data.fingerprint
        changed = replace(changed, fired_at=facts.now, fired_on=data or schedule.fired_on)
        fired = NewSeriesEvent(
            key=f"fired {watched.tenant}/{watched.series} {moment.isoformat()}",
            tenant=watched.tenant,
            series=watched.series,
            kind="fired",
            reason=found.reason,
            evidence={
                "because": list(found.because),
                "aged": found.aged,
                "moment": moment.isoformat(),
                "data": data,
                "objects": None if facts.data is None else facts.data.objects,
            },
        )
    quiet = schedule.looked_at is not None and (facts.now - schedule.looked_at).total_seconds() < WRITE_SECONDS
    if fired is None and quiet and replace(changed, looked_at=schedule.looked_at) == schedule:
        return None
    return book.schedules.save(changed, fired)
