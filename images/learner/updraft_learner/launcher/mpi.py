"""Run a command in the first learner, and let `mpirun` in it start processes in all learners, without SSH.

`mpirun` starts a daemon on each host with the program that its settings name, `ssh` by default. Here that is the
launcher itself (`rsh`): it passes the host's name and the daemon's command line to the leader, the launcher of the
first learner. The other learners' launchers (agents) have connected to the leader, and run what it passes on. Agents
and leader prove to each other that they know the token of the launch, which only its learners have.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping

from . import proctree
from .mpi_wire import END, ERROR, EXIT, OUTPUT, RUN, Wire, WireError, greet_agent, greet_leader
from .output import say
from .processes import GIVE_UP_SECONDS
from .signals import StopRequest

TOKEN = "MLFLOW_TRACKING_TOKEN"
CONNECT_SECONDS = 1.0  # between two tries
SAY_SECONDS = 30.0
STOPPED = 128 + signal.SIGTERM
# Learners on one machine look like several hosts to Open MPI, whose transports and collectives through shared memory
# then crash or wait for ever.
ON_ONE_MACHINE = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_coll": "^acoll,han,sm,xhc"}
# A rank's own variables: these are of a learner, and MPI sets its own.
OF_ONE_PROCESS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def run(stop: StopRequest, command: str, slots: int, stop_seconds: float) -> int:
    """Run the launcher of one learner; return its exit code. `slots`: processes of each learner."""
    proctree.become_subreaper()
    number, learners = int(os.environ["LEARNER_ID"]), int(os.environ["NUM_LEARNERS"])
    children = Children(stop, stop_seconds)
    stop.last_resort(lambda: children.signal(signal.SIGKILL), stop_seconds + GIVE_UP_SECONDS)
    token = os.environ[TOKEN].encode()
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if is_loopback(address[0]):
        for name, value in ON_ONE_MACHINE.items():
            os.environ.setdefault(name, value)
    try:
        if number > 1:
            return Agent(number, token, address, children, stop).run()
        return Leader(learners, token, address, children, stop, slots).run(command)
    finally:
        proctree.kill_rest()


class Children:
    """The commands that run in this learner. SIGTERM is passed on to them, and SIGKILL follows."""

    def __init__(self, stop: StopRequest, stop_seconds: float) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, args=(stop, stop_seconds), daemon=True).start()

    def start(self, command: str, environment: Mapping[str, str], *, piped: bool) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE if piped else None
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env=dict(environment),
            start_new_session=True,
        )
        with self._lock:
            self._running[child.pid] = child
        return child

    def ended(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for a child's end; return its exit code as a shell does."""
        code = child.wait()
        with self._lock:
            self._running.pop(child.pid, None)
        return 128 - code if code < 0 else code

    def signal(self, number: int) -> None:
        with self._lock:
            leaders = list(self._running)
        for leader in leaders:
            told = proctree.told_of_sigterm(leader) if number == signal.SIGTERM else [leader]
            for pid in told:
                if number == signal.SIGKILL:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, number)
                else:
                    proctree.kill(pid, number)

    def _watch(self, stop: StopRequest, stop_seconds: float) -> None:
        while not stop.received:
            time.sleep(0.1)
        self.signal(signal.SIGTERM)
        time.sleep(stop_seconds)
        self.signal(signal.SIGKILL)


