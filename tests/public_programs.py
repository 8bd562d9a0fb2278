"""Lay out programs of public repositories: their sources, our patches and manifests in tests/public.

The sources are fetched from GitHub, or taken from UPDRAFT_PUBLIC_SOURCES, a folder with git repositories as OWNER/NAME.
Used by the tests of these programs and by the benchmark `first_model`.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import yaml

PROGRAMS = Path(__file__).parent / "public"
NAMES = sorted(path.parent.name for path in PROGRAMS.glob("*/manifest.yaml"))
GITHUB = "https://github.com/"


class NoSources(Exception):
    """The repositories cannot be reached; says why."""


def repositories_folder() -> Path | None:
    """Return the folder of repositories; None: they are fetched from GitHub. Raises NoSources."""
    if folder := os.environ.get("UPDRAFT_PUBLIC_SOURCES"):
        return Path(folder)
    try:
        socket.create_connection(("github.com", 443), timeout=10).close()
    except OSError as exc:
        raise NoSources(
            f"github.com is not reachable ({exc}), and UPDRAFT_PUBLIC_SOURCES names no repositories"
        ) from exc
    return None


def lay_out(name: str, repositories: Path | None, target: Path) -> Path:
    """Return the program's folder, patched, with its manifest."""
    source: dict[str, Any] = yaml.safe_load((PROGRAMS / name / "manifest.yaml").read_text())["annotations"]
    folder = sources(source, repositories, target)
    apply_patch(name, folder)
    shutil.copy(PROGRAMS / name / "manifest.yaml", folder)
    return folder


def sources(source: dict[str, Any], repositories: Path | None, target: Path) -> Path:
    """Return the program's folder as its repository has it."""
    folder = target / str(source["folder"])
    if repositories is None:
        fetch(source["repository"], source["commit"], target)
        return folder
    path = source["repository"].removeprefix(GITHUB)
    archive = ["git", "-C", str(repositories / path), "archive", source["commit"], source["folder"]]
    content = subprocess.run(archive, capture_output=True, check=True, timeout=120).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(target, filter="data")
    for file, origin in source.get("downloads", {}).items():
        repository, _, inside = origin.partition(":")
        show = ["git", "-C", str(repositories / repository), "show", f"HEAD:{inside}"]
        (folder / file).write_bytes(subprocess.run(show, capture_output=True, check=True, timeout=120).stdout)
    return folder


def apply_patch(name: str, folder: Path) -> None:
    patch = (PROGRAMS / name / "patch.diff").read_bytes()
    subprocess.run(["patch", "-p1", "--quiet"], cwd=folder, input=patch, check=True, timeout=60)


def fetch(repository: str, commit: str, target: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(target)], check=True, timeout=60)
    for command in (["fetch", "--quiet", "--depth", "1", repository, commit], ["checkout", "--quiet", commit]):
        subprocess.run(["git", "-C", str(target), *command], check=True, timeout=600)
