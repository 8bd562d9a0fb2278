"""Plan what the pod of the role `prepare` copies and validates: once, in the task `stage_data`.

The plan is an idempotency record, one per revision of the job, so that every launch does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.storage.staged import Staged
from updraft_learner.prepare.documents import PrepareRequest, SourceRequest, data_name

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from updraft.ledger import Attempt, Job
    from updraft.manifest import Data, Manifest
    from updraft.services import Services
    from updraft.settings import Settings

STREAM_LIMIT_BYTES = 1 << 60  # no limit


@dataclass(frozen=True)
class PreparePlan:
    """The sources of a job by name: trees that the store already has, and requests to the pod for all others."""

    known: Mapping[str, Staged] = field(default_factory=dict)
    requests: tuple[SourceRequest, ...] = ()


def recorded(services: Services, job: Job) -> PreparePlan | None:
    """Return the plan of this revision, if one was recorded."""
    return services.ledger.idempotency.get(job.id, _key(job.revision))


def record(services: Services, job: Job, plan: PreparePlan) -> PreparePlan:
    """Record the plan and return the recorded one; the first one stays. Suites are left out: they are in the
    manifest."""
    bare = replace(plan, requests=tuple(replace(request, suite=None) for request in plan.requests))
    return services.ledger.idempotency.record(job.id, _key(job.revision), bare)


def made_limits(services: Services, job_id: str, revision: int) -> list[int]:
    """Return the limits in bytes of the sources that the pod of this revision makes, and stores once its program has
    ended."""
    plan = services.ledger.idempotency.get(job_id, _key(revision)) or PreparePlan()
    return [request.limit_bytes for request in plan.requests if request.made()]


def data_limit_bytes(settings: Settings, item: Data) -> int:
    """Return the limit of one data source: the manifest's, or the platform's where that is lower or the manifest has
    none. The platform's is for what it copies, which it does not with the objects of a stream."""
    if item.is_listed:
        return item.limit_bytes or STREAM_LIMIT_BYTES
    return min(item.limit_bytes or settings.data_limit_bytes, settings.data_limit_bytes)


def hand_over(
    services: Services, core: CoreV1Api, job: Job, manifest: Manifest, attempt: Attempt
) -> dict[str, dict[str, str]]:
    """Write the request where the attempt's pod reads it, and return the values of the secrets for its buckets.

    The values go into the launch's own secret. Raises NotFoundError for a secret that no longer exists,
    UnavailableError.
    """
    from updraft.kubernetes.secrets import read_secret
    from updraft.storage.prepared import put_request

    requests = (services.ledger.idempotency.get(job.id, _key(attempt.revision)) or PreparePlan()).requests
    put_request(job.tenant, job.id, attempt.number, _request(services, requests, manifest), store=services.store)
    names = {request.secret for request in requests if request.kind == "s3" and request.secret is not None}
    return {name: read_secret(core, services.settings.namespace(job.tenant), name) for name in sorted(names)}


def learner_secrets(services: Services, core: CoreV1Api, job: Job, manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return the values of the secrets with which a learner's sidecar reads streamed data, and writes results.

    Raises NotFoundError for a secret that no longer exists, UnavailableError.
    """
    from updraft.kubernetes.secrets import read_secret

    names = {item["secret"] for item in job.data or () if item.get("secret")}
    if manifest.results is not None:
        names.add(manifest.results.secret)
    return {name: read_secret(core, services.settings.namespace(job.tenant), name) for name in sorted(names)}


def _request(services: Services, requests: tuple[SourceRequest, ...], manifest: Manifest) -> PrepareRequest:
    suites = {data_name(n): item.expectations for n, item in enumerate(manifest.data)}
    return PrepareRequest(
        sources=tuple(_with_suite(request, suites.get(request.name)) for request in requests),
        protocols=services.settings.git_protocols,
        memory_bytes=services.settings.validation_memory_bytes,
        seconds=services.settings.validation_seconds,
    )


def _with_suite(request: SourceRequest, suite: object) -> SourceRequest:
    return replace(request, suite=dict(suite)) if isinstance(suite, Mapping) else request


def _key(revision: int) -> IdempotencyKey[PreparePlan]:
    return IdempotencyKey(f"prepare {revision}", PreparePlan)
