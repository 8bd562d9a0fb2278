"""A Docker Engine for tests: one that answers already, or Debian's, started here with everything below one folder.

It changes nothing of the machine: no packet filter rules, no forwarding, no service; builds use the host's network,
containers meet on bridges of their own and are published on loopback by a proxy process. `leftovers` removes what stays
after a kill. Called by `__main__` and by tests.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from containers import leftovers
from containers.packages import PROGRAMS, SYSTEM_PATH, program_environment, unpacked
from containers.places import ContainersError, Places, only_one

PACKAGES = ("docker.io", "containerd", "runc", "tini", "iptables")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
DISK_BYTES = 10**9  # its programs and a small container; `build` asks for what images need


@dataclass(frozen=True)
class Engine:
    """An engine that answers, and how to talk to it."""

    environment: Mapping[str, str] = field(repr=False)
    cli: str
    own: bool  # started here, so it ends with `images-down`

    @property
    def host(self) -> str:
        return self.environment["DOCKER_HOST"]

    def docker(
        self,
        *arguments: str,
        check: bool = True,
        stdin: IO[bytes] | None = None,
        timeout_seconds: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs the client to its end; its output is captured. Raises ContainersError with what it said."""
        done = subprocess.run(
            [self.cli, *arguments],
            env=dict(self.environment),
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
        if check and done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip())[-3000:]
            raise ContainersError(f"docker {' '.join(arguments[:2])} ended with {done.returncode}: {said}")
        return done

    def has_image(self, name: str) -> bool:
        return self.docker("image", "inspect", name, check=False).returncode == 0


def missing(
    environment: Mapping[str, str] | None = None,
    *,
    system: Callable[[], str] = platform.system,
    user: Callable[[], int] = os.geteuid,
) -> list[str]:
    """What keeps an engine from running here, in words; empty when nothing does."""
    environment = os.environ if environment is None else environment
    if answering(environment) is not None:
        return []
    found = []
    if system() != "Linux":
        found.append(f"Linux (this is {system()}); or name a running engine in DOCKER_HOST")
        return found
    if user() != 0:
        found.append("root, to start an engine; or a running one in DOCKER_HOST")
    if shutil.which("dockerd", path=f"{environment.get('PATH', '')}:{SYSTEM_PATH}") is None:
        absent = [p for p in ("apt-get", "dpkg-deb") if shutil.which(p) is None]
        if absent:
            found.append(
                f"Debian or Ubuntu, whose packages the engine is taken from ({' and '.join(absent)} not found)"
            )
    filesystems = Path("/proc/filesystems")
    if filesystems.exists() and "overlay" not in filesystems.read_text():
        found.append("a kernel with overlayfs (modprobe overlay)")
    return found


def answering(environment: Mapping[str, str]) -> Engine | None:
    """The engine of DOCKER_HOST or of the client's default address, if it answers."""
    cli = shutil.which("docker", path=environment.get("PATH"))
    if cli is None:
        return None
    host = environment.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    engine = Engine({**environment, "DOCKER_HOST": host}, cli, own=False)
    return engine if _answers(engine) else None


def running(places: Places) -> Engine | None:
    """The engine of this state folder, if it answers."""
    if not places.socket.exists():
        return None
    engine = _own(places)
    return engine if _answers(engine) else None


def find_or_start(places: Places) -> Engine:
    """Raises ContainersError naming everything that is missing."""
    given = answering(os.environ)
    if given is not None:
        return given
    needs = missing()
    if needs:
        raise ContainersError("No Docker Engine answers, and none can be started. Needed: " + "; ".join(needs) + ".")
    with only_one(places.state / "lock"):
        engine = running(places)
        if engine is None:
            leftovers.end_processes(places)
            leftovers.unmount(places)
            engine = _start(places)
    return engine


def end(places: Places) -> None:
    """Ends the engine of this state folder with all its containers, and removes whatever it made."""
    if places.state.exists():
        with only_one(places.state / "lock"):
            engine = running(places)
            if engine is not None:
                _remove_containers(engine)
            _stop(places)
            leftovers.remove_all(places)


def _own(places: Places) -> Engine:
    environment = program_environment(unpacked(places, "engine", PROGRAMS, PACKAGES))
    environment["DOCKER_HOST"] = f"unix://{places.socket}"
    # The client of the same package; a newer one on the PATH would ask for builders that this engine lacks.
    root = unpacked(places, "engine", PROGRAMS, PACKAGES)
    cli = str(root / "usr" / "bin" / "docker") if root else shutil.which("docker", path=environment["PATH"])
    assert cli is not None
    environment["DOCKER_BUILDKIT"] = "0"
    environment["DOCKER_CONFIG"] = str(places.state / "client")
    return Engine(environment, cli, own=True)


def _start(places: Places) -> Engine:
    free = shutil.disk_usage(places.state).free
    if free < DISK_BYTES:
        raise ContainersError(f"{places.state} has {free / 1e9:.1f} GB free; the engine needs {DISK_BYTES / 1e9:.0f}.")
    engine = _own(places)
    # Of an engine that was killed: its containerd may be a zombie by now, which the new one would take for alive.
    for stale in (places.pid_file, places.socket, places.run / "containerd" / "containerd.pid"):
        stale.unlink(missing_ok=True)
    (places.state / "client").mkdir(exist_ok=True)
    configuration = places.state / "daemon.json"  # not the machine's own /etc/docker/daemon.json
    configuration.write_text("{}\n")
    with places.log.open("ab") as log:
        process = subprocess.Popen(
            _arguments(places, configuration),
            env=dict(engine.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not _answers(engine):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(places.log.read_text(errors="replace").splitlines()[-8:])
            raise ContainersError(f"The Docker Engine did not start; its log {places.log} ends with:\n{tail}")
        time.sleep(0.2)
    return engine


def _arguments(places: Places, configuration: Path) -> list[str]:
    return [
        *("dockerd", "--config-file", str(configuration), "--host", f"unix://{places.socket}"),
        *("--data-root", str(places.data), "--exec-root", str(places.run), "--pidfile", str(places.pid_file)),
        *("--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs"),
        *("--cgroup-parent", f"/{places.cgroup}", "--group", "root"),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false"),
        # Processes that may not lower their score cannot start containers otherwise.
        *("--oom-score-adjust", Path("/proc/self/oom_score_adj").read_text().strip()),
        *("--default-address-pool", "base=172.30.0.0/16,size=24", "--log-level", "warn"),
    ]


def _answers(engine: Engine) -> bool:
    try:
        asked = engine.docker("version", "--format", "{{.Server.Version}}", check=False, timeout_seconds=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _remove_containers(engine: Engine) -> None:
    """The engine itself does it best; what it cannot do within the time, `leftovers` does."""
    commands: list[Sequence[str]] = []
    containers = engine.docker("ps", "--all", "--quiet", check=False).stdout.split()
    if containers:
        commands.append(("rm", "--force", *containers))
    commands.append(("network", "prune", "--force"))
    for command in commands:
        try:
            engine.docker(*command, check=False, timeout_seconds=60)
        except subprocess.TimeoutExpired:
            return


def _stop(places: Places) -> None:
    pid = leftovers.daemon(places)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while leftovers.daemon(places) == pid and time.monotonic() < deadline:
        time.sleep(0.1)
