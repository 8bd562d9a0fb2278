"""Image archives of our own making, for nodes that can pull none: a sandbox image, and one with Python and a shell.

Archives have docker's format (`docker save`). Called by `images` and by tests.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubecluster.building import UNFINISHED
from kubecluster.layout import ClusterError, Layout
from kubecluster.needs import install_packages

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
TEST_PACKAGES = ("python3", "ca-certificates")
USER_ID = 65532
# Not needed to run programs, and a third of the size.
UNNEEDED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
RECIPE = 1  # part of the cached archive's name; another number when this file makes it otherwise


@dataclass(frozen=True)
class Repository:
    """Where Debian's packages come from on this machine, as apt is configured."""

    url: str
    suite: str


def write_archive(target: Path, tag: str, layer: Path, config: Mapping[str, Any]) -> None:
    """An image of one layer, a plain tar file."""
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    body = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = hashlib.sha256(body).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, "w") as archive:
        for file, content_bytes in ((name, body), ("manifest.json", manifest)):
            info = tarfile.TarInfo(file)
            info.size = len(content_bytes)
            archive.addfile(info, io.BytesIO(content_bytes))
        archive.add(layer, "layer.tar")


def write_program_archive(target: Path, tag: str, program: Path) -> None:
    """An image that holds one static program, and runs it."""
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as files:
        info = tarfile.TarInfo(program.name)
        info.size, info.mode = program.stat().st_size, 0o755
        with program.open("rb") as content:
            files.addfile(info, content)
    write_archive(target, tag, layer, {"Entrypoint": [f"/{program.name}"], "User": f"{USER_ID}:{USER_ID}"})
    layer.unlink()


def python_archive(layout: Layout, tag: str, environment: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """An image with python3 and /bin/sh, made by debootstrap from the machine's own package sources, and kept."""
    source = package_source()
    recipe = json.dumps([RECIPE, tag, source.suite, TEST_PACKAGES, UNNEEDED, platform.machine()])
    target = layout.cache / "images" / f"python-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar"
    if target.exists():
        return target
    if shutil.which("debootstrap") is None:
        install_packages(["debootstrap"], layout.log_of("apt"), say)
    say(f"making an image with Python from {source.url} {source.suite}, about a minute; it stays in {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = layout.cache / f"{UNFINISHED}{layout.name}-image"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    root = aside / "root"
    command = ["nice", "-n", "15", "debootstrap", "--variant=minbase", f"--include={','.join(TEST_PACKAGES)}"]
    command += [source.suite, str(root), source.url]
    # What it mounts and starts is gone with it, also when it is killed.
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run([*apart, *command], env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise ClusterError(f"debootstrap {source.suite} from {source.url} failed; its last lines:\n{tail}")
    for name in UNNEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
    layer = aside / "layer.tar"
    options = ["--numeric-owner", "--sort=name", "--exclude=./dev/*"]
    subprocess.run(["tar", "-C", str(root), *options, "-cf", str(layer), "."], check=True, capture_output=True)
    config = {
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "PYTHONUNBUFFERED=1"],
        "Cmd": ["/usr/bin/python3"],
        "User": f"{USER_ID}:{USER_ID}",
        "WorkingDir": "/tmp",
    }
    write_archive(aside / "image.tar", tag, layer, config)
    (aside / "image.tar").rename(target)
    shutil.rmtree(aside)
    return target


def package_source() -> Repository:
    """The machine's own main repository of its own release."""
    codename = _os_release().get("VERSION_CODENAME", "")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in said.stdout.splitlines():
        url, suite, component = (line.split() + ["", "", ""])[:3]
        if suite == codename and component == "main":
            return Repository(url.rstrip("/"), suite)
    raise ClusterError(f"apt on this machine has no source with the component main of {codename or 'its release'}.")


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, value in (line.split("=", 1) for line in lines if "=" in line)}
