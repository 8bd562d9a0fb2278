"""Create and remove the pods of a role's attempts, from the role's template in the ledger.

The template is the pod that `KubernetesPodOperator` built for the role's first learner. It contains no secret, only
references. The job's credentials are in one Kubernetes secret per launch, which also holds the token of the sidecar's
MLflow endpoint.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from updraft.checkpoints import for_learner
from updraft.controller import comparing, environments, init_from, prepare
from updraft.controller.idempotency import Deployment, addition, deployment, pod_template
from updraft.controller.records import launch_of, least_of, manifest_of
from updraft.controller.specs import JobFacts, grace_of, spec_of
from updraft.exceptions import NotFoundError, RefusedError
from updraft.kubernetes import clients, gang
from updraft.kubernetes.launch import LaunchSpec, objects_of
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.workflow import BUILD_ROLE, EVALUATE_ROLE, PREPARE_ROLE, TRAIN_ROLE, compares, evaluates_champion
from updraft_learner import contract

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest
    from updraft.services import Services

log = logging.getLogger(__name__)
TOKEN_BYTES = 32


def record_template(services: Services, job: Job, role: str, pod: Mapping[str, Any]) -> None:
    """Record the pod that every attempt of this role and revision is made from; the first record stays."""
    services.ledger.idempotency.record(job.id, pod_template(role, job.revision), dict(pod))


def has_template(services: Services, job: Job, role: str) -> bool:
    return services.ledger.idempotency.get(job.id, pod_template(role, job.revision)) is not None


def grace_seconds(services: Services, attempt: Attempt) -> int:
    """Return the grace period of an attempt's pods; deployment and monitoring use the same number."""
    limits = prepare.made_limits(services, attempt.job_id, attempt.revision) if attempt.role == PREPARE_ROLE else []
    if attempt.role == BUILD_ROLE:
        limits = [services.settings.environment_limit_bytes]
    return grace_of(services.settings, attempt.role, limits)


def deploy(services: Services, core: CoreV1Api, job: Job, attempt: Attempt) -> Launch:
    """Create the attempt's gang, once: pods that vanish later are not made again under the same number.

    What older attempts of the role left is removed first, and the fence is raised before the first pod exists.
    Raises RefusedError when the cluster refuses an object, or the job ended meanwhile; UnavailableError.
    """
    from updraft.manifest.pod_rules import judge
    from updraft.storage import signals

    manifest = manifest_of(job)
    launch = launch_of(services.settings, job, attempt)
    deployed = deployment(attempt.role, attempt.number)
    if services.ledger.idempotency.get(job.id, deployed) is not None:
        return launch
    # The policy may have changed since the job was admitted.
    if refused := judge(manifest.pod, services.settings.pod_policy_of(job.tenant)):
        raise RefusedError("; ".join(error.text for error in refused))
    template = services.ledger.idempotency.get(job.id, pod_template(attempt.role, attempt.revision))
    if template is None:
        raise RefusedError(f"job {job.id} has no template of {attempt.role} for revision {attempt.revision}")
    remove_older(services, core, launch)
    signals.raise_fence(job.tenant, job.id, attempt.role, attempt.number, store=services.store)
    newest = services.ledger.attempts.current(job.id, attempt.role)
    if newest is not None and newest.number > attempt.number:
        # The store has no compare-and-write: this process, if it was suspended, may have just lowered the fence.
        signals.raise_fence(job.tenant, job.id, attempt.role, newest.number, store=services.store)
        raise RefusedError(f"attempt {attempt.number} of job {job.id} has ended, and {newest.number} follows")
    gang.ensure_namespace(core, launch.namespace)
    spec = _spec(services, core, job, manifest, attempt, launch, template)
    if (
        services.ledger.idempotency.get(job.id, deployed) is not None
    ):  # by another controller, while this process was suspended
        return launch
    gang.create(core, launch, objects_of(spec))
    now = services.ledger.attempts.current(job.id, attempt.role)
    if (
        now is None
        or now.number != attempt.number
        or now.ended_at is not None
        or services.ledger.jobs.get(job.id).ended
    ):
        # Another controller took over and ended this attempt: remove the pods that this process made.
        gang.delete(core, launch.namespace, launch.selector, grace_seconds=0)
        raise RefusedError(f"attempt {attempt.number} of job {job.id} ended while its learners were being created")
    names = tuple(launch.pod_name(n) for n in launch.membership.learners)
    services.ledger.idempotency.record(job.id, deployed, Deployment(names, services.ledger.now()))
    log.info("Launched %d learner(s) of %s as attempt %d", launch.membership.size, launch.role, launch.attempt)
    return launch


