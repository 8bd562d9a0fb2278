"""From a pod's request to the first line of its program: a learner of the platform, and `kubectl run` of its image.

`NOTES` says how it is measured.
"""

from __future__ import annotations

import json
import ssl
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

import httpx
import platform_images
from account_helpers import NAMESPACE
from kubecluster.certificates import ADMIN
from kubecluster.running import Cluster

from benchmarks.audit import AuditLog, Request
from benchmarks.feeder import Feeder
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.pods import PodClock
from benchmarks.results import Budget, Comparison, Measured, TableOf, Value
from benchmarks.stack import BenchmarkError
from benchmarks.testcluster import cluster_and_account, kubectl, part_home, say

NAME, TITLE = "pod_start", "From a pod's request to its program's first line"
BUDGET = Budget(at="most", value=1.2)
CODE = REPOSITORY / "bench" / "jobs" / "first_line"
LINE = "first line"
MAIN = "base"
OURS, BARE = "a learner", "kubectl run"
IDLE = "a learner's containers with nothing to do"
BARE_NAMESPACE = "default"
PATIENCE_SECONDS = 120.0

NOTES = (
    "A learner is launched by what `train` does before it defers, with its secret and network policy, its code from "
    "the object store, and its sidecar. `kubectl run` starts the same image, which prints the same line "
    "(`bench/jobs/first_line`). Both on the real nodes of `make cluster`, in turn, one at a time, images there.",
    "Requested: the API server received the POST of the pod (audit log). First line: the time that the container "
    "runtime wrote before it.",
    "A kubelet looks at its containers once a second, and starts the program only after it has seen the sidecar run. "
    "How much that is, without any work of ours, is measured by a third pod: `kubectl run` with a sidecar that does "
    "nothing.",
)


@dataclass(frozen=True)
class Start:
    """Unix seconds; `marks`: of the pod's containers, as a watch showed them."""

    asked: float  # the launch, or the command, began
    posted: float
    line: float
    marks: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.line - self.posted

    @property
    def whole_seconds(self) -> float:
        return self.line - self.asked


def measure(options: Options) -> Measured:
    rounds = options.pairs(10, 2)
    rows: list[tuple[Start, Start, Start]] = []
    reason = platform_images.why_not()
    if reason:
        raise BenchmarkError(reason)
    with cluster_and_account() as (cluster, account):
        platform_images.bring(cluster, say)
        with part_home("bench-start", cluster, account) as home:
            code = {"BENCH_CODE": str(CODE)}
            with (
                Feeder("launch_pods.py", home, cluster, code) as feeder,
                AuditLog(cluster.layout.audit_log) as audit,
                cluster_clock(cluster) as clock,
            ):
                for number in range(rounds + 1):  # the first one fills caches
                    ours, image = managed(cluster, feeder, audit, clock, f"start-{number:03d}")
                    other = bare(cluster, audit, f"bare-{number:03d}", plain_pod(image))
                    rows.append((ours, other, bare(cluster, audit, f"idle-{number:03d}", idle_pod(image))))
    return measured(rows[1:])


def managed(cluster: Cluster, feeder: Feeder, audit: AuditLog, clock: PodClock, job_id: str) -> tuple[Start, str]:
    """Start a learner with the program's image."""
    answer = feeder.ask(job_id)
    pod = answer["pod"]
    line = first_line(cluster, NAMESPACE, pod, MAIN)
    posted = posted_at(audit.new, pod)
    wait_for(lambda: phase_of(cluster, NAMESPACE, pod) == "Succeeded", f"{pod} did not end")
    marks = {name: at for times in clock.of_job(job_id).values() for name, at in times.at.items()}
    kubectl(cluster, "delete", "pod", "-n", NAMESPACE, pod, "--grace-period=0")
    return Start(answer["began"], posted, line, marks), str(answer["image"])


def bare(cluster: Cluster, audit: AuditLog, name: str, overrides: Mapping[str, Any]) -> Start:
    """Start a pod with `kubectl run`; `overrides`: what is different from its pod."""
    began, image = time.time(), overrides["spec"]["containers"][0]["image"]
    place = ["-n", BARE_NAMESPACE]
    options = [f"--image={image}", "--restart=Never", f"--overrides={json.dumps(overrides)}"]
    kubectl(cluster, "run", name, *place, *options)
    line = first_line(cluster, BARE_NAMESPACE, name, MAIN)
    posted = posted_at(audit.new, name)
    kubectl(cluster, "delete", "pod", *place, name, "--grace-period=0")
    return Start(began, posted, line)


def plain_pod(image: str) -> dict[str, Any]:
    """Return the program and nothing else."""
    command = ["/bin/sh", "-c", (CODE / "first_line.sh").read_text()]
    return {"spec": {"containers": [{"name": MAIN, "image": image, "command": command}]}}


