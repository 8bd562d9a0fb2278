"""Delete objects as a DELETE of the API and the garbage collector do. Used by the server and by `runtime`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from updraft_localnode.errors import Json, StatusError
from updraft_localnode.events import EventRecorder
from updraft_localnode.partition import Partition
from updraft_localnode.ports import PortBook, gang_owner
from updraft_localnode.scheduler import TERMINAL_PHASES
from updraft_localnode.store import Key, ResourceStore, now_text

SWEEP_SECONDS = 60.0


def delete_pod(store: ResourceStore, namespace: str, name: str, grace_seconds: int | None) -> Json:
    """Delete a pod. A running pod is only marked; the runtime removes it when its processes have ended.

    Raises StatusError 404.
    """
    pod = store.get("pods", namespace, name)
    finished = pod["status"].get("phase") in TERMINAL_PHASES or not pod["spec"].get("nodeName")
    grace = int(pod["spec"]["terminationGracePeriodSeconds"]) if grace_seconds is None else grace_seconds
    if finished or grace == 0:
        return store.delete("pods", namespace, name)
    before = pod["metadata"].get("deletionGracePeriodSeconds")
    if before is not None and before <= grace:
        return pod

    def mark(new: Json) -> None:
        moment = datetime.now(UTC) + timedelta(seconds=grace)
        new["metadata"]["deletionTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        new["metadata"]["deletionGracePeriodSeconds"] = grace

    return store.update("pods", namespace, name, mark)


def disrupt(store: ResourceStore, pod: Json, reason: str, message: str) -> None:
    """Say in the pod's conditions that it is about to be ended, and by whom."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}

    def mark(new: Json) -> None:
        others = [c for c in new["status"].get("conditions") or [] if c["type"] != "DisruptionTarget"]
        new["status"]["conditions"] = [*others, {**condition, "lastTransitionTime": now_text()}]

    store.update("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], mark)


def delete_object(store: ResourceStore, key: Key, grace_seconds: int | None = None) -> Json:
    """Delete an object. Raises StatusError 404."""
    resource, namespace, name = key
    if resource == "pods":
        return delete_pod(store, namespace, name, grace_seconds)
    if resource == "namespaces":
        return _mark_namespace(store, name)
    return store.delete(*key)


def _mark_namespace(store: ResourceStore, name: str) -> Json:
    def mark(new: Json) -> None:
        new["metadata"]["deletionTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        new["status"]["phase"] = "Terminating"

    return store.update("namespaces", "", name, mark)


def orphan_dependents(store: ResourceStore, uid: str) -> None:
    """Remove the owner from its dependents (`propagationPolicy: Orphan`)."""

    def forget(new: Json) -> None:
        owners = new["metadata"].get("ownerReferences") or []
        new["metadata"]["ownerReferences"] = [o for o in owners if o["uid"] != uid]

    for key, obj in store.everything():
        if any(o["uid"] == uid for o in obj["metadata"].get("ownerReferences") or []):
            store.update(*key, forget)


class GarbageCollector:
    """Removes objects without an owner, the content of ended namespaces, old events and unused ports."""

    def __init__(self, store: ResourceStore, events: EventRecorder, ports: PortBook, away: Partition) -> None:
        self._store, self._events, self._ports, self._away = store, events, ports, away

    async def run(self) -> None:
        while True:
            seen = self._store.version
            self.collect()
            await self._store.changed(seen, SWEEP_SECONDS)
            await asyncio.sleep(0.1)  # one sweep for many writes

    def collect(self) -> None:
        """Make one sweep over all objects."""
        for key, obj in self._store.everything():
            owners = obj["metadata"].get("ownerReferences") or []
            if owners and all(self._store.by_uid(o["uid"]) is None for o in owners):
                self._remove(key, obj)
        for namespace in self._store.items("namespaces"):
            if namespace["metadata"].get("deletionTimestamp"):
                self._empty(namespace["metadata"]["name"])
        self._events.forget_old()
        services = {
            gang_owner(s["metadata"]["namespace"], s["metadata"]["name"]) for s in self._store.items("services")
        }
        for owner in self._ports.owners():
            if owner not in services and self._store.by_uid(owner) is None and owner not in self._away.pods:
                self._ports.release(owner)

    def _remove(self, key: Key, obj: Json) -> None:
        if obj["metadata"].get("deletionTimestamp"):
            return
        try:
            delete_object(self._store, key)
        except StatusError:
            return  # another process was faster

    def _empty(self, namespace: str) -> None:
        content = [(key, obj) for key, obj in self._store.everything() if key[1] == namespace]
        for key, obj in content:
            self._remove(key, obj)
        if not any(key[1] == namespace for key, _ in self._store.everything()):
            self._store.delete("namespaces", "", namespace)