def add_learners(
    services: Services,
    core: CoreV1Api,
    job: Job,
    attempt: Attempt,
    learners: Sequence[int],
    *,
    avoid_nodes: Collection[str] = (),
) -> None:
    """Create the pods of learners that join the attempt, each once: one that vanishes later is not made again under
    the same number. They are placed on `avoid_nodes` only if no other node has room.

    Raises QuotaError and RefusedError when the cluster refuses a pod; UnavailableError.
    """
    records = services.ledger.idempotency
    new = [n for n in learners if records.get(job.id, addition(attempt.role, attempt.number, n)) is None]
    if not new:
        return
    launch = launch_of(services.settings, job, attempt)
    names = {launch.pod_name(n): n for n in new}
    spec = _spec_of_running(services, core, job, attempt, launch)
    made = objects_of(replace(spec, avoid_nodes=tuple(sorted({*spec.avoid_nodes, *avoid_nodes}))))
    for pod in made.pods:
        if (learner := names.get(pod["metadata"]["name"])) is not None:
            gang.add(core, launch, [pod])
            records.record(job.id, addition(attempt.role, attempt.number, learner), services.ledger.now())
    log.info("Launched learner(s) %s of attempt %d beside the others", new, attempt.number)


def replace_coordinator(services: Services, core: CoreV1Api, job: Job, attempt: Attempt, number: int) -> None:
    """Create another pod for the coordinator of the attempt's learners. Raises as `add_learners` does."""
    launch = launch_of(services.settings, job, attempt)
    made = objects_of(_spec_of_running(services, core, job, attempt, launch, coordinator=number))
    assert made.coordinator is not None  # a training that is resized in place has one
    gang.add(core, launch, [made.coordinator])


def _spec_of_running(
    services: Services, core: CoreV1Api, job: Job, attempt: Attempt, launch: Launch, *, coordinator: int = 1
) -> LaunchSpec:
    template = services.ledger.idempotency.get(job.id, pod_template(attempt.role, attempt.revision))
    assert template is not None  # the attempt was launched from it
    manifest = manifest_of(job)
    return _spec(services, core, job, manifest, attempt, launch, template, coordinator=coordinator)


def _spec(
    services: Services,
    core: CoreV1Api,
    job: Job,
    manifest: Manifest,
    attempt: Attempt,
    launch: Launch,
    template: Mapping[str, Any],
    *,
    coordinator: int = 1,
) -> LaunchSpec:
    """Return what the attempt's objects are made of."""
    checkpoint = attempt.resume.checkpoint if attempt.resume else None
    credentials = _pod_credentials(services)
    if attempt.role == PREPARE_ROLE:
        credentials["sources"] = prepare.hand_over(services, core, job, manifest, attempt)
    elif attempt.role in (TRAIN_ROLE, EVALUATE_ROLE) or evaluates_champion(attempt.role):
        credentials["sources"] = prepare.learner_secrets(services, core, job, manifest)
    if attempt.role == BUILD_ROLE:
        environments.hand_over(services, job, manifest, attempt)
    environment = environments.recorded(services, job.id)
    init = init_from.recorded(services, job.id)
    inputs = comparing.hand_over(services, job, attempt) if compares(attempt.role) else ()
    champion = comparing.of_role(services, job.id, attempt.role) if evaluates_champion(attempt.role) else None
    return spec_of(
        services.settings,
        manifest,
        launch,
        template,
        JobFacts(
            comparing.run_of(services, job, attempt.role) or "",
            job.mlflow_experiment_id or "",
            job.code_tree,
            job.data or (),
            environment.tree if environment else None,
            (init.job, init.checkpoint) if init and init.job and init.checkpoint else None,
            champion.job if champion else None,
            inputs,
            _result_learners(services, champion.job if champion and champion.job else job.id),
        ),
        api_server=clients.api_server_addresses(core) if services.settings.network_policy else (),
        grace_seconds=grace_seconds(services, attempt),
        first=attempt.number
        == min(a.number for a in services.ledger.attempts.of_job(job.id) if a.role == attempt.role),
        checkpoint=checkpoint,
        restores=_restores(services, job.id, checkpoint, launch.membership.learners),
        avoid_nodes=_avoid_nodes(services, attempt),
        credentials=credentials,
        # If an earlier call has created the secret, its token stays and this one is not used.
        endpoint_token=secrets.token_urlsafe(TOKEN_BYTES),
        coordinator=coordinator,
    )


