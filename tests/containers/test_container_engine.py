"""The engine that tests start: what it changes on the machine, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from containers import base, leftovers
from containers import engine as engines
from containers.engine import Engine
from containers.places import Places

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]


def traces(places: Places) -> dict[str, list[str]]:
    """Whatever of an engine can be seen on the machine."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "processes": [name for _, name in leftovers._processes_of(places)],
        "mounts": [m for m in mounts if m.startswith(f"{places.state}/")],
        "groups": [str(g) for g in leftovers._groups(places)],
        "files": sorted(p.name for p in places.state.iterdir() if p.name != "lock"),
    }


def bridges() -> set[str]:
    return {p.parent.name for p in Path("/sys/class/net").glob("*/bridge")}


def start_something(engine: Engine, places: Places) -> None:
    """A container with a network, a volume and a published port."""
    base.ensure(engine, places, print)
    engine.docker("network", "create", "meeting")
    engine.docker(
        *("run", "--detach", "--network", "meeting", "--volume", "kept:/kept", "--publish", "127.0.0.1::80"),
        *(base.MINIMAL, "sleep", "1000"),
    )


@pytest.mark.parametrize("killed", [False, True], ids=["asked", "killed"])
def test_nothing_of_an_engine_is_left(private_engine: Places, killed: bool) -> None:
    before, filters = bridges(), packet_filter()
    engine = engines.find_or_start(private_engine)
    assert engine.host == f"unix://{private_engine.socket}"
    assert packet_filter() == filters
    start_something(engine, private_engine)
    assert len(bridges() - before) == 1
    assert packet_filter() == filters
    if killed:
        pid = leftovers.daemon(private_engine)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    engines.end(private_engine)
    assert traces(private_engine) == {"processes": [], "mounts": [], "groups": [], "files": []}
    assert bridges() == before
    assert not orphans()


def test_an_engine_that_was_killed_starts_again_with_what_it_had(private_engine: Places) -> None:
    engine = engines.find_or_start(private_engine)
    base.ensure(engine, private_engine, print)
    pid = leftovers.daemon(private_engine)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    engine = engines.find_or_start(private_engine)
    assert engine.has_image(base.PYTHON)
    assert leftovers.daemon(private_engine) != pid


def packet_filter() -> str:
    """The host's rules, as far as this machine can list them."""
    try:
        listed = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True)
    except FileNotFoundError:
        return Path("/proc/net/ip_tables_names").read_text() if Path("/proc/net/ip_tables_names").exists() else ""
    return listed.stdout


def orphans() -> list[str]:
    """Programs that publish a container's port, without an engine above them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if line.split(b"\0")[0].endswith(b"docker-proxy") and parent == "1":
                found.append(line.replace(b"\0", b" ").decode())
    return found
