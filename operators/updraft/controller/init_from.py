"""Find the checkpoint of another job that a training begins with, once per job: the manifest's `init_from`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from updraft.exceptions import NotFoundError, RefusedError
from updraft.lifecycle.idempotency import IdempotencyKey

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.manifest import Manifest
    from updraft.services import Services

CHAMPION = "champion"


@dataclass(frozen=True)
class InitFrom:
    """What a training begins with. `job` and `checkpoint` are None for one that begins from scratch."""

    reason: str
    job: str | None = None
    checkpoint: str | None = None


INIT_FROM = IdempotencyKey("init_from", InitFrom)


def recorded(services: Services, job_id: str) -> InitFrom | None:
    return services.ledger.idempotency.get(job_id, INIT_FROM)


def resolve(services: Services, job: Job, manifest: Manifest) -> InitFrom | None:
    """Return what the job's training begins with; None if the manifest says nothing. Recorded once: all attempts of the
    job begin with the same.

    Raises RefusedError for a job or checkpoint that does not exist, or cannot be used.
    """
    if manifest.init_from is None:
        return None
    found = recorded(services, job.id)
    return found or services.ledger.idempotency.record(job.id, INIT_FROM, _find(services, job, manifest))


def _find(services: Services, job: Job, manifest: Manifest) -> InitFrom:
    assert manifest.init_from is not None
    source, _, name = manifest.init_from.partition("/")
    why = f"job {source}"
    if source == CHAMPION:
        from updraft import tracking

        model = manifest.export.register_as if manifest.export else None
        current = tracking.champion(services.tracking, model) if model else None
        if current is None:
            return InitFrom(f"{model} has no champion yet: the training begins from scratch")
        version = current[0]
        if version.job_id is None:
            return InitFrom(f"no job made version {version.version} of {model}: the training begins from scratch")
        source, why = version.job_id, f"the champion, version {version.version} of {model}"
    try:
        other = services.ledger.jobs.get(source)
    except NotFoundError:
        other = None
    if other is None or other.tenant != job.tenant:  # another tenant's job looks like one that does not exist
        raise RefusedError(f"init_from: job {source!r} does not exist; `updraft list` shows the jobs")
    kept = services.ledger.checkpoints.of_job(source)
    if not kept and manifest.init_from == CHAMPION:
        return InitFrom(f"job {source} of {why} has no checkpoint: the training begins from scratch")
    chosen = next((each for each in kept if each.name == name), None) if name else kept[-1] if kept else None
    if chosen is None:
        names = ", ".join(each.name for each in kept[-5:]) or "none"
        raise RefusedError(f"init_from: job {source} has no checkpoint {name or 'at all'}; it has: {names}")
    return InitFrom(f"{chosen.name} of {why}", source, chosen.name)