def _result_learners(services: Services, job_id: str) -> tuple[int, ...] | None:
    """Return the learners that were there at the end of a training whose learners join and leave: what others have
    left is not its result. None: all of them."""
    try:
        job = services.ledger.jobs.get(job_id)
    except NotFoundError:  # a champion from another ledger
        return None
    newest = services.ledger.attempts.current(job_id, TRAIN_ROLE)
    if newest is None or least_of(job, TRAIN_ROLE) is None:
        return None
    return newest.membership.learners


def deployed_seconds(services: Services, attempt: Attempt) -> float:
    """Return for how long all pods of the attempt have existed; a cluster that does not answer may take long to accept
    them."""
    known = services.ledger.idempotency.get(attempt.job_id, deployment(attempt.role, attempt.number))
    at = attempt.started_at if known is None else known.at
    return (services.ledger.now() - at).total_seconds()


def remove_older(services: Services, core: CoreV1Api, launch: Launch) -> None:
    """Delete the pods of earlier attempts, but not of later ones: this process may have been taken for dead.

    A node that does not answer keeps its containers; the fence stops them.
    """
    of_role = [a.number for a in services.ledger.attempts.of_job(launch.job_id) if a.role == launch.role]
    older = [str(number) for number in of_role if number < launch.attempt]
    if not older:
        return
    others = f"{contract.LABEL_JOB}={launch.job_id},{contract.LABEL_ROLE}={launch.role}"
    selector = f"{others},{contract.LABEL_ATTEMPT} in ({','.join(older)})"
    if gang.delete(core, launch.namespace, selector, grace_seconds=0):
        gang.wait_gone(core, launch.namespace, selector, timeout_seconds=services.settings.stop_grace_seconds)


def free(services: Services, core: CoreV1Api, launch: Launch, *, grace_seconds: int, wait: bool = True) -> None:
    """Stop and delete everything of one attempt. Harmless when done twice."""
    left = gang.delete(core, launch.namespace, launch.selector, grace_seconds=grace_seconds)
    if wait and left:
        longest_seconds = grace_seconds + services.timing.removal_seconds
        gang.wait_gone(core, launch.namespace, launch.selector, timeout_seconds=longest_seconds)


def _avoid_nodes(services: Services, attempt: Attempt) -> tuple[str, ...]:
    """Return the nodes on which earlier attempts of the role were lost lately for a reason that lies in the node, as
    the newest decision to relaunch names them."""
    for earlier in sorted(services.ledger.attempts.of_job(attempt.job_id), key=lambda a: a.number, reverse=True):
        if earlier.role == attempt.role and earlier.number < attempt.number and earlier.relaunch is not None:
            return tuple(sorted(earlier.relaunch.avoid_nodes))
    return ()


def _restores(services: Services, job_id: str, checkpoint: str | None, learners: Sequence[int]) -> dict[int, str]:
    """Return the checkpoint from which each learner resumes: its own, if each has stored one."""
    if checkpoint is None:
        return {}
    good = [c.name for c in services.ledger.checkpoints.of_job(job_id)]
    return {n: for_learner(checkpoint, n, good) for n in learners}


def _pod_credentials(services: Services) -> dict[str, Any]:
    credentials = services.settings.credentials()
    return {
        "s3": {
            "endpoint": services.settings.s3_endpoint,
            "region": services.settings.s3_region,
            "access_key": credentials.s3.access_key.get_secret_value(),
            "secret_key": credentials.s3.secret_key.get_secret_value(),
        },
        "mlflow": {
            "uri": services.settings.mlflow_uri,
            "username": credentials.mlflow.username,
            "password": credentials.mlflow.password.get_secret_value(),
        },
    }
