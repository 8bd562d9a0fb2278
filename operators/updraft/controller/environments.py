"""Ask the pod of the role `build` for a job's packages, once per job, and record what it built.

The record is an idempotency record: each launch of the job's programs gets the same environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from updraft.controller.records import manifest_of
from updraft.exceptions import UpdraftError
from updraft.kubernetes import objects
from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.lifecycle.workflow import BUILD_ROLE
from updraft_learner.environment.documents import LOG_IN, EnvironmentRequest, log_in_variable

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest
    from updraft.manifest.environment import PackageIndex
    from updraft.services import Services
    from updraft.settings import Settings
    from updraft.storage.environments import BuiltEnvironment, Resolved

MOST_PACKAGES = 2_000
REQUIREMENTS = (".txt", ".in", ".toml", ".lock", ".cfg")  # ends of the files that hold requirements
_PACKAGE = re.compile(r"^([A-Za-z0-9._-]+==[^\s;\\]{1,100})", re.MULTILINE)
BUILD_COMMAND = "exec python -I ../build/builder.py"  # it starts in the code's folder


@dataclass(frozen=True)
class JobEnvironment:
    """The packages that the job's programs get.

    Args:
        tree: Their tree in the content store.
        packages: Each with its version, such as `einops==0.8.1`.
        lock_sha256: The digest of the lock, which is the file `environment.lock` of the tree.
        reused: Whether another job had built the same.
    """

    tree: str
    key: str
    packages: tuple[str, ...]
    lock_sha256: str
    reused: bool


ENVIRONMENT = IdempotencyKey("environment", JobEnvironment)


def recorded(services: Services, job_id: str) -> JobEnvironment | None:
    """Return the job's environment; None if it asks for none, or none was built yet."""
    return services.ledger.idempotency.get(job_id, ENVIRONMENT)


def record_built(services: Services, job: Job) -> JobEnvironment:
    """Record what the job's pod built. Raises the pod's own reason, or UpdraftError, where it built nothing."""
    from updraft.storage.environments import Resolved, put_resolved

    built = built_of(services, job)
    packages = tuple(_PACKAGE.findall(built.lock)[:MOST_PACKAGES])
    digest = hashlib.sha256(built.lock.encode()).hexdigest()
    made = JobEnvironment(built.tree, built.key, packages, digest, built.reused)
    recorded = services.ledger.idempotency.record(job.id, ENVIRONMENT, made)
    if services.settings.environment_reuse_seconds and services.ledger.attempts.current(job.id, BUILD_ROLE) is not None:
        resolved = Resolved(built=built, at=services.ledger.now())
        put_resolved(job.tenant, _digest(services, job), resolved, store=services.store)
    return recorded


def reuse(services: Services, job: Job) -> JobEnvironment | None:
    """Record the packages that another job of the tenant was given for the same requirements, image and indexes, if
    that was not too long ago; None if they have to be resolved. Raises UnavailableError."""
    return None if _resolved(services, job) is None else record_built(services, job)


def lock_of(services: Services, job: Job, environment: JobEnvironment) -> str | None:
    """Return the lock of the job's packages; None if it was replaced by that of a later build."""
    from updraft.storage.environments import find_resolved

    if services.ledger.attempts.current(job.id, BUILD_ROLE) is not None:
        return built_of(services, job).lock
    found = find_resolved(job.tenant, _digest(services, job), store=services.store)
    same = found is not None and hashlib.sha256(found.built.lock.encode()).hexdigest() == environment.lock_sha256
    return found.built.lock if found is not None and same else None


def _resolved(services: Services, job: Job) -> Resolved | None:
    from updraft.storage.environments import find_resolved

    seconds = services.settings.environment_reuse_seconds
    if not seconds or services.ledger.attempts.current(job.id, BUILD_ROLE) is not None:
        return None
    found = find_resolved(job.tenant, _digest(services, job), store=services.store)
    if found is None or not 0 <= (services.ledger.now() - found.at).total_seconds() < seconds:
        return None
    return found


def _digest(services: Services, job: Job) -> str:
    """Return the digest of all that a build depends on. Of the code, these are the files that may hold requirements:
    the worker does not read them, and one may refer to another."""
    manifest = manifest_of(job)
    request = request_of(services.settings, manifest)
    files: list[tuple[str, str]] = []
    if request.file is not None and job.code_tree is not None:
        tree = services.content(job.tenant).get_tree(job.code_tree)
        files = [(file.path, file.sha256) for file in tree.files if file.path.lower().endswith(REQUIREMENTS)]
    return hashlib.sha256(json.dumps([request.to_json(), files]).encode()).hexdigest()


def built_of(services: Services, job: Job) -> BuiltEnvironment:
    """Return what the job's pod built. Raises the pod's own reason, or UpdraftError, where it built nothing."""
    from updraft.storage.environments import read_built

    attempt = services.ledger.attempts.current(job.id, BUILD_ROLE)
    if attempt is None and (resolved := _resolved(services, job)) is not None:
        return resolved.built.model_copy(update={"reused": True})
    number = attempt.number if attempt is not None else 0
    answer = read_built(job.tenant, job.id, number, store=services.store)
    if answer is not None and answer.error is not None:
        raise answer.error.error()
    if answer is None or answer.built is None:
        raise UpdraftError(f"attempt {number} of build left no word of its packages; submit the job again")
    return answer.built


def hand_over(services: Services, job: Job, manifest: Manifest, attempt: Attempt) -> None:
    """Write the request where the attempt's pod reads it. Raises UnavailableError."""
    from updraft.storage.environments import put_request

    request = request_of(services.settings, manifest)
    put_request(job.tenant, job.id, attempt.number, request, store=services.store)


def request_of(settings: Settings, manifest: Manifest) -> EnvironmentRequest:
    """Return what the pod is asked for. The manifest must have the section `environment`."""
    from updraft.manifest import image_of

    section = manifest.environment
    assert section is not None  # only then is there a command for this role
    listed = () if isinstance(section.requirements, str) else section.requirements
    return EnvironmentRequest(
        image=image_of(manifest, settings.framework_images),
        indexes=tuple(url for url, _ in _indexes(settings, manifest)),
        python=section.python,
        requirements=listed,
        file=section.file,
        seconds=settings.environment_seconds,
        limit_bytes=settings.environment_limit_bytes,
    )


def log_ins(settings: Settings, manifest: Manifest) -> list[objects.Manifest]:
    """Return the entries that give uv the secrets of the indexes; each key of a secret is optional."""
    from updraft.kubernetes.secrets import object_name

    return [
        {
            "name": log_in_variable(number, key),
            "valueFrom": {"secretKeyRef": {"name": object_name(secret), "key": key, "optional": True}},
        }
        for number, (_, secret) in enumerate(_indexes(settings, manifest))
        if secret is not None
        for key in LOG_IN
    ]


def _indexes(settings: Settings, manifest: Manifest) -> list[tuple[str, str | None]]:
    """Return address and secret of each index; the last one is the default index."""
    section = manifest.environment
    assert section is not None
    named: list[PackageIndex] = [*section.extra_index, *([section.index] if section.index else [])]
    found = [(index.url, index.secret) for index in named]
    return found if section.index else [*found, (settings.package_index, None)]