def idle_pod(image: str) -> dict[str, Any]:
    """Return a learner's containers, of which only the program has something to do."""
    pod = plain_pod(image)
    script = 'trap "exit 0" TERM; while :; do sleep 0.1; done'
    sidecar = {"name": "sidecar", "image": image, "command": ["/bin/sh", "-c", script], "restartPolicy": "Always"}
    pod["spec"]["initContainers"] = [sidecar]
    return pod


def first_line(cluster: Cluster, namespace: str, pod: str, container: str) -> float:
    """Return when the program printed it, as its log says."""
    found: list[float] = []

    def look() -> bool:
        try:
            text = kubectl(cluster, "logs", "-n", namespace, pod, "-c", container, "--timestamps")
        except BenchmarkError:  # the container has not begun
            return False
        found.extend(line_times(text))
        return bool(found)

    wait_for(look, f"{pod} printed nothing")
    return found[0]


def line_times(log: str) -> list[float]:
    """Return the Unix time of each line that says `LINE`, in a log with RFC 3339 times of nanoseconds."""
    parted = [line.partition(" ") for line in log.splitlines()]
    # Python reads six digits.
    return [
        datetime.fromisoformat(f"{at[:26].rstrip('Z')}+00:00").timestamp() for at, _, text in parted if text == LINE
    ]


def posted_at(new: Callable[[], Sequence[Request]], pod: str) -> float:
    found: list[float] = []

    def look() -> bool:
        found.extend(r.received for r in new() if (r.verb, r.resource, r.name, r.code) == ("create", "pods", pod, 201))
        return bool(found)

    wait_for(look, f"the audit log does not tell who created {pod}")
    return found[0]


def phase_of(cluster: Cluster, namespace: str, pod: str) -> str:
    return kubectl(cluster, "get", "pod", "-n", namespace, pod, "-o", "jsonpath={.status.phase}")


def wait_for(done: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise BenchmarkError(problem)
        time.sleep(0.5)  # seldom, so that looking costs the start nothing


def cluster_clock(cluster: Cluster) -> PodClock:
    layout = cluster.layout
    context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    context.load_cert_chain(layout.pki / f"{ADMIN}.crt", layout.pki / f"{ADMIN}.key")
    address = f"{cluster.network.api_url}/api/v1/namespaces/{NAMESPACE}/pods"
    return PodClock(address, lambda: httpx.Client(verify=context, timeout=30, trust_env=False))


def measured(rows: Sequence[tuple[Start, Start, Start]]) -> Measured:
    """Compute the figure from rounds of a learner, `kubectl run`, and a learner's containers with nothing to do."""
    return Measured(
        settings={"rounds": len(rows)},
        comparisons=(
            Comparison(
                name="Pod requested to first line",
                unit="s",
                a=OURS,
                b=BARE,
                pairs=tuple((ours.seconds, other.seconds) for ours, other, _ in rows),
                budget=BUDGET,
            ),
            Comparison(
                name="Launch or command begun to first line",
                unit="s",
                a=OURS,
                b=BARE,
                pairs=tuple((ours.whole_seconds, other.whole_seconds) for ours, other, _ in rows),
            ),
            Comparison(
                name="Pod requested to first line",
                unit="s",
                a=IDLE,
                b=BARE,
                pairs=tuple((idle.seconds, other.seconds) for _, other, idle in rows),
            ),
        ),
        values=(
            Value(
                name="What a learner's start takes more",
                unit="s",
                samples=tuple(ours.seconds - other.seconds for ours, other, _ in rows),
            ),
            Value(
                name="Of this, what its containers with nothing to do take more",
                unit="s",
                samples=tuple(idle.seconds - other.seconds for _, other, idle in rows),
            ),
        ),
        tables=(phase_table([ours for ours, _, _ in rows]),),
        notes=NOTES,
    )


def phase_table(starts: Sequence[Start]) -> TableOf:
    """Return where a learner's time goes, as a watch of its pod showed it."""
    marks = ("asked", "posted", "sidecar started", "main started", "line")
    rows = []
    for first, last in pairwise(marks):
        spans = [at[last] - at[first] for s in starts if {first, last} <= (at := moments(s)).keys()]
        if spans:
            rows.append((f"{first} → {last}", statistics.median(spans), min(spans), max(spans)))
    title = "A learner's start, seconds (the program's start is seen after its first line)"
    return TableOf(title=title, columns=("phase", "median", "least", "most"), rows=tuple(rows))


def moments(start: Start) -> dict[str, float]:
    return {**start.marks, "asked": start.asked, "posted": start.posted, "line": start.line}
