"""Write messages to people, as the manifest's section `notify` asks, and send them through Airflow's notifiers.

A message is recorded together with what it is about, and sent later by the reaper: a notifier that is slow or away
delays no job. Each is sent once; after a failure it is tried again for a day.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from updraft.controller.records import manifest_of
from updraft.exceptions import UpdraftError
from updraft.ledger import NewNotice, Notice
from updraft.lifecycle import State
from updraft.schemas import PAGES_PREFIX
from updraft_learner.backoff import Backoff

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.services import Services
    from updraft.settings import NotifierSpec

RETRY = Backoff(60.0, 3_600.0)
GIVE_UP = timedelta(days=1)
TITLES: Mapping[str, str] = {
    "started": "has started to train",
    "failed": "has failed",
    "waiting": "has a model that waits for approval",
    "promoted": "has a new champion",
    "rejected": "has a model that was not promoted",
    "rolled back": "has its earlier champion back",
}
log = logging.getLogger(__name__)


def notices_of(services: Services, job: Job, kind: str, message: str, occasion: str = "") -> list[NewNotice]:
    """Return the messages of this kind that the job's manifest asks for; none for kinds that it does not name.

    `occasion`: tells apart what may happen to a job several times.
    """
    notify = manifest_of(job).notify
    if notify is None or kind not in notify.on:
        return []
    url = f"{services.settings.airflow_public_uri.rstrip('/')}{PAGES_PREFIX}/{quote(job.id, safe='')}"
    return [
        NewNotice(
            key=" ".join(part for part in (kind, job.id, name, occasion) if part),
            notifier=name,
            kind=kind,
            subject=f"{job.id} {TITLES[kind]}",
            message=message,
            url=url,
            job_id=job.id,
        )
        for name in dict.fromkeys(notify.to)
    ]


def tell(services: Services, job: Job, kind: str, message: str, occasion: str = "") -> None:
    """Record the messages of this kind that the job's manifest asks for, as `notices_of` returns them."""
    if found := notices_of(services, job, kind, message, occasion):
        services.ledger.notices.put(found)


def of_verdict(services: Services, job: Job, state: State, reason: str) -> list[NewNotice]:
    """Return the messages about a job's end."""
    if state is not State.FAILED:
        return []
    try:
        return notices_of(services, job, "failed", reason)
    except UpdraftError:  # its manifest was refused: nobody is named
        return []


def send_due(services: Services) -> dict[str, str]:
    """Send the messages that are due. Returns what became of each, by its key."""
    done: dict[str, str] = {}
    for notice in services.ledger.notices.due():
        try:
            send(services.settings.notifiers, notice)
        except Exception as exc:  # noqa: BLE001 - a notifier is foreign code; its error is the notice's
            done[notice.key] = _failed(services, notice, f"{type(exc).__name__}: {exc}")
        else:
            services.ledger.notices.delivered(notice.id)
            done[notice.key] = f"told {notice.notifier}"
    return done


def send(notifiers: Mapping[str, NotifierSpec], notice: Notice) -> None:
    """Send one message. Raises what the notifier raises."""
    spec = notifiers.get(notice.notifier)
    if spec is None:
        raise LookupError(f"UPDRAFT_NOTIFIERS has no notifier {notice.notifier!r}")
    module, _, name = spec.classpath.rpartition(".")
    notifier: Any = getattr(importlib.import_module(module), name)(**spec.arguments)
    context = {
        "subject": notice.subject,
        "message": notice.message,
        "url": notice.url,
        "kind": notice.kind,
        "job": notice.job_id or "",
    }
    # Calling the notifier would log its errors instead of raising them. The texts are values of the templates, and
    # are not rendered themselves.
    notifier.render_template_fields(context)
    notifier.notify(context)


def _failed(services: Services, notice: Notice, error: str) -> str:
    now = services.ledger.now()
    due_at = now + timedelta(seconds=RETRY.seconds(notice.tries + 1))
    given_up = due_at - notice.created_at > GIVE_UP
    services.ledger.notices.failed(notice.id, error, None if given_up else due_at)
    log.warning("Notice %r was not sent through %s: %s", notice.key, notice.notifier, error)
    return f"{notice.notifier} was not told{', and will not be' if given_up else ''}: {error}"
