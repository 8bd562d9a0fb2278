"""Say how the processes of a learner are started and what is done with their output, and what the network between them
needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from updraft.kubernetes.copied_output import copying_output
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.placement import Placement
from updraft.kubernetes.several import through_launcher
from updraft.lifecycle.workflow import EVALUATE_ROLE, TRAIN_ROLE
from updraft_learner.collectors import TENSORBOARD
from updraft_learner.contract import MEMORY_ENV, SHARED_LEARNERS_ENV, Collector

if TYPE_CHECKING:
    from updraft.manifest import Manifest
    from updraft.settings import Settings


def processes_in(manifest: Manifest, role: str) -> int | None:
    """Return the processes that the launcher starts in each pod of the role; None if it starts none."""
    from updraft.manifest.processes import processes_of

    if role != TRAIN_ROLE or manifest.strategy is not None:
        return None
    return processes_of(manifest.resources) or (1 if manifest.resources.mpi else None)


def shared_memory_of(manifest: Manifest, role: str) -> dict[str, str]:
    """Return the variables that tell a training with `strategy: shared_memory` its number of learners, and the memory
    that its pod has."""
    from updraft.manifest.strategy import shared_learners

    learners = shared_learners(manifest) if role == TRAIN_ROLE else None
    if learners is None:
        return {}
    return {SHARED_LEARNERS_ENV: str(learners), MEMORY_ENV: str(manifest.resources.memory_bytes)}


def started(settings: Settings, manifest: Manifest, role: str, command: str) -> str:
    """Return the command of the role's container: the program's own, or that of the launcher, with what copies its
    output if metrics are taken from it."""
    processes = processes_in(manifest, role)
    if processes is not None:
        cpus, grace_seconds = manifest.resources.cpus, settings.store_grace_seconds
        command = through_launcher(
            command, processes=processes, cpus=cpus, grace_seconds=grace_seconds, mpi=manifest.resources.mpi
        )
    reads_output = any(each.source is None and each.type != TENSORBOARD for each in collectors_in(manifest, role))
    return copying_output(command) if reads_output else command


def collectors_in(manifest: Manifest, role: str) -> tuple[Collector, ...]:
    """Return how the sidecar takes metrics from what the role's program prints or writes."""
    if role not in (TRAIN_ROLE, EVALUATE_ROLE):
        return ()
    return tuple(each.collector() for each in manifest.metrics)


def devices_of(settings: Settings, manifest: Manifest) -> dict[str, str]:
    """Return the devices for RDMA that each learner of a training gets besides its GPUs, by resource."""
    together = manifest.resources.gpus and manifest.resources.learners > 1
    return {name: str(number) for name, number in settings.rdma_resource.items()} if together else {}


def nccl_of(settings: Settings, manifest: Manifest) -> dict[str, str]:
    """Return the site's variables for NCCL, for programs with GPUs."""
    return dict(settings.nccl_env) if manifest.resources.gpus else {}


def placement_of(settings: Settings, manifest: Manifest, launch: Launch, avoid_nodes: Sequence[str] = ()) -> Placement:
    """Return the size of the learners' shared memory, and where they are best placed. Nodes that are avoided may run
    other learners: their preference then stands alone, or Kubernetes would weigh one against the other."""
    shm = manifest.resources.shm_bytes
    return Placement(
        shared_memory_mib=None if shm is None or launch.role != TRAIN_ROLE else -(-shm // 1024**2),
        topology_labels=settings.topology_labels if launch.membership.size > 1 else (),
        beside_learners=None if avoid_nodes or launch.role != TRAIN_ROLE else settings.placement == "pack",
    )
