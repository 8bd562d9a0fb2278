"""/possible and /planned: say what of a manifest cannot run here, and what it would create, before it is submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from updraft.api.access import CallerDep, check_owner
from updraft.api.bodies import possible_body
from updraft.api.deadline import import_client
from updraft.api.depends import PartsDep
from updraft.api.errors import manifest_fields
from updraft.api.parts import Parts
from updraft.api.routes.manifests import read, refusals
from updraft.controller import queueing
from updraft.controller.planned import planned_objects
from updraft.controller.programs import git_proxies
from updraft.exceptions import DataError, NotFoundError, RefusedError
from updraft.kubernetes.base_pod import base_pod_outside_a_task
from updraft.kubernetes.launch import Program
from updraft.kubernetes.objects import Launch
from updraft.manifest import Manifest, ManifestError, image_of, named_secrets
from updraft.schemas import FieldError, Planned, PlannedRole, PossibleBody, Validation

LOCAL_NODE = "updraft.dev/local"  # label of a node that has its images from a catalogue and pulls none

router = APIRouter(tags=["manifests"])


@router.post(
    "/possible",
    summary="What of a manifest cannot run here: image, size, data, secrets",
    openapi_extra=possible_body.documented,
)
def possible(
    request: Request, parts: PartsDep, caller: CallerDep, body: Annotated[PossibleBody, Depends(possible_body)]
) -> Validation:
    """Check whether the platform can run the manifest, and everything that /validate checks. Needs the right to start
    jobs, because the answer reveals what exists. Stores nothing."""
    try:
        loaded = read(body.manifest, parts)
    except ManifestError as exc:
        return Validation(valid=False, errors=tuple(manifest_fields(exc)))
    manifest = loaded.manifest
    wrong = refusals(manifest, parts)
    if wrong is not None:
        return Validation(valid=False, errors=tuple(manifest_fields(wrong)), warnings=loaded.warnings)
    check_owner(request.app.state.policy, caller, manifest.tenant, f"tenant {manifest.tenant!r}")
    errors = tuple(
        FieldError(field=field, message=message) for field, message in _lacks(parts, manifest, set(body.secrets))
    )
    return Validation(valid=not errors, errors=errors, warnings=loaded.warnings)


@router.post(
    "/planned",
    summary="What a job of a manifest would create in the cluster",
    openapi_extra=possible_body.documented,
)
def planned(
    request: Request, parts: PartsDep, caller: CallerDep, body: Annotated[PossibleBody, Depends(possible_body)]
) -> Planned:
    """Return the Kubernetes objects that a job of this manifest would create, made by the functions that the launch
    uses. Needs the right to start jobs. Creates nothing and reveals no secret's content. Answers 413 if the objects are
    larger than 16 MB.

    Values that are known only at the launch are placeholders such as `<job>`. Left out are the labels by which Airflow
    names the task that launches, and owner references, which are set once the first pod exists. Attempts have the
    numbers of a job that loses nothing. The pods are what this api-server's `pod_mutation_hook` and proxy variables
    make of them: give the api-server the same Airflow settings and environment as the workers, which launch.
    """
    manifest = read(body.manifest, parts).manifest
    if (wrong := refusals(manifest, parts)) is not None:
        raise wrong
    check_owner(request.app.state.policy, caller, manifest.tenant, f"tenant {manifest.tenant!r}")
    api_server = parts.deadline.call("cluster", parts.cluster.addresses) if parts.settings.network_policy else ()

    import_client("cluster")  # imports KubernetesPodOperator too, needed even without a request to the cluster

    def template(launch: Launch, program: Program) -> dict[str, Any]:
        return base_pod_outside_a_task(launch, program, parts.settings.kubernetes_conn_id)

    made = planned_objects(parts.settings, manifest, template, api_server=api_server, proxies=git_proxies(os.environ))
    return Planned(roles=tuple(PlannedRole(role=role, objects=tuple(each)) for role, each in made.items()))


def _lacks(parts: Parts, manifest: Manifest, coming: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each field that asks for something that does not exist here, and what to do about it."""
    nodes = parts.deadline.call("cluster", parts.cluster.nodes)
    image = image_of(manifest, parts.settings.framework_images)
    known = [_catalogue(node) for node in nodes]
    if known and all(images is not None for images in known):
        there = {name for images in known for name in images or ()}
        if image.removeprefix("docker.io/") not in there:
            field = "image" if manifest.image is not None else "framework"
            names = ", ".join(sorted(there))
            yield field, f"{field}: the local node has no image {image!r} and pulls none; write one of {names}"
    tenants = parts.deadline.call("ledger", parts.tenancy).tenants
    if nodes and (never := queueing.why_never(manifest, nodes, parts.settings, tenants)) is not None:
        named = never.startswith(("resources", "pod."))
        yield (
            ("pod.node_selector" if never.startswith("pod.") else "resources"),
            (never if named else f"resources: {never}"),
        )
    if manifest.pod is not None:
        learners = manifest.resources.learners
        named_by_pod = parts.deadline.call(
            "cluster", lambda: parts.cluster.lacking(manifest.tenant, manifest.pod, learners)
        )
        yield from ((field, f"{field}: {problem}") for field, problem in named_by_pod)
    yield from _missing_secrets(parts, manifest, coming)
    shared = [number for number, item in enumerate(manifest.data) if item.needs_node_cache]
    if shared:
        tenant = manifest.tenant
        problem = parts.deadline.call("cluster", lambda: parts.cluster.node_cache_problem(tenant))
        if problem is not None:
            yield from ((f"data[{number}].mode", f"data[{number}].mode: {problem}") for number in shared)
    for number, item in enumerate(manifest.data):
        field, source = f"data[{number}].source", item.parsed()
        try:
            if source.kind == "pvc":
                claim = source.claim
                parts.deadline.call(
                    "cluster",
                    lambda claim=claim: parts.cluster.check_claim(  # type: ignore[misc]
                        manifest.tenant, claim, manifest.resources.learners
                    ),
                )
            elif source.kind == "s3" and item.secret is None:
                written = item.source
                parts.deadline.call("storage", lambda written=written: parts.check_data(written, manifest.tenant))  # type: ignore[misc]
        except (DataError, RefusedError, NotFoundError) as exc:
            yield field, f"{field}: {str(exc).removeprefix('data.source: ')}"


def _missing_secrets(parts: Parts, manifest: Manifest, coming: set[str]) -> Iterator[tuple[str, str]]:
    named = named_secrets(manifest) - coming
    if not named:
        return
    there = parts.deadline.call("cluster", lambda: parts.cluster.list_secrets(manifest.tenant))
    for name in sorted(named - set(there)):
        yield (
            "secrets",
            f"secrets: {name!r} does not exist; `updraft secrets set {name}` creates it, `updraft secrets list` shows "
            "those that exist",
        )


def _catalogue(node: dict[str, object]) -> set[str] | None:
    """Return the images that a local node can have; None for a node that pulls images."""
    labels = (node.get("metadata") or {}).get("labels") or {}  # type: ignore[attr-defined]
    images = (node.get("status") or {}).get("images")  # type: ignore[attr-defined]
    if labels.get(LOCAL_NODE) != "true" or images is None:
        return None
    return {name for image in images for name in image["names"]}
