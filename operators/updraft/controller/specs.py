"""Build the `LaunchSpec` of a launch from a manifest, the site's settings and the job's facts. Pure.

`updraft.controller.pods` uses it for launches, `updraft.controller.planned` to show a launch that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from updraft.controller.processes import collectors_in, placement_of, processes_in
from updraft.kubernetes import claims, policies
from updraft.kubernetes.launch import LaunchSpec
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.workflow import BEFORE_ROLES, BUILD_ROLE, TRAIN_ROLE, compares, runs_own_program
from updraft_learner import contract

if TYPE_CHECKING:
    from updraft.manifest import Manifest
    from updraft.settings import Settings

STORE_BYTES_PER_SECOND = 20_000_000  # the least speed at which a sidecar stores a folder of large files


@dataclass(frozen=True)
class JobFacts:
    """What a launch needs to know of its job besides the manifest.

    Args:
        run_id: The job's run in MLflow.
        experiment_id: The experiment of that run.
        code_tree: The tree of the job's code; None if it has none.
        data: The job's data sets, as recorded once they are staged.
        environment_tree: The tree of the job's packages; None if it has none.
        init: Job and name of the checkpoint that the training begins with; None: it begins from scratch.
        results_job: The job whose results are evaluated; None: this one.
        inputs: Files that the comparison of two models reads.
        result_learners: The learners whose results are evaluated and exported; None: all.
    """

    run_id: str = ""
    experiment_id: str = ""
    code_tree: str | None = None
    data: Sequence[Mapping[str, Any]] = ()
    environment_tree: str | None = None
    init: tuple[str, str] | None = None
    results_job: str | None = None
    inputs: tuple[contract.InputFile, ...] = ()
    result_learners: tuple[int, ...] | None = None


def grace_of(settings: Settings, role: str, limits: Iterable[int]) -> int:
    """Return the seconds from SIGTERM, or from the program's end, to the end of the sidecar's storing.

    A pod that prepares data or builds packages stores up to `limits` bytes, which may need longer than results do.
    """
    least = settings.store_grace_seconds
    return max(least, -(-sum(limits) // STORE_BYTES_PER_SECOND)) if role in BEFORE_ROLES else least


def spec_of(
    settings: Settings,
    manifest: Manifest,
    launch: Launch,
    template: Mapping[str, Any],
    facts: JobFacts,
    *,
    api_server: Sequence[str],
    grace_seconds: int,
    first: bool = True,
    checkpoint: str | None = None,
    restores: Mapping[int, str] | None = None,
    avoid_nodes: tuple[str, ...] = (),
    credentials: Mapping[str, Any] | None = None,
    endpoint_token: str = "",
    coordinator: int = 1,
) -> LaunchSpec:
    """Return everything that the objects of the launch are made of.

    Args:
        template: the pod of the role's first learner.
        api_server: addresses of the cluster's API server, which learners never reach.
        grace_seconds: what `grace_of` returns for the role.
        first: whether this is the first launch of its role.
        checkpoint: what the training goes on from.
        restores: the checkpoint of each learner that has one of its own.
        avoid_nodes: nodes on which the role was lost before.
        credentials: what the sidecar may use, by service.
        endpoint_token: of the sidecar's MLflow endpoint.
        coordinator: the number of the coordinator's pod, for learners that join and leave.
    """
    without_data = runs_own_program(launch.role)
    closed = (*policies.METADATA_NETWORKS, *settings.closed_networks, *api_server)
    outside = policies.outside_of(launch.namespace, (settings.s3_endpoint, settings.mlflow_uri), closed)
    return LaunchSpec(
        launch,
        template,
        _config(settings, manifest, launch, facts, first=first, checkpoint=checkpoint),
        sidecar_image=settings.sidecar_image,
        grace_seconds=grace_seconds,
        node_lost_seconds=settings.node_lost_seconds,
        tolerations=settings.tolerations,
        avoid_nodes=avoid_nodes,
        claims=() if without_data else claims.claims_of(facts.data),
        cache_claim=settings.node_cache_claim if not without_data and _uses_cache(facts) else None,
        restores=restores or {},
        outside=outside if settings.network_policy else None,
        disruption_budget=settings.disruption_budget,
        placement=placement_of(settings, manifest, launch, avoid_nodes),
        credentials=credentials or {},
        endpoint_token=endpoint_token,
        coordinator=coordinator,
    )


def _mounts(data: Sequence[Mapping[str, Any]]) -> tuple[contract.DataMount, ...]:
    """Return the data sets that the sidecar provides; claims are mounted by the cluster."""
    return tuple(
        contract.DataMount(d["tree"], d["mount"], d["mode"], d["source"], d.get("bucket"), d.get("secret"))
        if "mode" in d
        else contract.DataMount(d["tree"], d["mount"])
        for d in data
        if "claim" not in d
    )


def _results_to(manifest: Manifest, launch: Launch) -> contract.ResultsBucket | None:
    """Return where learners write their results to besides the platform's store."""
    if manifest.results is None:
        return None
    target = manifest.results.parsed()
    prefix = "/".join(part for part in (target.key.strip("/"), launch.job_id) if part)
    return contract.ResultsBucket(target.bucket, prefix, manifest.results.secret, manifest.results.to)


