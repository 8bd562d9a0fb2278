"""Provide persistent volume claims as folders: each folder `<state-dir>/claims/<namespace>/<claim>` is a bound claim.

The owner of the machine makes the folder, or a link to one; nothing is created or removed here. The server shows
claims, and `volumes` mounts them.
"""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from pathlib import Path

from updraft_localnode.errors import Json, not_found

RESOURCE = "persistentvolumeclaims"


def folder_of(claims_dir: Path, namespace: str, name: str) -> Path | None:
    """Return the claim's folder on the host; None if there is no such claim."""
    folder = claims_dir / namespace / name
    plain = all(part not in ("", ".", "..") and "/" not in part for part in (namespace, name))
    return folder.resolve() if plain and folder.is_dir() else None


def claim(claims_dir: Path, namespace: str, name: str) -> Json:
    """Return the claim. Raises StatusError 404."""
    folder = folder_of(claims_dir, namespace, name)
    if folder is None:
        raise not_found(RESOURCE, name)
    modes = ["ReadOnlyMany", "ReadWriteMany"] if os.access(folder, os.W_OK) else ["ReadOnlyMany"]
    made = datetime.fromtimestamp(folder.stat().st_ctime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": str(uuid.uuid5(uuid.NAMESPACE_URL, folder.as_uri())),
            "resourceVersion": "1",
            "creationTimestamp": made,
        },
        "spec": {
            "accessModes": modes,
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": f"folder-{name}",
        },
        "status": {"phase": "Bound", "accessModes": modes, "capacity": {"storage": "1Gi"}},
    }


def claims(claims_dir: Path, namespace: str) -> list[Json]:
    folder = claims_dir / namespace
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return [claim(claims_dir, namespace, name) for name in names]
