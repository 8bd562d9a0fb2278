"""Debian's packages of the engine and of debootstrap, unpacked into the cache; nothing is installed into the system.

A machine that has the programs already fetches nothing. Called by `engine` and `base`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from containers.places import ContainersError, Places, only_one

# docker-proxy publishes ports, the rest is what dockerd starts.
PROGRAMS = ("dockerd", "containerd", "containerd-shim-runc-v2", "runc", "docker-proxy", "docker-init", "docker")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def release() -> str:
    """`debian-12-x86_64`: what packages fit."""
    values = dict(
        line.strip().split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    return "-".join(values.get(k, "").strip('"') for k in ("ID", "VERSION_ID")) + f"-{platform.machine()}"


def program_environment(root: Path | None, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which the unpacked programs find each other and their libraries."""
    environment = dict(os.environ if inherited is None else inherited)
    path = environment.get("PATH", SYSTEM_PATH)
    if root is None:
        return {**environment, "PATH": f"{path}:{SYSTEM_PATH}"}
    libraries = [root / "usr" / "lib", root / "lib"]
    triplet = f"{platform.machine()}-linux-gnu"
    folders = [str(folder / triplet) for folder in libraries]
    return {
        **environment,
        "PATH": ":".join(
            [str(root / "bin-first"), *(str(root / "usr" / d) for d in ("bin", "sbin")), path, SYSTEM_PATH]
        ),
        "LD_LIBRARY_PATH": ":".join(folders),
        "XTABLES_LIBDIR": str(root / "usr" / "lib" / triplet / "xtables"),
        "DEBOOTSTRAP_DIR": str(root / "usr" / "share" / "debootstrap"),
    }


def unpacked(places: Places, name: str, needed: tuple[str, ...], packages: tuple[str, ...]) -> Path | None:
    """The folder that `packages` and what they need were unpacked into; None when the system has `needed` itself."""
    if all(shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") for program in needed):
        return None
    target = places.cache / "packages" / f"{name}-{release()}"
    with only_one(places.cache / "packages" / f".{name}.lock"):
        if not (target / ".complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            _fetch(places, target, packages)
            _link_iptables(target)
            (target / ".complete").touch()
    return target


def _fetch(places: Places, target: Path, packages: tuple[str, ...]) -> None:
    apt = places.cache / "apt"
    for folder in (apt / "lists" / "partial", apt / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::State::Lists={apt / 'lists'}", "-o", f"Dir::Cache={apt}", "-o", "Debug::NoLocking=1"]
    options += ["-o", "APT::Sandbox::User=root", "-o", "APT::Install-Recommends=0"]
    _run(["apt-get", "-qq", *options, "update"], "apt's list of packages could not be fetched")
    listed = _run(
        ["apt-get", "-qq", "--print-uris", "--yes", *options, "install", *packages],
        f"apt cannot install {', '.join(packages)}",
    )
    plan = [line.split()[1].split("_")[0] for line in listed.splitlines() if line.startswith("'")]
    # Also those that the system has now: it may lose them while this folder stays.
    names = sorted({*plan, *packages})
    debs = apt / "debs"
    shutil.rmtree(debs, ignore_errors=True)
    debs.mkdir()
    _run(["apt-get", "-qq", *options, "download", *names], f"{', '.join(names)} could not be downloaded", cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(deb), str(target)], f"{deb.name} could not be unpacked")
    shutil.rmtree(apt)


def _link_iptables(root: Path) -> None:
    """The name by which the engine calls it is a link that a package's installation would make."""
    first = root / "bin-first"
    first.mkdir(parents=True, exist_ok=True)
    for name in ("iptables", "ip6tables"):
        if (root / "usr" / "sbin" / "xtables-nft-multi").exists():
            (first / name).symlink_to("../usr/sbin/xtables-nft-multi")


def _run(command: list[str], failure: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode != 0:
        raise ContainersError(f"{failure}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
