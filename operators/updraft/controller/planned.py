"""Show what a job of a manifest would create in the cluster, before the job is submitted.

The same functions build these objects as at a launch. Values that are known only at the launch are placeholders in
angle brackets. Secrets are references; the content of the launch's own secret is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from updraft.controller.prepare import data_limit_bytes
from updraft.controller.programs import command_of, program_of
from updraft.controller.records import planned_launch
from updraft.controller.specs import JobFacts, grace_of, spec_of
from updraft.exceptions import LimitError
from updraft.kubernetes.launch import LaunchSpec, Program, objects_of
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.objects import Manifest as KubernetesObject
from updraft.lifecycle.membership import Membership
from updraft.lifecycle.workflow import BEFORE_ROLES, BUILD_ROLE, EVALUATE_ROLE, EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.manifest import parse_source

if TYPE_CHECKING:
    from updraft.manifest import Data, Manifest
    from updraft.manifest.sources import Source
    from updraft.settings import Settings

JOB, RUN, EXPERIMENT, CODE = "<job>", "<mlflow-run>", "<mlflow-experiment>", "<code>"
ENVIRONMENT = "<environment>"
HIDDEN = "<made by the platform>"
# Size as JSON. Each learner repeats the manifest's content: a request of 500 kB could ask for 500 MB.
LIMIT_BYTES = 16_000_000


def planned_objects(
    settings: Settings,
    manifest: Manifest,
    template: Callable[[Launch, Program], KubernetesObject],
    *,
    api_server: Sequence[str],
    proxies: Mapping[str, str],
) -> dict[str, list[KubernetesObject]]:
    """Return the objects of each role's first launch, by role in the order of the workflow, as they are created.

    The roles of a gate are left out: they depend on the champion of that time. The numbers of attempts are those of a
    job that loses nothing. The role `prepare` is launched only if the store does not have the code and the judged data
    yet.

    Args:
        template: makes the pod of a role's first learner, with its program.
        api_server: addresses of the cluster's API server.
        proxies: environment variables with which git reaches the outside.

    Raises:
        ManifestError: the platform has no image for a role.
        LimitError: the objects are larger than LIMIT_BYTES.
    """
    planned: dict[str, list[KubernetesObject]] = {}
    facts = JobFacts(
        RUN,
        EXPERIMENT,
        CODE if manifest.code is not None else None,
        [_data(number, item) for number, item in enumerate(manifest.data)],
        ENVIRONMENT if manifest.environment is not None else None,
    )
    total_bytes = 0
    number = 0  # of the attempt; it rises over all roles except these two, which count their own
    for role in (PREPARE_ROLE, BUILD_ROLE, TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE):
        if (command := command_of(manifest, role)) is None:
            continue
        number += role not in BEFORE_ROLES
        launch = planned_launch(settings, manifest, role, max(1, number), JOB, manifest.tenant)
        program = program_of(settings, manifest, launch, command, run_id=RUN, experiment_id=EXPERIMENT, proxies=proxies)
        spec = spec_of(
            settings,
            manifest,
            launch,
            template(launch, program),
            facts,
            api_server=api_server,
            grace_seconds=grace_of(settings, role, _made_limits(settings, manifest)),
        )
        total_bytes += _pods_bytes(spec)
        if total_bytes > LIMIT_BYTES:
            raise LimitError(
                f"the pods of this job are more than {LIMIT_BYTES / 1e6:g} MB of text; ask with fewer learners, whose "
                "pods differ in their numbers only"
            )
        planned[role] = [_without_content(each) for each in objects_of(spec).in_order()]
    return planned


def _pods_bytes(spec: LaunchSpec) -> int:
    """Return the approximate size of the launch's pods; only one of them is made for it."""
    one = replace(spec, launch=replace(spec.launch, membership=Membership.first(1)))
    (pod,) = objects_of(one).pods
    return spec.launch.membership.size * len(json.dumps(pod))


def _made_limits(settings: Settings, manifest: Manifest) -> list[int]:
    """Return the limits in bytes of what the `prepare` pod makes of repositories and archives, if the store has none of
    it."""
    limits = [data_limit_bytes(settings, item) for item in manifest.data if _is_made(item.parsed())]
    if manifest.code is not None and _is_made(parse_source(str(manifest.code), git=True)):
        limits.append(settings.code_limit_bytes)
    return limits


def _is_made(source: Source) -> bool:
    return source.kind == "git" or (source.is_archive and source.kind != "pvc")


def _data(number: int, item: Data) -> dict[str, str]:
    """Return a data set in the form in which it is recorded once it is staged."""
    source = item.parsed()
    if source.kind == "pvc":
        return {"claim": source.claim, "path": source.key, "mount": item.mount}
    planned = {"tree": f"<data-{number}>", "mount": item.mount}
    if item.how == "copy":
        return planned
    bucket = {"bucket": source.bucket} if item.is_listed else {}
    secret = {"secret": item.secret} if item.is_listed and item.secret else {}
    return {**planned, "mode": item.how, "source": item.source, **bucket, **secret}


def _without_content(made: KubernetesObject) -> KubernetesObject:
    if made["kind"] != "Secret":
        return made
    return {**made, "stringData": dict.fromkeys(made["stringData"], HIDDEN)}
