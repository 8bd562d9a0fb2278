"""From one value to all objects of a launch: the room in which pods are made.

Pure: everything that decides what a pod, a policy or a service looks like is in the `LaunchSpec`. Its template, the pod
of the role's first learner, is built by `KubernetesPodOperator` from a `Program` (`kubernetes/base_pod.py`);
`objects_of` makes the gang of it, with what stands beside its pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from updraft.kubernetes import objects, policies
from updraft.kubernetes.claims import Claim, with_claims
from updraft.kubernetes.objects import Launch, Manifest
from updraft.taints import Toleration
from updraft_learner.contract import PodConfig


@dataclass(frozen=True)
class Program:
    """The container of one role, as the job's manifest asks for it.

    Args:
        command: a line of shell.
        requests: amounts that are set aside, by resource, as Kubernetes writes them.
        limits: amounts that it may use.
        environment: entries in API form; secrets are references.
        node_selector: labels that its node must have.
        tolerations: taints that it tolerates beside those of its devices.
    """

    image: str
    command: str
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    environment: Sequence[Manifest]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Toleration] = ()


@dataclass(frozen=True)
class LaunchSpec:
    """Everything that the objects of one launch are made of.

    Args:
        template: the pod of the role's first learner, with its program.
        config: of the first learner's sidecar; the others differ in their number and checkpoint.
        restores: the checkpoint of each learner that goes on from another one than the configuration's.
        outside: what learners may reach beside each other; None: no network policy.
        credentials: what the sidecar may use, by service.
        endpoint_token: of the sidecar's MLflow endpoint.
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
    restores: Mapping[int, str] = field(default_factory=dict)
    outside: policies.Outside | None = None
    disruption_budget: bool = False
    credentials: Mapping[str, Any] = field(default_factory=dict)
    endpoint_token: str = ""


@dataclass(frozen=True)
class LaunchObjects:
    """The objects of one launch, each in API form."""

    secret: Manifest
    pods: Sequence[Manifest]
    policy: Manifest | None = None
    service: Manifest | None = None
    budget: Manifest | None = None

    def in_order(self) -> list[Manifest]:
        """Return all of them in the order in which they are created."""
        beside = (self.secret, self.policy, self.service, self.budget)
        return [*(each for each in beside if each is not None), *self.pods]


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
    return LaunchObjects(
        secret=objects.credentials_secret(launch, spec.credentials, spec.endpoint_token),
        pods=objects.role_to_pods(with_claims(pod, spec.claims), launch, spec.config, restores=spec.restores),
        policy=policies.network_policy(launch, spec.outside) if spec.outside is not None else None,
        service=objects.headless_service(launch) if launch.membership.size > 1 else None,
        budget=policies.disruption_budget(launch) if spec.disruption_budget else None,
    )
