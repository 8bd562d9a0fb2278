"""Gangs that the planner admits in one go, against the same pods that Kubernetes' own scheduler gets all at once.

`NOTES` says how it is measured.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kubecluster import kwok
from kubecluster.running import Cluster
from kubernetes import client, config
from simulator.simulation import START

from benchmarks.figures.sharing import DEVICES_PER_NODE, JOBS, NODES, SIZES
from benchmarks.options import Options
from benchmarks.results import Measured, TableOf, Value
from benchmarks.stack import BenchmarkError
from benchmarks.testcluster import cluster_and_account, kubectl, say
from updraft.allocation import Capacity, GangRequest, Node, plan_admissions
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.placement import Placement, placed
from updraft.lifecycle.membership import Membership
from updraft_learner.contract import TRAIN_ROLE

NAME, TITLE = "admission", "Gangs on Kubernetes' scheduler"
NAMESPACE = "updraft-bench-admission"
DEVICE_CPUS = 250  # a node of KWOK has 1000 CPUs
CREATORS = 8
SETTLED_SECONDS, LOOK_SECONDS, LONGEST_SECONDS = 3.0, 0.1, 120.0
ALONE, PACKED, SPREAD = "scheduler alone", "planner, packed", "planner, spread"

NOTES = (
    "50 jobs of 2 or 4 learners with 1 or 2 devices come at once to 15 nodes with 4 devices each, as in FfDL's "
    "experiment. The nodes are KWOK's beside the Kubernetes of `make cluster`; its scheduler is the real one. A device "
    "is a quarter of a node's CPUs.",
    "*Scheduler alone*: the pods of all jobs are created in random order. A job that lacks a learner holds its devices "
    "in vain. *Planner*: `plan_admissions` chooses the jobs, and only their pods are created, with the preference "
    "for nodes that `UPDRAFT_PLACEMENT` gives to learners: `pack` or `spread`. A pod that finds no node waits, and "
    "the job's other pods hold theirs in vain until others end.",
    "The time is from the beginning (of the plan, or of creating pods) to the last pod that was given a node, as lists "
    "of the pods show it every 0.1 s.",
)


@dataclass(frozen=True)
class Outcome:
    """What became of the pods: seconds to the last binding, devices of whole and of incomplete gangs, and pods that
    found no node."""

    seconds: float
    used: int
    vain: int
    waiting: int


def measure(options: Options) -> Measured:
    runs = options.pairs(4, 1)
    found: dict[str, list[Outcome]] = {ALONE: [], PACKED: [], SPREAD: []}
    planning: list[float] = []
    with (
        cluster_and_account() as (cluster, _),
        kwok.fake_nodes(cluster, NODES, say),
        _namespace(cluster) as core,
    ):
        for run in range(runs):
            jobs = _jobs(random.Random(run))
            began = time.monotonic()
            admitted = _planned(jobs)
            planning.append(1000 * (time.monotonic() - began))
            for way, chosen, beside in ((ALONE, jobs, None), (PACKED, admitted, True), (SPREAD, admitted, False)):
                found[way].append(_created(core, chosen, beside, random.Random(run)))
                say(f"{way}: {found[way][-1]}")
    whole = NODES * DEVICES_PER_NODE
    rows = [
        (
            way,
            *(round(_mean([getattr(each, name) for each in outcomes]), 2) for name in ("seconds", "waiting")),
            *(round(100 * _mean([getattr(each, name) for each in outcomes]) / whole, 1) for name in ("used", "vain")),
        )
        for way, outcomes in found.items()
    ]
    columns = ("way", "last binding after, s", "pods without a node", "devices that train, %", "held in vain, %")
    return Measured(
        settings={"runs": runs, "nodes": NODES, "devices": whole, "jobs": JOBS},
        values=(
            Value(name="The planner's round", unit="ms", samples=tuple(planning)),
            *(
                Value(
                    name=f"Devices held in vain: {way}", unit="%", samples=tuple(100 * o.vain / whole for o in outcomes)
                )
                for way, outcomes in found.items()
            ),
        ),
        tables=(TableOf(title="Means of the runs", columns=columns, rows=tuple(rows)),),
        notes=NOTES,
    )


def _mean(samples: Sequence[float]) -> float:
    return sum(samples) / len(samples)


def _jobs(chance: random.Random) -> list[GangRequest]:
    made = []
    for number in range(JOBS):
        learners, devices = chance.choice(SIZES)
        made.append(GangRequest(f"job-{number:02d}", learners, DEVICE_CPUS * devices, 0, 0, None, START))
    return made


def _planned(jobs: Sequence[GangRequest]) -> list[GangRequest]:
    nodes = tuple(Node(f"fake-{n}", DEVICE_CPUS * DEVICES_PER_NODE, 0) for n in range(NODES))
    granted = set(plan_admissions(jobs, [], Capacity(nodes)).granted)
    return [job for job in jobs if job.job_id in granted]


@contextmanager
def _namespace(cluster: Cluster) -> Iterator[client.CoreV1Api]:
    core = client.CoreV1Api(config.new_client_from_config(str(cluster.layout.kubeconfig)))
    kubectl(cluster, "create", "namespace", NAMESPACE)
    try:
        yield core
    finally:
        kubectl(cluster, "delete", "namespace", NAMESPACE, "--wait=false")


def _pod(job: GangRequest, learner: int, beside_learners: bool | None) -> dict[str, Any]:
    launch = Launch(NAMESPACE, "default", job.job_id, TRAIN_ROLE, 1, Membership.first(job.learners))
    amounts = {"cpu": str(int(job.cpus))}
    pod = {
        "metadata": {"name": f"{job.job_id}-{learner}", "labels": launch.labels(learner)},
        "spec": {
            "nodeSelector": kwok.SELECTOR,
            "tolerations": [kwok.TOLERATION],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "base", "image": "none", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }
    return placed(pod, Placement(beside_learners=beside_learners), launch)


def _created(
    core: client.CoreV1Api, jobs: Sequence[GangRequest], beside_learners: bool | None, chance: random.Random
) -> Outcome:
    pods = [_pod(job, learner, beside_learners) for job in jobs for learner in range(job.learners)]
    if beside_learners is None:
        chance.shuffle(pods)
    began = time.monotonic()
    with ThreadPoolExecutor(CREATORS) as creators:
        list(creators.map(lambda pod: core.create_namespaced_pod(NAMESPACE, pod), pods))
    try:
        seconds, bound = _settled(core, len(pods), began)
    finally:
        core.delete_collection_namespaced_pod(NAMESPACE, grace_period_seconds=0)
        _until_gone(core)
    used = vain = 0
    for job in jobs:
        here = sum(f"{job.job_id}-{learner}" in bound for learner in range(job.learners))
        devices = here * int(job.cpus) // DEVICE_CPUS
        used, vain = (used + devices, vain) if here == job.learners else (used, vain + devices)
    return Outcome(seconds, used, vain, len(pods) - len(bound))


def _settled(core: client.CoreV1Api, number: int, began: float) -> tuple[float, set[str]]:
    """Wait until the scheduler has tried all pods and nothing changes any more. Return the seconds from the beginning
    to the last pod that got a node, and the names of the pods that got one."""
    bound: set[str] = set()
    last = time.monotonic()
    while time.monotonic() - began < LONGEST_SECONDS:
        pods = _listed(core)
        now = {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}
        tried = {pod["metadata"]["name"] for pod in pods if _refused(pod)}
        if now != bound:
            bound, last = now, time.monotonic()
        if len(bound | tried) == number and (len(bound) == number or time.monotonic() - last > SETTLED_SECONDS):
            return last - began, bound
        time.sleep(LOOK_SECONDS)
    raise BenchmarkError(f"only {len(bound)} of {number} pods were looked at in {LONGEST_SECONDS:.0f} s")


def _refused(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)


def _listed(core: client.CoreV1Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(core.list_namespaced_pod(NAMESPACE, _preload_content=False).data)["items"]
    return found


def _until_gone(core: client.CoreV1Api) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while _listed(core):
        if time.monotonic() > until:
            raise BenchmarkError("pods of the run before are still there")
        time.sleep(LOOK_SECONDS)
