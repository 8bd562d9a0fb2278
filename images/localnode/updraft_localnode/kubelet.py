"""Hold what the workers of all pods share: the store, the processes, the images, the ports, and the timing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from updraft_learner.catalogue import CatalogueError, is_ready, load_catalogue
from updraft_localnode.builds import Builds
from updraft_localnode.environment import ContainerFolders, ContainerLaunch, launch_of, path_variable
from updraft_localnode.errors import Json
from updraft_localnode.events import EventRecorder
from updraft_localnode.faultstate import FaultState
from updraft_localnode.partition import Partition
from updraft_localnode.ports import PortBook, gang_owner
from updraft_localnode.processes import ProcessTable
from updraft_localnode.scheduler import gpu_indices
from updraft_localnode.store import ResourceStore
from updraft_localnode.translate import Translation
from updraft_localnode.volumes import link_nested, mounts_of

SMALL_DISKS = "small-disks"  # name of a fact in the store


@dataclass(frozen=True)
class Timing:
    """Kubernetes' own waiting times, in one place so that tests can shorten them."""

    backoff_seconds: float = 10.0  # first pause before a restart; doubles
    backoff_limit_seconds: float = 300.0
    backoff_reset_seconds: float = 600.0  # a container that ran this long restarts with the first pause
    image_seconds: float = 2.0  # interval between two checks for a missing image
    sidecar_grace_seconds: float = 2.0  # the least time of a sidecar after SIGTERM


@dataclass(frozen=True)
class ImageLack:
    """The reason why an image is missing. `building`: its environment is being built."""

    text: str
    building: bool = False


@dataclass(frozen=True)
class Kubelet:
    store: ResourceStore
    events: EventRecorder
    processes: ProcessTable
    ports: PortBook
    away: Partition
    faults: FaultState
    catalogue_path: Path
    images_dir: Path
    pods_dir: Path
    has_gpus: bool
    timing: Timing = field(default_factory=Timing)
    builds: Builds = field(default_factory=lambda: Builds(""))

    def pod_folder(self, uid: str) -> Path:
        """Return the pod's folder; its name is short, because sockets in TMPDIR have short names only."""
        return self.pods_dir / uid.replace("-", "")[:12]

    @property
    def claims_dir(self) -> Path:
        """Return the folder of the folders that pods may mount by name, see `claims`."""
        return self.pods_dir.parent / "claims"

    def container_folder(self, uid: str, container: str, restart_count: int) -> Path:
        return self.pod_folder(uid) / "c" / container / str(restart_count)

    @property
    def disk_bytes(self) -> int | None:
        """Return the size of the disks that new pods get; None: they share the node's."""
        text = self.store.fact(SMALL_DISKS)
        return None if text is None else int(text)

    def image_lack(self, image: str, pod_uid: str) -> ImageLack | None:
        """Return why a container of this image cannot start yet; None if it can. Starts to build what can be built."""
        if (problem := self.faults.pull_problem(pod_uid, image)) is not None:
            return ImageLack(problem)
        try:
            entry = load_catalogue(self.catalogue_path).get(image)
        except CatalogueError as exc:
            return ImageLack(str(exc))
        if entry.package is None or is_ready(self.images_dir, image):
            return None
        if self.builds.possible:
            text, building = self.builds.ask(image)
            return ImageLack(text, building=building)
        return ImageLack(
            f"image {image!r} has no environment on this node yet; build it with: updraft images build {image}"
        )

    def translation(self, pod: Json, container: Json) -> Translation:
        meta, spec = pod["metadata"], pod["spec"]
        namespace = meta["namespace"]
        mounts = mounts_of(container, self.pod_folder(meta["uid"]) / "v")
        link_nested(mounts)
        containers = [*(spec.get("initContainers") or []), *spec["containers"]]
        declared = [int(p["containerPort"]) for c in containers for p in c.get("ports") or []]
        services: dict[str, Mapping[int, int]] = {}
        for service in self.store.items("services", namespace):
            name = service["metadata"]["name"]
            wanted = [int(p["port"]) for p in service["spec"].get("ports") or []]
            services[name] = self.ports.ports(gang_owner(namespace, name), wanted)
        pod_ports = self.ports.ports(meta["uid"], declared)
        return Translation(mounts, pod_ports, namespace, services, spec.get("subdomain"))

    def launch(self, pod: Json, container: Json) -> ContainerLaunch:
        """Make the container's private folders. Raises NotYetError."""
        meta = pod["metadata"]
        folder = self.pod_folder(meta["uid"])
        home, temporary = folder / "h" / container["name"], folder / "t" / container["name"]
        for private in (home, temporary):
            private.mkdir(parents=True, exist_ok=True)
        entry = load_catalogue(self.catalogue_path).get(container["image"])
        gpus = tuple(gpu_indices(pod).get(container["name"], [])) if self.has_gpus else None
        launch = launch_of(
            container,
            pod,
            lambda name: self.store.find("secrets", meta["namespace"], name),
            self.translation(pod, container),
            ContainerFolders(home, temporary, path_variable(entry, self.images_dir, container["image"]), gpus),
            os.environ,
        )
        launch.cwd.mkdir(parents=True, exist_ok=True)
        return launch
