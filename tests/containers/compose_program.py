"""Docker Compose 2: the client's plug-in if it is there, else built once from its Go module and kept in the cache.

The module's files name the version and the digest of every source. Called by `__main__` and by tests.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from containers.engine import Engine
from containers.places import ContainersError, Places, only_one

MODULE = Path(__file__).parent / "compose"
PACKAGE = "github.com/docker/compose/v2"
OLDEST = (2, 20)

Say = Callable[[str], None]


def find_or_build(engine: Engine, places: Places, say: Say) -> list[str]:
    """The command that stands for `docker compose`."""
    if not engine.own:
        asked = engine.docker("compose", "version", "--short", check=False)
        number = re.match(r"v?(\d+)\.(\d+)", asked.stdout.strip())
        if asked.returncode == 0 and number and tuple(map(int, number.groups())) >= OLDEST:
            return [engine.cli, "compose"]
    return [str(built(places, say))]


def missing() -> list[str]:
    """What keeps Compose from being built, in words."""
    return [] if shutil.which("go") else ["Go 1.24 or later, to build Docker Compose; or an engine with Compose 2.20"]


def built(places: Places, say: Say) -> Path:
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "tool.go"):
        digest.update((MODULE / name).read_bytes())
    target = places.cache / "compose" / digest.hexdigest()[:16] / "docker-compose"
    with only_one(places.cache / "compose" / ".lock"):
        if target.exists():
            return target
        if needs := missing():
            raise ContainersError(f"Docker Compose cannot be had. Needed: {needs[0]}.")
        say("Building Docker Compose from its Go module (once; about two minutes) ...")
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".part")
        flags = f"-s -w -X {PACKAGE}/internal.Version={version()}"
        done = subprocess.run(
            ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(unfinished), f"{PACKAGE}/cmd"],
            cwd=MODULE,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -mod=readonly".strip()},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ContainersError(f"Docker Compose could not be built: {done.stderr.strip()[-2000:]}")
        unfinished.replace(target)
    return target


def version() -> str:
    found = re.search(rf"{re.escape(PACKAGE)} (v\S+)", (MODULE / "go.mod").read_text())
    assert found is not None
    return found.group(1)
