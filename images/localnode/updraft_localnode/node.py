"""Build the local node and run it in one asyncio loop until a signal comes. Called by `__main__`.

After SIGTERM or SIGINT it accepts no more requests, ends all containers (SIGTERM, then SIGKILL) and exits. After
SIGKILL the containers continue, and the next local node with the same state folder adopts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import uvicorn

from updraft_learner.catalogue import load_catalogue
from updraft_localnode.builds import Builds
from updraft_localnode.connections import Connections
from updraft_localnode.errors import LocalNodeError
from updraft_localnode.events import EventRecorder
from updraft_localnode.faultlab import FaultLab
from updraft_localnode.faultstate import FaultState
from updraft_localnode.kubelet import Kubelet, Timing
from updraft_localnode.lifecycle import GarbageCollector
from updraft_localnode.nodes import NodePool
from updraft_localnode.partition import Partition
from updraft_localnode.ports import PortBook
from updraft_localnode.processes import ProcessTable
from updraft_localnode.resources import Amounts
from updraft_localnode.runtime import Runtime
from updraft_localnode.scheduler import NodeSpec, Scheduler
from updraft_localnode.server import VERSION, Api, create_app
from updraft_localnode.store import ResourceStore

logger = logging.getLogger(__name__)
NODE_NAME = "updraft-local"


@dataclass(frozen=True)
class NodeConfig:
    """The options of the command line."""

    state_dir: Path
    token: str = field(repr=False)
    catalogue: Path
    images_dir: Path
    port: int = 0
    host: str = "127.0.0.1"
    cpu_milli: int = 1000 * (os.cpu_count() or 1)
    memory_bytes: int = psutil.virtual_memory().total
    gpus: Sequence[tuple[str, int]] = ()
    timing: Timing = field(default_factory=Timing)
    shutdown_grace_seconds: float = 5.0
    builder: str = ""  # command that builds the environment of an image; if empty, users build it


def node_specs(config: NodeConfig) -> list[NodeSpec]:
    """Return one node; with several types of GPU, one per type, among which CPUs and memory are shared out evenly."""
    count = max(len(config.gpus), 1)
    cpu, memory = config.cpu_milli // count, config.memory_bytes // count
    if len(config.gpus) <= 1:
        gpu_type, gpus = config.gpus[0] if config.gpus else (None, 0)
        return [NodeSpec(NODE_NAME, Amounts(cpu, memory, gpus), gpu_type)]
    return [NodeSpec(f"{NODE_NAME}-{kind}", Amounts(cpu, memory, gpus), kind) for kind, gpus in config.gpus]


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Lock the state folder: two local nodes must not share one. The lock ends with the process."""
    with (state_dir / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise LocalNodeError(f"state-dir: {state_dir} is in use by another local node; stop it first") from exc
        yield


def listen(host: str, port: int) -> socket.socket:
    """Listen on the port. Raises LocalNodeError if it is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)  # clients may connect as soon as the address is printed
    except OSError as exc:
        listener.close()
        raise LocalNodeError(f"port: {port} on {host} cannot be used ({exc.strerror}); give a free port") from exc
    return listener


class _Server(uvicorn.Server):
    """A server that leaves signals to this module: containers have to end before the loop does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(config: NodeConfig, listener: socket.socket) -> None:
    store = ResourceStore(config.state_dir / "objects.sqlite")
    events = EventRecorder(store, NODE_NAME)
    processes, ports, away = ProcessTable(), PortBook(store), Partition(store)
    faults, wires = FaultState(), Connections()
    known = sorted(load_catalogue(config.catalogue).images)
    nodes = NodePool(store, events, away, node_specs(config), VERSION, images=known)
    kubelet = Kubelet(
        store=store,
        events=events,
        processes=processes,
        ports=ports,
        away=away,
        faults=faults,
        catalogue_path=config.catalogue,
        images_dir=config.images_dir,
        pods_dir=config.state_dir / "pods",
        has_gpus=bool(config.gpus),
        timing=config.timing,
        builds=Builds(config.builder),
    )
    runtime = Runtime(kubelet)
    server = _Server(
        uvicorn.Config(
            create_app(Api(kubelet, runtime, FaultLab(faults, runtime, nodes, wires), config.token)),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,
        )
    )
    wires.attach(lambda: server.server_state.connections)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, processes.child_ended)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    parts = {
        "api": server.serve(sockets=[listener]),
        "scheduler": Scheduler(store, events).run(),
        "nodes": nodes.run(),
        "runtime": runtime.run(),
        "processes": processes.watch(),
        "memory": processes.guard_memory(),
        "garbage": GarbageCollector(store, events, ports, away).run(),
    }
    tasks = {asyncio.create_task(part, name=name) for name, part in parts.items()}
    stopping = asyncio.create_task(stop.wait())
    print(f"local node: http://{config.host}:{listener.getsockname()[1]}", flush=True)
    try:
        ended, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended - {stopping}:
            logger.error("part %s of the local node ended: %r", task.get_name(), task.exception())
        failed = bool(ended - {stopping})
        server.should_exit = True
        if not failed:  # a bug here must not end the pods: the next local node adopts them
            await runtime.shutdown(config.shutdown_grace_seconds)
            nodes.find_all()  # report what ended on lost nodes: nothing runs there any more
        await asyncio.wait([t for t in tasks if t.get_name() == "api"], timeout=5)
    finally:
        for task in (*tasks, stopping):
            task.cancel()
        await asyncio.gather(*tasks, stopping, return_exceptions=True)
        store.close()
    if failed:
        raise LocalNodeError("a part of the local node failed; see its log")


def run(config: NodeConfig) -> None:
    """Block until the node is stopped.

    Raises:
        CatalogueError: the catalogue of images is wrong or absent.
        LocalNodeError: the node cannot start, or a part of it fails.
    """
    os.umask(0o077)
    config.state_dir.mkdir(parents=True, exist_ok=True)
    (config.state_dir / "pods").mkdir(exist_ok=True)
    load_catalogue(config.catalogue)
    with _alone(config.state_dir):
        listener = listen(config.host, config.port)
        with listener:
            asyncio.run(_serve(config, listener))
