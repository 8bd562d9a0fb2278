"""Where the container tools keep things: caches that may stay, and the engine's state, which `images-down` removes.

Paths and errors only. Called by everything in this folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STATE_VARIABLE = "UPDRAFT_CONTAINERS_STATE"


class ContainersError(Exception):
    """What was asked cannot be done; the message says why and what to do."""


@dataclass(frozen=True)
class Places:
    """`cache` holds what is expensive to make and named after its content; `state` belongs to one engine."""

    cache: Path
    state: Path

    @property
    def data(self) -> Path:
        """Images, containers and volumes of the engine."""
        return self.state / "data"

    @property
    def run(self) -> Path:
        return self.state / "run"

    @property
    def socket(self) -> Path:
        return self.state / "docker.sock"

    @property
    def pid_file(self) -> Path:
        return self.state / "dockerd.pid"

    @property
    def log(self) -> Path:
        return self.state / "dockerd.log"

    @property
    def archives(self) -> Path:
        """`docker save` of built images."""
        return self.state / "archives"

    @property
    def cgroup(self) -> str:
        """Name of the control group that all containers of this engine are in."""
        return f"updraft-{abs(hash_of(str(self.state))):08x}"


def hash_of(text: str) -> int:
    """The same in every process, unlike `hash`."""
    value = 0
    for byte in text.encode():
        value = (value * 31 + byte) % 2**32
    return value


def find_places(environment: Mapping[str, str] | None = None) -> Places:
    environment = os.environ if environment is None else environment
    base = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "updraft" / "containers"
    named = environment.get(STATE_VARIABLE)
    state = Path(named).expanduser().absolute() if named else base / "engine"
    # The engine's own sockets lie up to 31 characters below; Linux takes 107.
    if len(str(state)) > 70:
        raise ContainersError(f"{STATE_VARIABLE}: {state} is too long a path for sockets; use one of 70 characters")
    return Places(cache=base, state=state)


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Two callers wait for each other; the lock goes with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
