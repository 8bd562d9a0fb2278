"""Start and end a test cluster, and its parts one by one.

`up` leaves a cluster whose nodes are ready and whose DNS answers, or says what failed; `down` leaves nothing, whatever
was interrupted before. Called by `python tests/cluster` and by tests.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from kubecluster import archives, building, certificates, cgroups, configuration, network, objects
from kubecluster.building import PAUSE, Programs
from kubecluster.images import PAUSE_IMAGE, PYTHON_IMAGE, image_names, load_image
from kubecluster.layout import MARK_VARIABLE, STATE_VARIABLE, ClusterError, Layout, refuse_hidden
from kubecluster.machines import CONTROL, NODES, cgroup_of, read_record, spawn_on, start
from kubecluster.needs import install_packages, marked_environment, missing_packages, this_machine
from kubecluster.network import Network, choose
from kubecluster.parts import Part, all_parts
from updraft.stack.layout import write_private
from updraft.stack.processes import identify, kill

UP = "up"  # the record of a running `up`
READY_SECONDS = 90.0
POLL_SECONDS = 0.1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Cluster:
    """A cluster that has been started, for whoever works with it."""

    layout: Layout
    programs: Programs
    network: Network

    def part(self, name: str) -> Part:
        found = {part.name: part for part in all_parts(self.layout, self.programs, self.network)}
        if name not in found:
            raise ClusterError(f"The cluster has no part {name}; it has {', '.join(found)}.")
        return found[name]

    def dead_parts(self) -> list[Part]:
        parts = all_parts(self.layout, self.programs, self.network)
        return [part for part in parts if read_record(self.layout, part.name) is None]

    def stop_part(self, name: str) -> None:
        """Kill one program, as a crash would; what it has started goes on, containers of a kubelet for instance."""
        identity = read_record(self.layout, self.part(name).name)
        process = None if identity is None else identity.process()
        kill([] if process is None else [process])

    def start_part(self, name: str) -> None:
        """Start it again and wait until it does its work."""
        part = self.part(name)
        if read_record(self.layout, name) is None:
            spawn_on(self.layout, part.machine, part.name, part.command)
        wait_ready(self.layout, part)

    def stop_machine(self, name: str) -> None:
        """Everything on it ends at once, as when it loses its power."""
        identity = read_record(self.layout, name)
        process = None if identity is None else identity.process()
        kill([] if process is None else [process])

    def start_node(self, name: str) -> None:
        """A node that was stopped comes back, with what it had on its disk."""
        start(self.layout, name, self.programs, self.network)
        for part in self.dead_parts():
            if part.machine == name:
                self.start_part(part.name)

    def load_image(self, archive: Path) -> list[str]:
        return load_image(archive, self.layout)

    def load_python_image(self, say: Say = print) -> str:
        """An image with python3 and /bin/sh, on all nodes. Returns its name."""
        lacking = tuple(node for node in NODES if PYTHON_IMAGE not in image_names(self.layout, node))
        if lacking:
            archive = archives.python_archive(self.layout, PYTHON_IMAGE, marked_environment(self.layout), say)
            load_image(archive, self.layout, lacking)
        return PYTHON_IMAGE


def running(layout: Layout) -> Cluster | None:
    """The cluster that `up` has brought up, unless a machine of it is gone."""
    try:
        digest = layout.ready_file.read_text().strip()
        addresses = Network(**json.loads(layout.network_file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    if any(read_record(layout, machine) is None for machine in (CONTROL, *NODES)):
        return None
    return Cluster(layout, Programs(layout.cache / digest), addresses)


def up(layout: Layout, say: Say) -> Cluster:
    """A running cluster: this one if it is there, its dead programs started again; else a new one."""
    refuse_hidden(layout.root, "state folder", STATE_VARIABLE)
    refuse_hidden(layout.cache, "cache folder", "XDG_CACHE_HOME")
    problems = this_machine(layout).problems()
    lacking = cgroups.missing()
    if lacking and not problems:
        problems.append(f"It needs control groups with the controllers {', '.join(lacking)}, which are not mounted.")
    if problems:
        raise ClusterError("The test cluster cannot run here.\n  " + "\n  ".join(problems))
    with _locked(layout):
        found = running(layout)
        current = building.built(layout)
        if found is not None and current is not None and found.programs == current:
            for part in found.dead_parts():
                say(f"{part.name} had ended and is started again")
                found.start_part(part.name)
            say("already running")
            return found
        if _remains(layout):
            say("ending what an earlier start left")
            _end(layout, say)
        return _start(layout, say)


def _start(layout: Layout, say: Say) -> Cluster:
    for folder in (layout.root, layout.records, layout.logs, layout.audit_log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    layout.root.chmod(0o711)
    own = identify(os.getpid())
    assert own is not None
    write_private(layout.records / f"{UP}.json", json.dumps({"name": UP, **asdict(own)}))
    environment = marked_environment(layout)
    install_packages(missing_packages(), layout.log_of("apt"), say)
    programs = building.build(layout, environment, say)
    addresses = choose(layout, network.routes())
    write_private(layout.network_file, json.dumps(asdict(addresses)))
    certificates.write(layout, programs, addresses)
    configuration.write_all(layout, addresses)
    say(f"machines {CONTROL}, {', '.join(NODES)} on {addresses.machines_range}")
    for machine in (CONTROL, *NODES):
        start(layout, machine, programs, addresses)
    pause = layout.root / "pause.tar"
    archives.write_program_archive(pause, PAUSE_IMAGE, programs.path(PAUSE))
    cluster = Cluster(layout, programs, addresses)
    waiting: list[Part] = []
    for part in all_parts(layout, programs, addresses):
        if part.name.startswith("kubelet"):
            cluster_images(cluster, part.machine, pause, waiting)
        spawn_on(layout, part.machine, part.name, part.command)
        if part.name in ("etcd", "kube-apiserver"):  # what follows would only fail and try again
            wait_ready(layout, part)
            say(f"{part.name} is ready")
            if part.name == "kube-apiserver":
                objects.create_first(layout, addresses)
        else:
            waiting.append(part)
    for part in waiting:
        wait_ready(layout, part)
        say(f"{part.name} is ready")
    pause.unlink()
    _write_kubectl(layout, programs)
    (layout.records / f"{UP}.json").unlink()
    _give_to_caller(layout)
    write_private(layout.ready_file, programs.digest + "\n")
    return cluster


def cluster_images(cluster: Cluster, node: str, pause: Path, waiting: list[Part]) -> None:
    """The sandbox image, before the node's kubelet begins: it would try to pull it."""
    runtime = next(part for part in waiting if part.machine == node)
    wait_ready(cluster.layout, runtime)
    load_image(pause, cluster.layout, (node,))


