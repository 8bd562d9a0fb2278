"""What a job of a manifest would create in the cluster, before it is submitted.

Made by the same functions as a launch. What is known only at the launch has a placeholder in angle brackets; secrets
are references, and the content of the launch's own secret is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from updraft.guardian.pods import config_of, grace_of
from updraft.guardian.programs import command_of, git_proxies, program_of
from updraft.guardian.records import planned_launch
from updraft.kubernetes import policies
from updraft.kubernetes.claims import Claim
from updraft.kubernetes.launch import LaunchSpec, objects_of, with_program
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.objects import Manifest as KubernetesObject
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE

if TYPE_CHECKING:
    from updraft.manifest import Data, Manifest
    from updraft.settings import Settings

JOB, RUN, EXPERIMENT, CODE = "<job>", "<mlflow-run>", "<mlflow-experiment>", "<code>"
HIDDEN = "<made by the platform>"


def planned_objects(
    manifest: Manifest,
    settings: Settings,
    base: Callable[[Launch], KubernetesObject],
    closed: Sequence[str],
) -> dict[str, list[KubernetesObject]]:
    """Return the objects of each role's first launch, by role in the order of the workflow, as they are created.

    `base` makes the base pod of a launch; `closed` are networks that learners never reach, beside the settings' own.
    The role `prepare` is launched only if the store does not have the code and the judged data yet.
    Raises ManifestError if the platform has no image for a role.
    """
    planned: dict[str, list[KubernetesObject]] = {}
    number = 0  # of the attempt; it rises over all roles but `prepare`, which is counted by itself
    for role in (PREPARE_ROLE, TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE):
        if (command := command_of(manifest, role)) is None:
            continue
        number += role != PREPARE_ROLE
        launch = planned_launch(manifest, role, max(1, number), JOB, manifest.tenant, settings)
        program = program_of(
            manifest, launch, command, settings, run_id=RUN, experiment_id=EXPERIMENT, proxies=git_proxies(os.environ)
        )
        data = [_data(number, item) for number, item in enumerate(manifest.data)]
        config = config_of(
            manifest,
            launch,
            settings,
            run_id=RUN,
            experiment_id=EXPERIMENT,
            code_tree=CODE if manifest.code is not None else None,
            data=data,
        )
        urls = (settings.s3_endpoint, settings.mlflow_uri)
        outside = policies.outside_of(
            launch.namespace, urls, (*policies.METADATA_NETWORKS, *settings.closed_networks, *closed)
        )
        without_inputs = role in (EXPORT_ROLE, PREPARE_ROLE)
        spec = LaunchSpec(
            launch,
            with_program(base(launch), program),
            config,
            sidecar_image=settings.sidecar_image,
            grace_seconds=grace_of(role, (), settings),
            node_lost_seconds=settings.node_lost_seconds,
            tolerations=settings.tolerations,
            claims=()
            if without_inputs
            else tuple(Claim(d["claim"], d["path"], d["mount"]) for d in data if "claim" in d),
            outside=outside if settings.network_policy else None,
            disruption_budget=settings.disruption_budget,
        )
        planned[role] = [_without_content(each) for each in objects_of(spec).in_order()]
    return planned


def _data(number: int, item: Data) -> dict[str, str]:
    """As it is recorded once it is staged."""
    source = item.parsed()
    if source.kind == "pvc":
        return {"claim": source.claim, "path": source.key, "mount": item.mount}
    return {"tree": f"<data-{number}>", "mount": item.mount}


def _without_content(made: KubernetesObject) -> KubernetesObject:
    if made["kind"] != "Secret":
        return made
    return {**made, "stringData": dict.fromkeys(made["stringData"], HIDDEN)}
