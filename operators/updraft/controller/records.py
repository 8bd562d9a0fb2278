"""Derive what a launch needs (manifest, sizes, names) from a job's records; used by tasks, triggers and the reaper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from updraft.kubernetes.objects import Launch
from updraft.lifecycle.membership import Membership
from updraft.lifecycle.workflow import BEFORE_ROLES, PREPARE_ROLE, TRAIN_ROLE, compares

PREPARE_SPARE_MIB = 512  # of the pod's memory limit, beside the process that validates

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest
    from updraft.settings import Settings


def manifest_of(job: Job) -> Manifest:
    """Return the manifest as it was accepted, without variables whose names the platform has reserved since."""
    from updraft.manifest import parse, reserved_env_names

    env = job.manifest.get("env")
    if not env:
        return parse(job.manifest)
    return parse({**job.manifest, "env": {name: env[name] for name in env if name not in reserved_env_names()}})


def memory_mib(manifest: Manifest) -> int:
    """Return the memory of one learner's program, in MiB."""
    return -(-manifest.resources.memory_bytes // 1024**2)


def disk_amounts(settings: Settings, manifest: Manifest) -> tuple[str, str]:
    """Return the disk that one learner's pod requests, and its limit, in Kubernetes' notation.

    A limit that the manifest names is also requested. The platform's default limit is not, because nodes with less disk
    would take no learner.
    """
    named = manifest.resources.disk_bytes
    limit = f"{-(-(named or settings.learner_disk_bytes) // 1024**2)}Mi"
    return (limit if named else "0"), limit


def memory_limit_mib(settings: Settings, manifest: Manifest, role: str) -> int:
    """Return the limit of the role's program. The pods that judge data and predictions request what a learner was
    granted, and may use what their judgement is allowed."""
    if role != PREPARE_ROLE and not compares(role):
        return memory_mib(manifest)
    return max(memory_mib(manifest), settings.validation_memory_bytes // 1024**2 + PREPARE_SPARE_MIB)


def learners_of(manifest: Manifest, role: str) -> int:
    """Return how many learners the role starts with; an elastic training, at least."""
    if role != TRAIN_ROLE:
        return 1
    return manifest.elastic.sizes[0] if manifest.elastic is not None else manifest.resources.learners


def batch_of(manifest: Manifest, role: str, learners: int) -> int | None:
    """Return the smallest batch that an elastic training allows with so many learners; None if the platform does not
    choose it."""
    return manifest.elastic.batch(learners) if manifest.elastic is not None and role == TRAIN_ROLE else None


def place_learners(manifest: Manifest, role: str) -> int:
    """Return what the job needs room for while this role is to come: before the training, its whole gang."""
    return learners_of(manifest, TRAIN_ROLE if role in BEFORE_ROLES else role)


def launch_of(settings: Settings, job: Job, attempt: Attempt) -> Launch:
    """Return what the objects of this attempt are named after, with the members it has now."""
    namespace, batch = settings.namespace(job.tenant), attempt.batch
    scale = manifest_of(job).lr_scale(batch) if batch is not None else 1.0
    least = least_of(job, attempt.role)
    return Launch(namespace, job.tenant, job.id, attempt.role, attempt.number, attempt.membership, batch, scale, least)


def first_launch(settings: Settings, job: Job, manifest: Manifest, role: str) -> Launch:
    """Return the launch of a role that has no attempt yet."""
    return planned_launch(settings, manifest, role, 1, job.id, job.tenant)


def planned_launch(settings: Settings, manifest: Manifest, role: str, number: int, job_id: str, tenant: str) -> Launch:
    """Return a launch of a job that need not exist."""
    members = Membership.first(learners_of(manifest, role))
    batch = batch_of(manifest, role, members.size)
    scale = manifest.lr_scale(batch)
    elastic = manifest.elastic if role == TRAIN_ROLE else None
    least = elastic.min_learners if elastic is not None and elastic.in_place else None
    return Launch(settings.namespace(tenant), tenant, job_id, role, number, members, batch, scale, least)


def least_of(job: Job, role: str) -> int | None:
    """Return the fewest learners of a role whose learners join and leave while the others train; None for others. The
    manifest is not parsed, which takes time."""
    elastic = (job.manifest.get("elastic") or {}) if role == TRAIN_ROLE else {}
    return int(elastic.get("min_learners", 1)) if elastic.get("resize") == "in_place" else None