class Agent:
    """The launcher of a learner that runs what the leader passes on."""

    def __init__(self, number: int, token: bytes, address: tuple[str, int], children: Children, stop: StopRequest):
        self._number, self._token, self._address = number, token, address
        self._children, self._stop = children, stop

    def run(self) -> int:
        wire = self._connect()
        if wire is None:
            return STOPPED
        try:
            while True:
                kind, session, content = wire.receive()
                if kind == END:
                    return STOPPED if self._stop.received else 0
                if kind == RUN:
                    arguments = (wire, session, content.decode("utf-8", "surrogateescape"))
                    threading.Thread(target=self._serve, args=arguments, daemon=True).start()
        except (OSError, WireError) as exc:
            if self._stop.received:
                return STOPPED
            say(f"the first learner is gone ({exc}); this learner ends")
            self._children.signal(signal.SIGKILL)
            return 1

    def _connect(self) -> Wire | None:
        began = said = time.monotonic()
        while not self._stop.received:
            try:
                wire = Wire(socket.create_connection(self._address, timeout=CONNECT_SECONDS * 10))
                greet_leader(wire, self._token, self._number)
                return wire
            except (OSError, WireError) as exc:
                if time.monotonic() - said > SAY_SECONDS:
                    said = time.monotonic()
                    say(f"learner {self._number} waits for the first learner since {said - began:.0f} s ({exc})")
                time.sleep(CONNECT_SECONDS)
        return None

    def _serve(self, wire: Wire, session: int, command: str) -> None:
        serve(wire, session, command, self._children)


class Leader:
    """The launcher of the first learner: it runs the command, and passes on what `mpirun` starts elsewhere."""

    def __init__(
        self,
        learners: int,
        token: bytes,
        address: tuple[str, int],
        children: Children,
        stop: StopRequest,
        slots: int,
    ) -> None:
        self._learners, self._token, self._address = learners, token, address
        self._children, self._stop, self._slots = children, stop, slots
        self._agents: dict[int, Wire] = {}
        self._sessions: dict[int, Wire] = {}
        self._next = 0
        self._lock = threading.Lock()

    def run(self, command: str) -> int:
        with listener(self._address) as network:
            threading.Thread(target=self._accept, args=(network,), daemon=True).start()
            if not self._wait():
                return STOPPED
            folder = tempfile.mkdtemp(prefix="updraft-mpi-")
            try:
                path = os.path.join(folder, "leader")
                local = socket.socket(socket.AF_UNIX)
                local.bind(path)
                local.listen(64)
                threading.Thread(target=self._answer, args=(local,), daemon=True).start()
                environment = {**os.environ, **self._settings(folder, path)}
                for name in OF_ONE_PROCESS:
                    environment.pop(name, None)
                return self._children.ended(self._children.start(command, environment, piped=False))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                with self._lock:
                    for wire in self._agents.values():
                        with contextlib.suppress(OSError):
                            wire.send(END, 0, b"")

    def _accept(self, network: socket.socket) -> None:
        while True:
            try:
                connection, _ = network.accept()
            except OSError:
                return
            threading.Thread(target=self._follow, args=(connection,), daemon=True).start()

    def _follow(self, connection: socket.socket) -> None:
        """Follow an agent: what its commands print, and their ends."""
        wire = Wire(connection)
        try:
            connection.settimeout(30)
            number = greet_agent(wire, self._token)
            connection.settimeout(None)
            with self._lock:
                if not 1 < number <= self._learners or number in self._agents:
                    return
                self._agents[number] = wire
            while True:
                kind, session, content = wire.receive()
                with self._lock:
                    asker = self._sessions.get(session)
                if asker is not None:
                    with contextlib.suppress(OSError):
                        asker.send(kind, 0, content)
        except (OSError, WireError):
            return

    def _wait(self) -> bool:
        """Wait for all agents; return False if the learner is stopped before that."""
        began = said = time.monotonic()
        while not self._stop.received:
            with self._lock:
                missing = [n for n in range(2, self._learners + 1) if n not in self._agents]
            if not missing:
                return True
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                say(f"waits for learner {', '.join(map(str, missing[:20]))} since {said - began:.0f} s")
            time.sleep(0.05)
        return False

    def _answer(self, local: socket.socket) -> None:
        while True:
            try:
                connection, _ = local.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(Wire(connection),), daemon=True).start()

    def _pass_on(self, asker: Wire) -> None:
        """Carry out what one `rsh` asks for: `HOST`, a zero byte, and the command."""
        with contextlib.suppress(OSError, WireError):
            kind, _, content = asker.receive()
            host, _, command = content.partition(b"\0")
            number = _number_of(host)
            if kind != RUN or not 1 <= number <= self._learners:
                asker.send(ERROR, 0, b"updraft: no learner is called %s\n" % host[:100])
                asker.send(EXIT, 0, b"255")
                return
            if number == 1:
                serve(asker, 0, command.decode("utf-8", "surrogateescape"), self._children)
                return
            with self._lock:
                self._next += 1
                session, agent = self._next, self._agents[number]
                self._sessions[session] = asker
            agent.send(RUN, session, command)

    def _settings(self, folder: str, path: str) -> dict[str, str]:
        """Return the settings of Open MPI 4 and 5, MPICH and Intel MPI: the hosts, and what starts a daemon on one."""
        names = [f"learner-{number}" for number in range(1, self._learners + 1)]
        words = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0]), "--rsh", path]
        agent = _file(folder, "rsh", f'#!/bin/sh\nexec {" ".join(map(shlex.quote, words))} "$@"\n')
        os.chmod(agent, 0o700)
        slots = _file(folder, "hosts", "".join(f"{name} slots={self._slots}\n" for name in names))
        hydra = _file(folder, "hydra-hosts", "".join(f"{name}:{self._slots}\n" for name in names))
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
        return {
            **root,
            "PRTE_MCA_plm_ssh_agent": agent,
            "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
            "PRTE_MCA_prte_default_hostfile": slots,
            "OMPI_MCA_plm_rsh_agent": agent,
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            "OMPI_MCA_orte_default_hostfile": slots,
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": agent,
            "HYDRA_HOST_FILE": hydra,
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
            "I_MPI_HYDRA_HOST_FILE": hydra,
        }


