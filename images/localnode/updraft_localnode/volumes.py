"""Provide a pod's volumes as folders of the host: emptyDir, secret and claims. readOnly is not enforced."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from updraft_localnode.errors import Json

SecretReader = Callable[[str], Json | None]
ClaimFinder = Callable[[str], Path | None]


class NotYetError(Exception):
    """An object that the pod refers to does not exist (yet). The text is shown in the pod's status."""


def secret_bytes(secret: Json) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def _write_secret(folder: Path, volume: Json, read_secret: SecretReader) -> None:
    source = volume["secret"]
    name = source["secretName"]
    secret = read_secret(name)
    if secret is None:
        if source.get("optional"):
            return
        raise NotYetError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : secret "{name}" not found')
    data = secret_bytes(secret)
    items = source.get("items")
    wanted = {item["key"]: item.get("path") or item["key"] for item in items} if items else {key: key for key in data}
    for key, relative in wanted.items():
        if key not in data:
            raise NotYetError(f'volume "{volume["name"]}" references non-existent secret key: {key}')
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(data[key])


def prepare_volumes(pod: Json, folder: Path, read_secret: SecretReader, find_claim: ClaimFinder) -> None:
    """Make the folders below `folder`. May be repeated. Raises NotYetError."""
    for volume in pod["spec"].get("volumes") or []:
        path = folder / volume["name"]
        if volume.get("persistentVolumeClaim") is not None:
            _link_claim(path, volume["persistentVolumeClaim"]["claimName"], find_claim)
            continue
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if volume.get("secret") is not None:
            _write_secret(path, volume, read_secret)


def _link_claim(path: Path, name: str, find_claim: ClaimFinder) -> None:
    target = find_claim(name)
    if target is None:
        raise NotYetError(f'persistentvolumeclaim "{name}" not found')
    if not path.is_symlink():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.symlink_to(target)


def mounts_of(container: Json, folder: Path) -> dict[str, str]:
    """Return mountPath -> folder (or, with a subPath, file) of the host. Raises NotYetError."""
    mounts: dict[str, str] = {}
    for mount in container.get("volumeMounts") or []:
        path = folder / mount["name"]
        if mount.get("subPath"):
            of_claim, path = path.is_symlink(), path / mount["subPath"]
            if of_claim and not path.exists():
                what = f'failed to prepare subPath for volumeMount "{mount["name"]}" of container "{container["name"]}"'
                raise NotYetError(f"{what}: there is no {mount['subPath']}")
            if not path.exists():
                path.mkdir(parents=True, exist_ok=True)
        mounts[mount["mountPath"].rstrip("/")] = str(path)
    return mounts


def link_nested(mounts: dict[str, str]) -> None:
    """Link a volume that is mounted below another into it, so that walking down finds it."""
    for inner, target in mounts.items():
        outer = max((m for m in mounts if inner.startswith(m + "/")), key=len, default=None)
        if outer is None:
            continue
        link = Path(mounts[outer] + inner[len(outer) :])
        if not link.is_symlink() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)


def remove_tree(folder: Path) -> None:
    """Remove a pod's folder, also where a program took away its own permissions."""

    def retry(function: Callable[[str], object], path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            Path(path).parent.chmod(0o700)
            function(path)

    shutil.rmtree(folder, onerror=retry)
