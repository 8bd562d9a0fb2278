"""The node pool and what is out of the API's sight, without processes; time is given."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft_localnode.errors import StatusError
from updraft_localnode.events import EventRecorder
from updraft_localnode.nodes import NodePool
from updraft_localnode.partition import Partition
from updraft_localnode.resources import Amounts
from updraft_localnode.scheduler import NodeSpec, Scheduler
from updraft_localnode.store import ResourceStore
from updraft_localnode.validation import complete

LOSE = {"delete_after_seconds": 5.0, "gone_after_seconds": 1.0, "timeout_seconds": 0.0, "replace": True}


class Cluster:
    """Store, pool and scheduler; `restart` makes the latter two anew, as a new process would."""

    def __init__(self, path=None, *, gpus=(None,)):
        self.store = ResourceStore(path)
        self.specs = [NodeSpec(kind or "n", Amounts(4000, 2**30), kind) for kind in gpus]
        self.restart()

    def restart(self):
        self.events = EventRecorder(self.store, "n")
        self.away = Partition(self.store)
        self.pool = NodePool(self.store, self.events, self.away, self.specs, "v1")
        self.scheduler = Scheduler(self.store, self.events)

    def create(self, name, **spec):
        container = {"name": "base", "image": "i", "command": ["true"]}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **spec}}
        self.store.create("pods", complete("pods", body))
        self.scheduler.schedule_all()
        return self.pod(name)

    def pod(self, name):
        return self.store.find("pods", "default", name)

    @property
    def nodes(self):
        """Name -> what it is, of each node."""
        return {node["metadata"]["name"]: self._kind(node) for node in self.store.items("nodes")}

    def _kind(self, node):
        ready = next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready")
        return "lost" if ready == "Unknown" else "cordoned" if node["spec"].get("unschedulable") else "ready"


def test_names_are_never_used_twice_while_nodes_come_and_go():
    cluster = Cluster()
    cluster.pool.lose(None, **LOSE)
    cluster.pool.lose(None, **LOSE)
    assert cluster.nodes == {"n": "lost", "n-2": "lost", "n-3": "ready"}
    cluster.create("here")
    cluster.pool.find("n-2")
    assert cluster.nodes == {"n": "lost", "n-2": "cordoned", "n-3": "ready"}
    cluster.pool.reconcile(time.time())
    assert cluster.nodes == {"n": "lost", "n-3": "ready"}
    cluster.pool.lose(None, **LOSE)
    assert cluster.nodes == {"n": "lost", "n-3": "lost", "n-4": "ready"}


def test_an_empty_replacement_goes_when_the_node_is_back():
    cluster = Cluster()
    cluster.pool.lose(None, **LOSE)
    cluster.pool.find(None)
    assert cluster.nodes == {"n": "ready"}


def test_a_node_that_is_back_beside_its_replacement_keeps_its_pods_and_takes_no_more():
    cluster = Cluster()
    cluster.create("old")
    cluster.pool.lose(None, **LOSE)
    assert cluster.create("new")["spec"]["nodeName"] == "n-2"
    cluster.pool.find(None)
    cluster.pool.reconcile(time.time())
    assert cluster.nodes == {"n": "cordoned", "n-2": "ready"}
    cluster.pool.cordon(None, unschedulable=False)
    assert cluster.create("third")["spec"]["nodeName"] == "n-2"
    cluster.store.delete("pods", "default", "old")
    cluster.pool.reconcile(time.time())
    assert cluster.nodes == {"n-2": "ready"}


def test_which_node_has_to_be_said_when_there_are_several():
    cluster = Cluster(gpus=("a100", "h100"))
    with pytest.raises(StatusError, match="node has to be given; possible now: a100, h100"):
        cluster.pool.lose(None, **LOSE)
    assert cluster.pool.lose("h100", **LOSE) == {"node": "h100", "replacement": "h100-2"}
    labels = cluster.store.get("nodes", "", "h100-2")["metadata"]["labels"]
    assert labels["updraft.dev/gpu-type"] == "h100"
    with pytest.raises(StatusError, match="h100 is not there; possible now: a100, h100-2"):
        cluster.pool.lose("h100", **LOSE)
    with pytest.raises(StatusError, match="a100 is not there; possible now: h100"):
        cluster.pool.find("a100")
    with pytest.raises(StatusError, match="not found"):
        cluster.pool.cordon("x", unschedulable=True)


def test_pods_of_a_lost_node_go_in_two_steps_each_at_its_time():
    cluster = Cluster()
    cluster.create("p")
    cluster.pool.lose(None, **LOSE)
    began = cluster.away.nodes["n"].since

    assert cluster.pool.reconcile(began + 4.9) == pytest.approx(0.1)
    assert "deletionTimestamp" not in cluster.pod("p")["metadata"]
    assert cluster.pool.reconcile(began + 5) == pytest.approx(1)
    assert "deletionTimestamp" in cluster.pod("p")["metadata"]
    assert cluster.pool.reconcile(began + 5.9) == pytest.approx(0.1)
    assert cluster.pool.reconcile(began + 6) is None
    assert cluster.pod("p") is None
    assert [p["pod"] for p in cluster.away.unseen()] == ["p"]


def test_what_a_client_has_deleted_on_a_lost_node_goes_no_sooner_than_the_rest():
    cluster = Cluster()
    cluster.create("p")
    cluster.pool.lose(None, **LOSE)
    began = cluster.away.nodes["n"].since
    moment = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    cluster.store.update("pods", "default", "p", lambda new: new["metadata"].update(moment))
    assert cluster.pool.reconcile(began + 1) == pytest.approx(5)
    cluster.pool.reconcile(began + 5.9)
    assert cluster.pod("p") is not None
    cluster.pool.reconcile(began + 6)
    assert cluster.pod("p") is None


def test_what_the_kubelet_learned_is_told_when_it_is_back_and_others_conditions_stay(tmp_path):
    cluster = Cluster(tmp_path / "db")
    uid = cluster.create("p")["metadata"]["uid"]
    cluster.pool.lose(None, **LOSE)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    cluster.away.report(uid, {"phase": "Running", "conditions": [ready], "startTime": "x"})
    cluster.pool.reconcile(cluster.away.nodes["n"].since + 5)

    cluster.store.close()
    cluster = Cluster(tmp_path / "db")
    assert cluster.nodes == {"n": "lost", "n-2": "ready"}
    cluster.pool.find("n")

    status = cluster.pod("p")["status"]
    assert (status["phase"], status["startTime"]) == ("Running", "x")
    kinds = {c["type"]: (c["status"], c.get("reason")) for c in status["conditions"]}
    assert kinds["DisruptionTarget"] == ("True", "DeletionByTaintManager")
    assert kinds["PodScheduled"][0] == "True"
    assert kinds["Ready"][0] == "True"
    assert cluster.away.pods == {}
    assert cluster.store.facts("lost-") == {}


def test_an_orphan_is_given_its_grace_period(tmp_path):
    cluster = Cluster(tmp_path / "db")
    uid = cluster.create("p", terminationGracePeriodSeconds=7)["metadata"]["uid"]
    cluster.pool.lose(None, **LOSE)
    cluster.store.delete("pods", "default", "p")
    cluster.pool.find(None)
    kept = json.loads(cluster.store.facts("lost-pod/")[f"lost-pod/{uid}"])
    assert kept["metadata"]["deletionGracePeriodSeconds"] == 7
    cluster.away.forget(uid)
    assert cluster.store.facts("lost-pod/") == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["lose", "find", "pod", "delete", "later", "restart", "cordon", "uncordon"]), max_size=25)
)
def test_whatever_happens_one_node_takes_pods_and_everything_ends_well(orders):
    cluster, now, made = Cluster(), time.time(), 0
    for order in orders:
        if order == "lose":
            cluster.pool.lose(None, **LOSE)
        elif order == "find" and cluster.away.nodes:
            cluster.pool.find(next(iter(cluster.away.nodes)))
        elif order == "pod":
            made += 1
            cluster.create(f"p{made}")
        elif order == "delete" and cluster.store.items("pods"):
            cluster.store.delete("pods", "default", cluster.store.items("pods")[0]["metadata"]["name"])
        elif order == "later":
            now += 10
        elif order == "restart":
            cluster.restart()
        elif order in ("cordon", "uncordon"):
            cluster.pool.cordon(None, unschedulable=order == "cordon")
        cluster.pool.reconcile(now)
        assert len([kind for kind in cluster.nodes.values() if kind == "ready"]) <= 1
        assert set(cluster.away.nodes) == {name for name, kind in cluster.nodes.items() if kind == "lost"}
    cluster.pool.find_all()
    cluster.pool.cordon(None, unschedulable=False)
    for pod in cluster.store.items("pods"):
        cluster.store.delete("pods", "default", pod["metadata"]["name"])
    for uid in list(cluster.away.pods):
        cluster.away.forget(uid)
    cluster.pool.reconcile(now)
    assert list(cluster.nodes.values()) == ["ready"]
