"""Simulate the nodes, and what a cluster does when one of them does not answer.

Each type of GPU has one node that takes pods. If it is lost, a node with the same amounts and another name replaces it,
as in a cloud's node pool. The pods on the lost node are then out of the cluster's reach, and the machine's resources
are counted a second time. A lost node that is found again continues as before if its replacement is empty (the
replacement is removed). Otherwise it takes no new pods, and is removed after its last one.

`NodePool.run` does the work of three controllers: one marks nodes, one deletes pods from a lost node (first with a
deletionTimestamp, then by force, like the pod garbage collector for a node that is out of service), one shrinks the
pool.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from updraft_localnode.affinity import UNREACHABLE, UNSCHEDULABLE, toleration_seconds
from updraft_localnode.errors import Json, StatusError
from updraft_localnode.events import EventRecorder
from updraft_localnode.lifecycle import delete_pod, disrupt
from updraft_localnode.partition import LostNode, Partition
from updraft_localnode.scheduler import TERMINAL_PHASES, NodeSpec, node_object
from updraft_localnode.store import ResourceStore, now_text

_FACT = "node-pool"
_SILENT = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}


@dataclass
class _Slot:
    """The numbered names that one configured node has had: `name`, `name-2`, ..."""

    active: int = 1
    highest: int = 1
    others: list[int] = field(default_factory=list)  # lost, or found again and to be removed


def _numbered(base: str, number: int) -> str:
    return base if number == 1 else f"{base}-{number}"


class NodePool:
    def __init__(
        self,
        store: ResourceStore,
        events: EventRecorder,
        away: Partition,
        specs: Sequence[NodeSpec],
        version: str,
        images: Sequence[str] = (),
    ) -> None:
        self._store, self._events, self._away, self._version = store, events, away, version
        self._images = [{"names": [name]} for name in images]  # no other images are available here
        self._specs = {spec.name: spec for spec in specs}
        known = json.loads(store.fact(_FACT) or "{}")
        self._slots = {base: _Slot(**known[base]) if base in known else _Slot() for base in self._specs}
        self._terminating: dict[str, float] = {}  # uid -> when a lost node's pod was first seen being deleted
        self._set_up()

    # --- Orders ---------------------------------------------------------------------------------------
    def lose(
        self,
        name: str | None,
        *,
        delete_after_seconds: float | None,
        gone_after_seconds: float | None,
        timeout_seconds: float,
        replace: bool,
    ) -> Json:
        """Lose a node. Raises StatusError 409 if there is no such node to lose."""
        name = self._named(name, [n for n in self._names() if n not in self._away.nodes])
        self._away.lose(name, delete_after_seconds, gone_after_seconds, timeout_seconds)
        self._store.update("nodes", "", name, _fall_silent)
        for pod in self._pods_on(name):
            self._events.record(pod, "Warning", "NodeNotReady", "Node is not ready", component="node-controller")
            meta = pod["metadata"]
            self._store.update("pods", meta["namespace"], meta["name"], _unready)
        base, slot = self._slot_of(name)
        replacement = None
        if replace and name == _numbered(base, slot.active):
            slot.others.append(slot.active)
            slot.highest = slot.active = slot.highest + 1
            replacement = _numbered(base, slot.active)
            self._save()
            self._create(base, replacement)
        return {"node": name, "replacement": replacement}

    def find(self, name: str | None = None) -> Json:
        """Find a lost node again. Raises StatusError 409 if that node is not lost."""
        name = self._named(name, list(self._away.nodes))
        self._away.find(name)
        self._store.update("nodes", "", name, _speak_again)
        base, slot = self._slot_of(name)
        active = _numbered(base, slot.active)
        if name != active:
            if active not in self._away.nodes and not self._pods_on(active):
                slot.others = [n for n in slot.others if _numbered(base, n) != name]
                slot.active = next(n for n in range(1, slot.highest + 1) if _numbered(base, n) == name)
                self._store.delete("nodes", "", active)
            else:
                self._store.update("nodes", "", name, lambda new: new["spec"].update(unschedulable=True))
            self._save()
        return {"node": name}

    def find_all(self) -> None:
        for name in list(self._away.nodes):
            self.find(name)

    def cordon(self, name: str | None, *, unschedulable: bool) -> Json:
        """Set whether a node takes new pods; without a name, all nodes. Raises StatusError 404."""
        names = [name] if name is not None else self._names()
        for each in names:
            self._store.get("nodes", "", each)
            if unschedulable or each not in self._leaving():
                self._store.update("nodes", "", each, lambda new: _cordon(new, unschedulable))
        return {"nodes": names}

    def lost(self) -> list[Json]:
        now = time.time()
        return [{"node": node.name, "for_seconds": round(now - node.since, 1)} for node in self._away.nodes.values()]

    def cordoned(self) -> list[str]:
        return [n["metadata"]["name"] for n in self._store.items("nodes") if n["spec"].get("unschedulable")]

    # --- Controllers ----------------------------------------------------------------------------------
    async def run(self) -> None:
        while True:
            seen = self._store.version
            seconds = self.reconcile(time.time())
            await self._store.changed(seen, seconds)

    def reconcile(self, now: float) -> float | None:
        """Make one pass; return the seconds until something is due again, None if only a write can bring that about."""
        for node in self._store.items("nodes"):
            self._store.update("nodes", "", node["metadata"]["name"], _mark_unschedulable)
        moments = [m for lost in self._away.nodes.values() for m in self._clear(lost, now)]
        self._shrink()
        return max(min(moments) - now, 0.0) if moments else None

    def _clear(self, lost: LostNode, now: float) -> list[float]:
        """Delete what is due on a lost node; returns when more will be."""
        moments = []
        for pod in self._pods_on(lost.name):
            meta = pod["metadata"]
            patience = toleration_seconds(pod, {"key": UNREACHABLE, "effect": "NoExecute"}, lost.delete_after_seconds)
            due = None if patience is None else lost.since + patience
            if not meta.get("deletionTimestamp"):
                if due is None:
                    continue
                if due > now:
                    moments.append(due)
                    continue
                pod = self._delete_by_taint(pod)
                meta = pod["metadata"]
            if lost.gone_after_seconds is None:
                continue
            since = max(self._terminating.setdefault(meta["uid"], now), due or 0.0)
            if since + lost.gone_after_seconds > now:
                moments.append(since + lost.gone_after_seconds)
            else:
                self._terminating.pop(meta["uid"])
                self._delete_by_force(pod)
        return moments

    def _delete_by_taint(self, pod: Json) -> Json:
        meta = pod["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        message = "Taint manager: deleting due to NoExecute taint"
        disrupt(self._store, pod, "DeletionByTaintManager", message)
        self._events.record(
            pod,
            "Normal",
            "TaintManagerEviction",
            f"Marking for deletion Pod {name}",
            component="taint-eviction-controller",
        )
        return delete_pod(self._store, meta["namespace"], meta["name"], None)

    def _delete_by_force(self, pod: Json) -> None:
        key = ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if self._store.find(*key) is None:
            return
        if pod["status"].get("phase") not in TERMINAL_PHASES:
            self._store.update(*key, lambda new: new["status"].update(phase="Failed"))
        self._store.delete(*key)

    def _shrink(self) -> None:
        """Remove a node that was found again and has a replacement, once nothing runs on it any more."""
        for name in self._leaving():
            orphans = any(p["spec"]["nodeName"] == name for p in self._away.pods.values())
            if not self._pods_on(name) and not orphans:
                base, slot = self._slot_of(name)
                slot.others = [n for n in slot.others if _numbered(base, n) != name]
                self._save()
                self._store.delete("nodes", "", name)

    # --- Small things ---------------------------------------------------------------------------------
    def _set_up(self) -> None:
        """Restore the node objects after a start, with what the configuration says now."""
        for node in self._store.items("nodes"):
            if node["metadata"]["name"] not in self._names():
                self._store.delete("nodes", "", node["metadata"]["name"])
        for base, slot in self._slots.items():
            for number in (slot.active, *slot.others):
                self._create(base, _numbered(base, number))
        if self._store.find("namespaces", "", "default") is None:
            meta = {"name": "default", "labels": {"kubernetes.io/metadata.name": "default"}}
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta, "status": {"phase": "Active"}}
            self._store.create("namespaces", namespace)

    def _create(self, base: str, name: str) -> None:
        """Create the node's object, or renew it."""
        spec = self._specs[base]
        obj = node_object(NodeSpec(name, spec.allocatable, spec.gpu_type), self._version)
        obj["status"]["nodeInfo"] |= {"operatingSystem": platform.system().lower(), "architecture": platform.machine()}
        if self._images:
            obj["status"]["images"] = self._images
        if self._store.find("nodes", "", name) is None:
            self._store.create("nodes", obj)
        elif name not in self._away.nodes:

            def renew(new: Json) -> None:
                new["status"] = obj["status"]
                new["metadata"]["labels"] = {**(new["metadata"].get("labels") or {}), **obj["metadata"]["labels"]}

            self._store.update("nodes", "", name, renew)

    def _names(self) -> list[str]:
        return [_numbered(base, n) for base, slot in self._slots.items() for n in (slot.active, *slot.others)]

    def _leaving(self) -> list[str]:
        others = [_numbered(base, n) for base, slot in self._slots.items() for n in slot.others]
        return [name for name in others if name not in self._away.nodes]

    def _named(self, wanted: str | None, possible: Sequence[str]) -> str:
        if wanted is None:
            live = [name for name in possible if name not in self._leaving()]
            if len(live) == 1:
                return live[0]
        elif wanted in possible:
            return wanted
        listed = ", ".join(possible) or "none"
        what = "node has to be given" if wanted is None and possible else f"{wanted or 'any node'} is not there"
        raise StatusError(409, "Conflict", f"node: {what}; possible now: {listed}")

    def _slot_of(self, name: str) -> tuple[str, _Slot]:
        for base, slot in self._slots.items():
            if any(_numbered(base, n) == name for n in (slot.active, *slot.others)):
                return base, slot
        raise KeyError(name)

    def _pods_on(self, name: str) -> list[Json]:
        return [pod for pod in self._store.items("pods") if pod["spec"].get("nodeName") == name]

    def _save(self) -> None:
        self._store.set_fact(_FACT, json.dumps({base: asdict(slot) for base, slot in self._slots.items()}))


