"""The pods of a role: its template in the ledger, the gang of an attempt, and their removal.

The template is the pod that `KubernetesPodOperator` built for the role's first learner. It holds no secret: secrets are
references in it, and the job's credentials lie in a Kubernetes secret per launch, with a token of its own for the
sidecar's MLflow endpoint.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from updraft.checkpoints import for_learner
from updraft.exceptions import RefusedError
from updraft.guardian import prepare
from updraft.guardian.records import launch_of, ledger, manifest_of
from updraft.kubernetes import claims, clients, gang, policies
from updraft.kubernetes.launch import LaunchSpec, objects_of
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.workflow import EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.settings import settings
from updraft_learner import contract

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest
    from updraft.settings import Settings

log = logging.getLogger(__name__)
TOKEN_BYTES = 32
STORE_BYTES_PER_SECOND = 20_000_000  # at which a sidecar stores a folder of large files at least


def template_key(role: str, revision: int) -> str:
    return f"template {role} {revision}"


def record_template(job: Job, role: str, pod: Mapping[str, Any]) -> None:
    """The pod that every attempt of this role and revision is made from; the first record stands."""
    ledger().record_effect(job.id, template_key(role, job.revision), dict(pod))


def has_template(job: Job, role: str) -> bool:
    return ledger().effect(job.id, template_key(role, job.revision)) is not None


def grace_of(role: str, limits: Iterable[int], site: Settings) -> int:
    """Seconds from SIGTERM, or from the program's end, to the end of the sidecar's storing. The pod that prepares data
    stores up to `limits` bytes, which may need longer than a learner's results."""
    least = site.store_grace_seconds
    return max(least, -(-sum(limits) // STORE_BYTES_PER_SECOND)) if role == PREPARE_ROLE else least


def grace_seconds(attempt: Attempt) -> int:
    """That of an attempt's pods: what deploys them and what watches them go by the same number."""
    limits = prepare.made_limits(attempt.job_id, attempt.revision) if attempt.role == PREPARE_ROLE else ()
    return grace_of(attempt.role, limits, settings())


def deploy(core: CoreV1Api, job: Job, attempt: Attempt) -> Launch:
    """Create the attempt's gang, once: pods that vanish later are not made again under the same number.

    What older attempts of the role left is removed first, and the fence is raised before the first pod exists.
    Raises RefusedError when the cluster refuses an object, or the job ended meanwhile; UnavailableError.
    """
    from updraft.storage import signals

    manifest = manifest_of(job)
    launch = launch_of(job, attempt)
    deployed = _deployed_key(attempt)
    if ledger().effect(job.id, deployed) is not None:
        return launch
    template = ledger().effect(job.id, template_key(attempt.role, attempt.revision))
    if template is None:
        raise RefusedError(f"job {job.id} has no template of {attempt.role} for revision {attempt.revision}")
    remove_older(core, launch)
    signals.raise_fence(job.tenant, job.id, attempt.role, attempt.number)
    newest = ledger().current_attempt(job.id, attempt.role)
    if newest is not None and newest.number > attempt.number:
        # The store cannot compare and write: a process that was stopped in between has just lowered the fence.
        signals.raise_fence(job.tenant, job.id, attempt.role, newest.number)
        raise RefusedError(f"attempt {attempt.number} of job {job.id} has ended, and {newest.number} follows")
    config = config_of(
        manifest,
        launch,
        settings(),
        run_id=job.mlflow_run_id or "",
        experiment_id=job.mlflow_experiment_id or "",
        code_tree=job.code_tree,
        data=job.data or (),
        checkpoint=attempt.resume.checkpoint if attempt.resume else None,
        first=attempt.number == min(a.number for a in ledger().attempts(job.id) if a.role == attempt.role),
    )
    gang.ensure_namespace(core, launch.namespace)
    credentials = _pod_credentials()
    if attempt.role == PREPARE_ROLE:
        credentials["sources"] = prepare.hand_over(core, job, manifest, attempt)
    if ledger().effect(job.id, deployed) is not None:  # by another guardian, while this one was stopped
        return launch
    spec = LaunchSpec(
        launch,
        template,
        config,
        sidecar_image=settings().sidecar_image,
        grace_seconds=grace_seconds(attempt),
        node_lost_seconds=settings().node_lost_seconds,
        tolerations=settings().tolerations,
        avoid_nodes=_avoid_nodes(attempt),
        claims=() if attempt.role in (EXPORT_ROLE, PREPARE_ROLE) else claims.claims_of(job.data),
        restores=_restores(config, launch.membership.learners),
        outside=_outside(core, launch) if settings().network_policy else None,
        disruption_budget=settings().disruption_budget,
        credentials=credentials,
        # Where an earlier call has made the secret, its token stands.
        endpoint_token=secrets.token_urlsafe(TOKEN_BYTES),
    )
    gang.create(core, launch, objects_of(spec))
    now = ledger().current_attempt(job.id, attempt.role)
    if now is None or now.number != attempt.number or now.ended_at is not None or ledger().job(job.id).ended:
        # This process was taken for dead, and somebody else went on: what it made has no place any more.
        gang.delete(core, launch.namespace, launch.selector, grace_seconds=0)
        raise RefusedError(f"attempt {attempt.number} of job {job.id} ended while its learners were being created")
    names = [launch.pod_name(n) for n in launch.membership.learners]
    ledger().record_effect(job.id, deployed, {"pods": names, "at": ledger().now().isoformat()})
    log.info("Launched %d learner(s) of %s as attempt %d", launch.membership.size, launch.role, launch.attempt)
    return launch


def _outside(core: CoreV1Api, launch: Launch) -> policies.Outside:
    urls = (settings().s3_endpoint, settings().mlflow_uri)
    closed = (*policies.METADATA_NETWORKS, *settings().closed_networks, *clients.api_server_addresses(core))
    return policies.outside_of(launch.namespace, urls, closed)


def deployed_seconds(attempt: Attempt) -> float:
    """For how long all its pods have been there: a cluster that does not answer may take long to take them."""
    effect = ledger().effect(attempt.job_id, _deployed_key(attempt)) or {}
    at = datetime.fromisoformat(effect["at"]) if "at" in effect else attempt.started_at
    return (ledger().now() - at).total_seconds()


def _deployed_key(attempt: Attempt) -> str:
    return f"deployed {attempt.role} {attempt.number}"


def remove_older(core: CoreV1Api, launch: Launch) -> None:
    """Pods of attempts before this one, and of no later one: this process may have been taken for dead.

    A node that does not answer keeps its containers; the fence silences them.
    """
    of_role = [a.number for a in ledger().attempts(launch.job_id) if a.role == launch.role]
    older = [str(number) for number in of_role if number < launch.attempt]
    if not older:
        return
    others = f"{contract.LABEL_JOB}={launch.job_id},{contract.LABEL_ROLE}={launch.role}"
    selector = f"{others},{contract.LABEL_ATTEMPT} in ({','.join(older)})"
    if gang.delete(core, launch.namespace, selector, grace_seconds=0):
        gang.wait_gone(core, launch.namespace, selector, timeout_seconds=settings().stop_grace_seconds)


def free(core: CoreV1Api, launch: Launch, *, grace_seconds: int, wait: bool = True) -> None:
    """Stop and delete everything of one attempt. Harmless when done twice."""
    left = gang.delete(core, launch.namespace, launch.selector, grace_seconds=grace_seconds)
    if wait and left:
        gang.wait_gone(core, launch.namespace, launch.selector, timeout_seconds=grace_seconds + 30)


def _avoid_nodes(attempt: Attempt) -> tuple[str, ...]:
    """Nodes on which earlier attempts of the role were lost lately for a reason that lies in the node: what the newest
    decision to launch again says, which has forgotten the others."""
    for earlier in sorted(ledger().attempts(attempt.job_id), key=lambda a: a.number, reverse=True):
        if earlier.role == attempt.role and earlier.number < attempt.number and earlier.relaunch is not None:
            return tuple(sorted(earlier.relaunch.avoid_nodes))
    return ()


def config_of(
    manifest: Manifest,
    launch: Launch,
    settings: Settings,
    *,
    run_id: str,
    experiment_id: str,
    code_tree: str | None,
    data: Sequence[Mapping[str, Any]],
    checkpoint: str | None = None,
    first: bool = True,
) -> contract.PodConfig:
    """Return the configuration of the first learner's sidecar.

    `data`: as it is recorded once it is staged; `checkpoint`: what the training goes on from; `first`: it is the first
    launch of its role.
    """
    # These run the platform's program: on the training's results alone, or on what is to become code and data.
    without_inputs = launch.role in (EXPORT_ROLE, PREPARE_ROLE)
    return contract.PodConfig(
        job_id=launch.job_id,
        tenant=launch.tenant,
        role=launch.role,
        attempt=launch.attempt,
        learner=1,
        learners=launch.membership.size,
        bucket=settings.bucket,
        prefix=launch.tenant,
        mlflow_run_id=run_id,
        mlflow_experiment_id=experiment_id,
        code_tree=None if without_inputs else code_tree,
        data=tuple(contract.DataMount(d["tree"], d["mount"]) for d in data if "claim" not in d and not without_inputs),
        params=dict(manifest.params),
        restore_checkpoint=checkpoint,
        # Of an evaluation or an export MLflow would show series of one point, before the training's own.
        system_metrics_seconds=contract.SYSTEM_METRICS_SECONDS if launch.role == TRAIN_ROLE else 0.0,
        restore_results=launch.role not in (TRAIN_ROLE, PREPARE_ROLE),
        restore_own_results=launch.role == TRAIN_ROLE and not first,
    )


def _restores(config: contract.PodConfig, learners: Sequence[int]) -> dict[int, str]:
    """The checkpoint that each learner goes on from: its own, where each has stored one."""
    if config.restore_checkpoint is None:
        return {}
    good = [c.name for c in ledger().checkpoints(config.job_id)]
    return {n: for_learner(config.restore_checkpoint, n, good) for n in learners}


def _pod_credentials() -> dict[str, Any]:
    credentials = settings().credentials()
    return {
        "s3": {
            "endpoint": settings().s3_endpoint,
            "region": settings().s3_region,
            "access_key": credentials.s3.access_key.get_secret_value(),
            "secret_key": credentials.s3.secret_key.get_secret_value(),
        },
        "mlflow": {
            "uri": settings().mlflow_uri,
            "username": credentials.mlflow.username,
            "password": credentials.mlflow.password.get_secret_value(),
        },
    }
