"""Base images where none can be pulled: Debian by debootstrap, without Python and with, imported into the engine.

The trees are kept in the cache, named after what they are made of. Called by `build`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from containers.engine import Engine
from containers.packages import program_environment, unpacked
from containers.places import ContainersError, Places, only_one

MIRROR_VARIABLE = "UPDRAFT_DEBIAN_MIRROR"
MIRROR = "http://deb.debian.org/debian"
SECURITY_VARIABLE = "UPDRAFT_DEBIAN_SECURITY_MIRROR"
SECURITY = "http://deb.debian.org/debian-security"
SUITE = "bookworm"
RECIPE = "1"  # raised when what is done below changes
REPOSITORY = "updraft/base"
MINIMAL, PYTHON = f"{REPOSITORY}:minimal", f"{REPOSITORY}:python"
TRIMMED = ("usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "var/cache/apt", "var/log")

Say = Callable[[str], None]


def ensure(engine: Engine, places: Places, say: Say, environment: Mapping[str, str] | None = None) -> None:
    """Both base images are in the engine afterwards, of the current recipe."""
    environment = os.environ if environment is None else environment
    mirror = environment.get(MIRROR_VARIABLE, MIRROR)
    security = environment.get(SECURITY_VARIABLE, SECURITY)
    digest = hashlib.sha256("\0".join([RECIPE, SUITE, mirror, security]).encode()).hexdigest()[:16]
    folder = places.cache / "base" / digest
    with only_one(places.cache / "base" / ".lock"):
        if not (folder / "python.tar").exists():
            say("Making Debian base images with debootstrap (once; about two minutes) ...")
            _make(places, folder, mirror, security)
    for name, file in ((MINIMAL, "minimal.tar"), (PYTHON, "python.tar")):
        label = f"org.opencontainers.image.base.digest={digest}"
        asked = engine.docker(
            *("image", "inspect", name, "--format", '{{index .Config.Labels "org.opencontainers.image.base.digest"}}'),
            check=False,
        )
        if asked.returncode == 0 and asked.stdout.strip() == digest:
            continue
        changes = ["--change", f"LABEL {label}", "--change", "ENV LANG=C.UTF-8", "--change", 'CMD ["bash"]']
        with (folder / file).open("rb") as tree:
            engine.docker("import", *changes, "-", name, stdin=tree)


def _make(places: Places, folder: Path, mirror: str, security: str) -> None:
    if os.geteuid() != 0:
        raise ContainersError(
            "A base image is made by debootstrap, which needs root; run this as root, or set UPDRAFT_BASE_IMAGE and "
            "UPDRAFT_MINIMAL_BASE_IMAGE to images that your engine has or can pull."
        )
    folder.mkdir(parents=True, exist_ok=True)
    environment = program_environment(unpacked(places, "debootstrap", ("debootstrap",), ("debootstrap",)))
    environment |= {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    script = shutil.which("debootstrap", path=environment["PATH"])
    assert script is not None
    with tempfile.TemporaryDirectory(dir=folder, prefix="tree-") as temporary:
        tree = Path(temporary) / "root"
        _run(["sh", script, "--variant=minbase", "--include=ca-certificates", SUITE, str(tree), mirror], environment)
        lines = [f"deb {mirror} {SUITE} main", f"deb {mirror} {SUITE}-updates main"]
        lines.append(f"deb {security} {SUITE}-security main")
        (tree / "etc/apt/sources.list").write_text("\n".join(lines) + "\n")
        (tree / "etc/apt/apt.conf.d/90updraft").write_text('APT::Install-Recommends "0";\nAPT::Sandbox::User "root";\n')
        inside = {k: v for k, v in environment.items() if k in ("PATH", "DEBIAN_FRONTEND", "LC_ALL", "http_proxy")}
        inside["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        _run(["chroot", str(tree), "apt-get", "-qq", "update"], inside)
        _run(["chroot", str(tree), "apt-get", "-qq", "--yes", "upgrade"], inside)
        lists = _trim(tree)
        _pack(tree, folder / "minimal.tar")
        shutil.move(str(lists), tree / "var/lib/apt/lists")
        _run(["chroot", str(tree), "apt-get", "-qq", "--yes", "install", "python3"], inside)
        (tree / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        _trim(tree)
        _pack(tree, folder / "python.tar")


def _trim(tree: Path) -> Path:
    """Removes what no container needs, licences excepted; returns where the lists of packages lie for further use."""
    for name in TRIMMED:
        shutil.rmtree(tree / name, ignore_errors=True)
        (tree / name).mkdir(parents=True)
    for path in (tree / "usr/share/doc").rglob("*"):
        if path.is_file() and path.name != "copyright":
            path.unlink()
    lists = tree.parent / "lists"
    shutil.rmtree(lists, ignore_errors=True)
    shutil.move(str(tree / "var/lib/apt/lists"), lists)
    for name in ("etc/hostname", "etc/machine-id"):  # those of the machine it was made on
        (tree / name).unlink(missing_ok=True)
    (tree / "etc/machine-id").touch()
    return lists


def _pack(tree: Path, target: Path) -> None:
    """Without the name servers of this machine, which debootstrap copied; the engine mounts its own file there."""
    unfinished = target.with_suffix(".part")
    _run(["tar", "--numeric-owner", "--exclude=./etc/resolv.conf", "-C", str(tree), "-cf", str(unfinished), "."], None)
    unfinished.replace(target)


def _run(command: list[str], environment: Mapping[str, str] | None) -> None:
    given = None if environment is None else dict(environment)
    done = subprocess.run(command, env=given, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ContainersError(f"{' '.join(command[:3])} ended with {done.returncode}: {said}")