def serve(wire: Wire, session: int, command: str, children: Children) -> None:
    """Run a command and send what it prints, then its exit code."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_ONE_PROCESS}
    child = children.start(command, environment, piped=True)
    assert child.stdout is not None
    assert child.stderr is not None
    copies = [
        threading.Thread(target=_copy, args=(wire, session, kind, pipe.fileno()), daemon=True)
        for kind, pipe in ((OUTPUT, child.stdout), (ERROR, child.stderr))
    ]
    for copy in copies:
        copy.start()
    code = children.ended(child)
    for copy in copies:
        copy.join(5)  # a process that was left behind may hold the pipe
    with contextlib.suppress(OSError):
        wire.send(EXIT, session, str(code).encode())


def rsh(path: str, words: list[str]) -> int:
    """Do what `ssh HOST COMMAND...` does, through the leader that listens at `path`."""
    while words and words[0].startswith("-"):  # options of ssh, such as -x
        words = words[1:]
    if len(words) < 2:
        sys.stderr.write("updraft: usage: rsh HOST COMMAND...\n")
        return 255
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    wire = Wire(connection)
    wire.send(RUN, 0, words[0].encode() + b"\0" + " ".join(words[1:]).encode("utf-8", "surrogateescape"))
    try:
        while True:
            kind, _, content = wire.receive()
            if kind == EXIT:
                return int(content)
            os.write(1 if kind == OUTPUT else 2, content)
    except (OSError, WireError):
        return 255


def listener(address: tuple[str, int]) -> socket.socket:
    """Listen for the other learners: on the loopback address if they are there, else on all addresses."""
    host, port = address
    if is_loopback(host):
        return socket.create_server((host, port), backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)


def is_loopback(host: str) -> bool:
    """Return whether all learners are on this machine, as on the local node."""
    return host.startswith("127.")


def _copy(wire: Wire, session: int, kind: int, source: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            content = os.read(source, 65536)
            if not content:
                return
            wire.send(kind, session, content)


def _number_of(host: bytes) -> int:
    name, _, number = host.partition(b"-")
    return int(number) if name == b"learner" and number.isdigit() and len(number) < 6 else 0


def _file(folder: str, name: str, content: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(content)
    return path