def _uses_cache(facts: JobFacts) -> bool:
    """Return whether the job has packages, or data that is not copied into each pod."""
    return facts.environment_tree is not None or any("mode" in d for d in facts.data)


def _cache_bytes(settings: Settings, manifest: Manifest) -> int:
    """Return the limit of the cache that the learner's data is kept in."""
    if settings.node_cache_claim is not None:
        return settings.node_cache_bytes
    disk = manifest.resources.disk_bytes
    return settings.stream_cache_bytes if disk is None else min(settings.stream_cache_bytes, disk // 4)


def _config(
    settings: Settings,
    manifest: Manifest,
    launch: Launch,
    facts: JobFacts,
    *,
    first: bool,
    checkpoint: str | None,
) -> contract.PodConfig:
    """Return the configuration of the first learner's sidecar."""
    inputs = JobFacts() if runs_own_program(launch.role) else facts
    if launch.role == BUILD_ROLE:  # it reads the code's file of requirements
        inputs = JobFacts(code_tree=facts.code_tree)
    return contract.PodConfig(
        job_id=launch.job_id,
        tenant=launch.tenant,
        role=launch.role,
        attempt=launch.attempt,
        learner=1,
        learners=launch.membership.size,
        launcher=processes_in(manifest, launch.role) is not None,
        bucket=settings.bucket,
        prefix=launch.tenant,
        mlflow_run_id=facts.run_id,
        mlflow_experiment_id=facts.experiment_id,
        code_tree=inputs.code_tree,
        data=_mounts(inputs.data),
        cache_bytes=_cache_bytes(settings, manifest) if _uses_cache(inputs) else 0,
        environment_tree=inputs.environment_tree,
        params=dict(manifest.params),
        restore_checkpoint=checkpoint,
        init_job=facts.init[0] if facts.init and launch.role == TRAIN_ROLE else None,
        init_checkpoint=facts.init[1] if facts.init and launch.role == TRAIN_ROLE else None,
        adopt=manifest.checkpoints.adopt if manifest.checkpoints and launch.role == TRAIN_ROLE else None,
        collect=collectors_in(manifest, launch.role),
        # An evaluation or an export would add series of one point, which MLflow shows before the training's.
        system_metrics_seconds=contract.SYSTEM_METRICS_SECONDS if launch.role == TRAIN_ROLE else 0.0,
        results_to=_results_to(manifest, launch) if launch.role == TRAIN_ROLE else None,
        own_model=manifest.export is not None and manifest.export.trust_code,
        restore_results=launch.role not in (TRAIN_ROLE, *BEFORE_ROLES) and not compares(launch.role),
        results_job=facts.results_job,
        inputs=facts.inputs,
        restore_own_results=launch.role == TRAIN_ROLE and not first,
        in_place=launch.in_place,
        members=launch.membership.size if launch.in_place else 0,
        result_learners=None if launch.role == TRAIN_ROLE else facts.result_learners,
    )
