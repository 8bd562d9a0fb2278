"""Store objects, resource versions and the history that watches read. Kept in SQLite, so a restart loses nothing.

Every write gets the next resource version and one entry of the history. Versions are consecutive, so a watch finds its
position by subtraction. The history is limited and starts empty with the process: a watch from an earlier version gets
410. Objects are never changed in place; a write replaces them, so readers may keep what they got. The store does not
interpret the objects. Use it from one asyncio loop only.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sqlite3
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from updraft_localnode.errors import GROUPS, Json, StatusError, already_exists, conflict, expired, not_found

KINDS = {
    "pods": "Pod",
    "events": "Event",
    "services": "Service",
    "secrets": "Secret",
    "namespaces": "Namespace",
    "nodes": "Node",
    "networkpolicies": "NetworkPolicy",
    "poddisruptionbudgets": "PodDisruptionBudget",
}
CLUSTER_SCOPED = frozenset({"namespaces", "nodes"})
Key = tuple[str, str, str]  # resource, namespace ("" for cluster-scoped), name


def api_version(resource: str) -> str:
    return f"{GROUPS[resource]}/v1" if resource in GROUPS else "v1"


def now_text() -> str:
    """Return the time as Kubernetes writes it in metadata."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Change:
    """One write. `before` is None for a creation."""

    version: int
    type: str  # ADDED, MODIFIED, DELETED
    resource: str
    object: Json
    before: Json | None


class ResourceStore:
    def __init__(self, path: Path | None = None, *, history_length: int = 5000) -> None:
        """Open the store; `path` None keeps everything in memory."""
        self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
        if path is not None:
            path.chmod(0o600)  # it contains secrets
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, body TEXT,"
            " PRIMARY KEY (resource, namespace, name))"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT)")
        self._objects: dict[Key, Json] = {}
        self._uids: dict[str, Key] = {}
        for resource, namespace, name, body in self._db.execute("SELECT * FROM objects"):
            self._remember((resource, namespace, name), json.loads(body))
        self.version = int(self.fact("version") or 1)
        self._history: deque[Change] = deque(maxlen=history_length)
        self._changed: asyncio.Future[None] | None = None

    # --- Facts: small values beside the objects -------------------------------------------------------
    def fact(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def drop_fact(self, name: str) -> None:
        self._db.execute("DELETE FROM facts WHERE name = ?", (name,))

    def facts(self, prefix: str) -> dict[str, str]:
        """Return the facts whose name begins with `prefix`."""
        rows = self._db.execute("SELECT name, value FROM facts WHERE substr(name, 1, ?) = ?", (len(prefix), prefix))
        return {str(name): str(value) for name, value in rows}

    # --- Reading --------------------------------------------------------------------------------------
    def find(self, resource: str, namespace: str, name: str) -> Json | None:
        return self._objects.get((resource, namespace, name))

    def get(self, resource: str, namespace: str, name: str) -> Json:
        """Return an object. Raises StatusError 404."""
        obj = self.find(resource, namespace, name)
        if obj is None:
            raise not_found(resource, name)
        return obj

    def by_uid(self, uid: str) -> tuple[Key, Json] | None:
        key = self._uids.get(uid)
        return None if key is None else (key, self._objects[key])

    def items(self, resource: str, namespace: str | None = None) -> list[Json]:
        """Return the objects in order of namespace and name."""
        keys = (k for k in self._objects if k[0] == resource and namespace in (None, k[1]))
        return [self._objects[key] for key in sorted(keys)]

    def everything(self) -> Iterator[tuple[Key, Json]]:
        yield from list(self._objects.items())

    # --- Writing --------------------------------------------------------------------------------------
    def create(self, resource: str, obj: Json) -> Json:
        """Create an object. Raises StatusError 409 if the name is taken."""
        meta = obj["metadata"]
        key = (resource, meta.get("namespace", ""), meta["name"])
        if key in self._objects:
            raise already_exists(resource, meta["name"])
        new = copy.deepcopy(obj)
        new["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now_text()}
        return self._write("ADDED", key, new, None)

    def update(self, resource: str, namespace: str, name: str, change: Callable[[Json], None]) -> Json:
        """Apply `change` to a copy and store it, unless nothing changed. Raises StatusError 404."""
        before = self.get(resource, namespace, name)
        new = copy.deepcopy(before)
        change(new)
        return before if new == before else self._write("MODIFIED", (resource, namespace, name), new, before)

    def replace(self, resource: str, namespace: str, name: str, obj: Json) -> Json:
        """Replace an object (PUT): refused with 409 if `obj` was made from an older version."""
        before = self.get(resource, namespace, name)
        meta = obj["metadata"]
        for field in ("resourceVersion", "uid"):
            if meta.get(field) and meta[field] != before["metadata"][field]:
                why = "the object has been modified; please apply your changes to the latest version and try again"
                raise conflict(resource, name, why)
        new = copy.deepcopy(obj)
        for field in ("uid", "creationTimestamp"):
            new["metadata"][field] = before["metadata"][field]
        return self._write("MODIFIED", (resource, namespace, name), new, before)

    def delete(self, resource: str, namespace: str, name: str) -> Json:
        """Delete an object. Raises StatusError 404."""
        before = self.get(resource, namespace, name)
        return self._write("DELETED", (resource, namespace, name), copy.deepcopy(before), before)

    def _remember(self, key: Key, obj: Json) -> None:
        self._objects[key] = obj
        self._uids[obj["metadata"]["uid"]] = key

    def _write(self, type_: str, key: Key, obj: Json, before: Json | None) -> Json:
        version = self.version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        self._db.execute("BEGIN")
        if type_ == "DELETED":
            self._db.execute("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", key)
        else:
            self._db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (*key, json.dumps(obj)))
        self.set_fact("version", str(version))
        self._db.execute("COMMIT")
        self.version = version
        if type_ == "DELETED":
            del self._objects[key]
            del self._uids[obj["metadata"]["uid"]]
        else:
            self._remember(key, obj)
        self._history.append(Change(version, type_, key[0], obj, before))
        self.wake()
        return obj

    # --- Watching -------------------------------------------------------------------------------------
    def changes_since(self, version: int) -> list[Change]:
        """Return every write after `version`, oldest first. Raises StatusError 410 if some of them are forgotten."""
        oldest = self.version - len(self._history)
        if version < oldest or version > self.version:
            raise expired(version, oldest)
        behind = self.version - version
        return [self._history[i] for i in range(len(self._history) - behind, len(self._history))]

    def wake(self) -> None:
        """Wake everybody who waits in `changed`."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def changed(self, since: int, timeout_seconds: float | None = None) -> bool:
        """Wait for a write after version `since`, which may already have happened; return False if the time runs out
        first."""
        if self.version != since:
            return True
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._changed], timeout=timeout_seconds)
        return bool(done)

    def close(self) -> None:
        self._db.close()


def list_object(resource: str, items: list[Json], version: int) -> Json:
    kind = KINDS[resource]
    meta = {"resourceVersion": str(version)}
    # The list names the kind and the version; its items do not repeat them.
    plain = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    return {"kind": f"{kind}List", "apiVersion": api_version(resource), "metadata": meta, "items": plain}


__all__ = [
    "CLUSTER_SCOPED",
    "KINDS",
    "Change",
    "Key",
    "ResourceStore",
    "StatusError",
    "api_version",
    "list_object",
    "now_text",
]