def _taint(key: str, effect: str) -> Json:
    return {"key": key, "effect": effect, "timeAdded": now_text()}


def _without(spec: Json, key: str) -> list[Json]:
    return [dict(t) for t in spec.get("taints") or [] if t["key"] != key]


def _leave_taints(spec: Json, taints: list[Json]) -> None:
    """Set the taints; an empty list is left out, as an API server leaves out whatever is empty or false here."""
    if taints:
        spec["taints"] = taints
    else:
        spec.pop("taints", None)


def _cordon(node: Json, unschedulable: bool) -> None:
    if unschedulable:
        node["spec"]["unschedulable"] = True
    else:
        node["spec"].pop("unschedulable", None)


def _fall_silent(node: Json) -> None:
    now = now_text()
    for condition in node["status"]["conditions"]:
        condition.update({"status": "Unknown", "lastTransitionTime": now, **_SILENT})
    taints = _without(node["spec"], UNREACHABLE)
    node["spec"]["taints"] = [*taints, _taint(UNREACHABLE, "NoSchedule"), _taint(UNREACHABLE, "NoExecute")]


def _speak_again(node: Json) -> None:
    now = now_text()
    for condition in node["status"]["conditions"]:
        healthy = condition["type"] == "Ready"
        told = {"status": "True", "reason": "KubeletReady", "message": "ready"} if healthy else {"status": "False"}
        condition.update({"reason": "Sufficient", "message": "", **told})
        condition.update({"lastTransitionTime": now, "lastHeartbeatTime": now})
    _leave_taints(node["spec"], _without(node["spec"], UNREACHABLE))


def _unready(pod: Json) -> None:
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "Ready" and condition["status"] == "True":
            condition.update({"status": "False", "lastTransitionTime": now_text()})


def _mark_unschedulable(node: Json) -> None:
    """Set the taint that belongs to `spec.unschedulable`."""
    spec = node["spec"]
    has = any(t["key"] == UNSCHEDULABLE for t in spec.get("taints") or [])
    if spec.get("unschedulable") and not has:
        spec["taints"] = [*(spec.get("taints") or []), _taint(UNSCHEDULABLE, "NoSchedule")]
    elif not spec.get("unschedulable"):
        spec.pop("unschedulable", None)
        if has:
            _leave_taints(spec, _without(spec, UNSCHEDULABLE))