def wait_ready(layout: Layout, part: Part) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not part.ready():
        problem = None
        if read_record(layout, part.name) is None:
            problem = "it ended"
        elif time.monotonic() > deadline:
            problem = f"it was not ready within {READY_SECONDS:.0f} s"
        if problem:
            log = layout.log_of(part.name)
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise ClusterError(f"{part.name} did not start: {problem}. Its log {log} ends with:\n{tail}")
        time.sleep(POLL_SECONDS)


def _write_kubectl(layout: Layout, programs: Programs) -> None:
    """kubectl of the cluster's version, which means this cluster unless KUBECONFIG says otherwise."""
    own = layout.root / "bin" / "kubectl"  # not root's cache, into which who called sudo cannot look
    own.parent.mkdir(exist_ok=True)
    own.unlink(missing_ok=True)
    program = programs.path("kubectl").resolve()
    try:
        own.hardlink_to(program)
    except OSError:  # on another disk
        shutil.copy2(program, own)
    kubeconfig, quoted = (str(path).replace("'", "'\\''") for path in (layout.kubeconfig, own))
    text = f"#!/bin/sh\nKUBECONFIG=\"${{KUBECONFIG:-'{kubeconfig}'}}\" exec '{quoted}' \"$@\"\n"
    text = text.replace(f"'{kubeconfig}'", kubeconfig)  # inside double quotes
    write_private(layout.kubectl, text)
    layout.kubectl.chmod(0o755)


def _give_to_caller(layout: Layout) -> None:
    """Who called sudo may use the cluster without it."""
    if os.environ.get("SUDO_UID", "").isdigit() and os.environ.get("SUDO_GID", "").isdigit():
        os.chown(layout.kubeconfig, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))


def down(layout: Layout, say: Say) -> None:
    """End and remove everything of this cluster, whatever state it is in. Raises ClusterError where something stays."""
    # A running `up` holds the lock: it is ended first, and can start nothing more.
    starting = read_record(layout, UP)
    if starting is not None and starting.pid != os.getpid():
        say("ending a start that is under way")
        kill([process for process in [starting.process()] if process is not None])
    with _locked(layout):
        if not _remains(layout):
            say("nothing was running")
        else:
            _end(layout, say)
            say("all of it is gone")
    layout.lock_file.unlink(missing_ok=True)


def _remains(layout: Layout) -> bool:
    return layout.root.exists() or bool(members(layout)) or bool(cgroups.remains(layout.name)) or network.device(layout)


def _end(layout: Layout, say: Say) -> None:
    # A process that was being started while another was killed shows up late: look until nothing is found twice.
    quiet = 0
    deadline = time.monotonic() + 30.0
    while quiet < 2:
        found = members(layout)
        kill(found)
        quiet = 0 if found else quiet + 1
        if time.monotonic() > deadline:
            raise ClusterError(f"Processes {[p.pid for p in found]} of the test cluster do not end.")
        time.sleep(0.05)
    for machine in NODES:
        cgroups.remove(cgroup_of(layout, machine))
    left = cgroups.remove(layout.name)
    if left:
        raise ClusterError(f"The control groups {', '.join(map(str, left))} could not be removed.")
    if not network.remove_device(layout):
        raise ClusterError(f"The network device {layout.name} could not be removed; see `ip link show {layout.name}`.")
    say("its processes have ended; removing its files")
    building.remove_unfinished(layout)
    if layout.root.exists():
        shutil.rmtree(layout.root)


def members(layout: Layout) -> list[psutil.Process]:
    """Every process that was started for this cluster, except this one and those that it descends from.

    The first processes of its machines are among them, with whose end the kernel ends all that runs there.
    """
    spared = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = process.pid not in spared and process.environ().get(MARK_VARIABLE) == str(layout.root)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """One command at a time per cluster."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with layout.lock_file.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("waiting for another command of this cluster", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
