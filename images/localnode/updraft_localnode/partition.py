"""Keep what the API cannot see: nodes that do not answer, and their pods as their kubelets know them.

Once a node is lost, the state of its pods is kept here instead of in the API's objects: the pods continue to run, and
the API neither sees nor reaches them. When the node is found, this state is copied to the objects. A pod that the API
has deleted in the meantime is an orphan, which stays here until its processes have ended. All this is kept as facts in
the store, so that a killed local node continues with it.
"""

from __future__ import annotations

import copy
import json
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from updraft_localnode.errors import Json
from updraft_localnode.podstatus import KUBELET_CONDITIONS
from updraft_localnode.store import ResourceStore, now_text

_NODE, _POD = "lost-node/", "lost-pod/"


@dataclass(frozen=True)
class LostNode:
    """A node that does not answer, and how long the cluster waits for it. None means for ever."""

    name: str
    since: float  # Unix time in seconds
    delete_after_seconds: float | None
    gone_after_seconds: float | None
    timeout_seconds: float  # how long a request for a log waits before it fails


class Partition:
    def __init__(self, store: ResourceStore) -> None:
        self._store = store
        nodes = [LostNode(**json.loads(text)) for text in store.facts(_NODE).values()]
        self.nodes: dict[str, LostNode] = {node.name: node for node in nodes}
        self.pods: dict[str, Json] = {
            name.removeprefix(_POD): json.loads(text) for name, text in store.facts(_POD).items()
        }

    def lose(
        self, name: str, delete_after_seconds: float | None, gone_after_seconds: float | None, timeout_seconds: float
    ) -> None:
        node = LostNode(name, time.time(), delete_after_seconds, gone_after_seconds, timeout_seconds)
        self.nodes[name] = node
        self._store.set_fact(_NODE + name, json.dumps(asdict(node)))
        for pod in self._store.items("pods"):
            if pod["spec"].get("nodeName") == name:
                self._keep(copy.deepcopy(pod))

    def lost_node_of(self, pod: Json) -> LostNode | None:
        """Return the lost node that the pod is on."""
        return self.nodes.get(pod["spec"].get("nodeName", ""))

    def report(self, uid: str, status: Json) -> Json:
        """Store the kubelet's newest status of a pod, and return the pod."""
        return self._keep({**self.pods[uid], "status": status})

    def unseen(self) -> list[Json]:
        """Return the pods that run out of the API's sight: on a lost node, or on one whose pods are being removed."""
        return [
            {
                "namespace": pod["metadata"]["namespace"],
                "pod": pod["metadata"]["name"],
                "node": pod["spec"]["nodeName"],
                "in_api": self._store.by_uid(uid) is not None,
            }
            for uid, pod in self.pods.items()
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def find(self, name: str) -> None:
        """Let the node answer again: its kubelet reports what happened, and ends the pods that the API no longer
        has."""
        del self.nodes[name]
        self._store.drop_fact(_NODE + name)
        for uid, pod in list(self.pods.items()):
            if pod["spec"]["nodeName"] != name:
                continue
            known = self._store.by_uid(uid)
            if known is None:
                self._keep(_to_be_ended(pod))
                continue
            key, current = known
            status = {**pod["status"], "conditions": _conditions(pod["status"], current["status"])}
            self._store.update(*key, lambda new, status=status: new.update(status=status))  # type: ignore[misc]
            self.forget(uid)

    def forget(self, uid: str) -> None:
        del self.pods[uid]
        self._store.drop_fact(_POD + uid)

    def _keep(self, pod: Json) -> Json:
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod
        self._store.set_fact(_POD + uid, json.dumps(pod))
        return pod


def _to_be_ended(pod: Json) -> Json:
    grace = int(pod["spec"]["terminationGracePeriodSeconds"])
    moment = f"{datetime.now(UTC) + timedelta(seconds=grace):%Y-%m-%dT%H:%M:%SZ}"
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": moment, "deletionGracePeriodSeconds": grace}}


def _conditions(told: Json, current: Json) -> list[Json]:
    """Return the kubelet's own conditions as it reports them, and all others unchanged."""
    old = {c["type"]: c for c in current.get("conditions") or []}
    own = [c for c in told.get("conditions") or [] if c["type"] in KUBELET_CONDITIONS]
    merged = []
    for condition in own:
        before = old.get(condition["type"])
        changed = before is not None and before["status"] != condition["status"]
        merged.append({**condition, "lastTransitionTime": now_text()} if changed else condition)
    return [*(c for c in old.values() if c["type"] not in KUBELET_CONDITIONS), *merged]
