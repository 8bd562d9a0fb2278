"""Make all objects of a launch from one value, the `LaunchSpec`.

Pure: the `LaunchSpec` contains everything that decides what a pod, a policy or a service looks like.
`KubernetesPodOperator` builds its template, the pod of the role's first learner, from a `Program`
(`kubernetes/base_pod.py`). `objects_of` makes the gang from it, with the objects beside its pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from updraft.kubernetes import objects, policies
from updraft.kubernetes.claims import Claim, with_cache, with_claims
from updraft.kubernetes.objects import Launch, Manifest
from updraft.kubernetes.placement import Placement, placed
from updraft.kubernetes.pod_section import PodExtras
from updraft.taints import Toleration
from updraft_learner.contract import PodConfig


@dataclass(frozen=True)
class Program:
    """The program's container of one role, as the job's manifest asks for it.

    Args:
        command: A line of shell.
        requests: The requested amounts by resource, in Kubernetes' notation.
        limits: The greatest amounts that it may use.
        environment: Entries in API form; secrets are references.
        node_selector: Labels that its node must have.
        tolerations: Taints that it tolerates besides those of its devices.
        extras: What only the manifest's section `pod` asks for.
    """

    image: str
    command: str
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    environment: Sequence[Manifest]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Toleration] = ()
    extras: PodExtras = field(default_factory=PodExtras)


@dataclass(frozen=True)
class LaunchSpec:
    """Everything that the objects of one launch are made from.

    Args:
        template: The pod of the role's first learner, with its program.
        config: The configuration of the first learner's sidecar; the others differ in number and checkpoint.
        restores: The checkpoint of each learner that resumes from another one than in `config`.
        outside: What learners may reach besides each other; None: no network policy.
        credentials: The sidecar's credentials, by service.
        endpoint_token: The token of the sidecar's MLflow endpoint.
        cache_claim: The claim of the node's cache, for launches with packages, or data that is mounted or streamed.
        placement: The size of the learners' shared memory, and which nodes are near each other.
        coordinator: The number of the coordinator's pod, for a launch whose learners join and leave.
    """

    launch: Launch
    template: Mapping[str, Any]
    config: PodConfig
    sidecar_image: str
    grace_seconds: int
    node_lost_seconds: int
    tolerations: tuple[Toleration, ...] = ()
    avoid_nodes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    cache_claim: str | None = None
    restores: Mapping[int, str] = field(default_factory=dict)
    outside: policies.Outside | None = None
    disruption_budget: bool = False
    credentials: Mapping[str, Any] = field(default_factory=dict)
    endpoint_token: str = ""
    placement: Placement = field(default_factory=Placement)
    coordinator: int = 1


@dataclass(frozen=True)
class LaunchObjects:
    """The objects of one launch, each in API form. `pods` are those of the learners."""

    secret: Manifest
    pods: Sequence[Manifest]
    coordinator: Manifest | None = None
    policy: Manifest | None = None
    service: Manifest | None = None
    budget: Manifest | None = None

    @property
    def all_pods(self) -> list[Manifest]:
        """Return the pods in the order in which they are created."""
        return [*([] if self.coordinator is None else [self.coordinator]), *self.pods]

    def in_order(self) -> list[Manifest]:
        """Return all of them in the order in which they are created."""
        beside = (self.secret, self.policy, self.service, self.budget)
        return [*(each for each in beside if each is not None), *self.all_pods]


def objects_of(spec: LaunchSpec) -> LaunchObjects:
    """Return the objects of the launch."""
    launch = spec.launch
    pod = objects.learner_pod(
        dict(spec.template),
        spec.config,
        sidecar_image=spec.sidecar_image,
        grace_seconds=spec.grace_seconds,
        node_lost_seconds=spec.node_lost_seconds,
        tolerations=spec.tolerations,
        avoid_nodes=spec.avoid_nodes,
    )
    pod = placed(pod, spec.placement, launch)
    if spec.cache_claim is not None:
        linked = spec.config.environment_tree is not None or any(m.mode == "mount" for m in spec.config.data)
        pod = with_cache(pod, spec.cache_claim, for_program=linked)
    coordinator = None
    if launch.in_place:
        coordinator = objects.coordinator_pod(pod, launch, spec.config, spec.sidecar_image, spec.coordinator)
    return LaunchObjects(
        secret=objects.credentials_secret(launch, spec.credentials, spec.endpoint_token),
        pods=objects.role_to_pods(with_claims(pod, spec.claims), launch, spec.config, restores=spec.restores),
        coordinator=coordinator,
        policy=policies.network_policy(launch, spec.outside) if spec.outside is not None else None,
        service=objects.headless_service(launch) if launch.named else None,
        budget=policies.disruption_budget(launch) if spec.disruption_budget else None,
    )
