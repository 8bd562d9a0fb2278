"""When the containers of learners' pods really worked, from the watch of the cluster, in fractions of a second.

The times in a pod's status are whole seconds. Called by `figures.orchestration` and `figures.pod_start`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import httpx

from updraft.kubernetes.objects import Manifest
from updraft.kubernetes.pod_status import pod_facts
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.stack.config import load_config
from updraft.stack.files import NAMESPACE
from updraft.stack.layout import Home


@dataclass
class PodTimes:
    """Unix seconds at which each change of a pod was seen, by name: `created`, `sidecar started`, `main ended` ..."""

    at: dict[str, float] = field(default_factory=dict)

    def note(self, what: str, now: float) -> None:
        self.at.setdefault(what, now)

    def span(self, first: str, last: str) -> tuple[float, float] | None:
        return (self.at[first], self.at[last]) if first in self.at and last in self.at else None


class PodClock:
    """Watches a cluster in a thread, from `with` to its end. `pods`: the URL of a namespace's pods."""

    def __init__(self, pods: str, connect: Callable[[], httpx.Client]) -> None:
        self._address, self._connect = pods, connect
        self._stop = threading.Event()
        self._pods: dict[str, PodTimes] = {}
        self._thread = threading.Thread(target=self._run, name="pod clock", daemon=True)

    def __enter__(self) -> PodClock:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def of_job(self, job_id: str) -> dict[str, PodTimes]:
        """Return the times of the job's pods, by role."""
        return {key[1]: times for key, times in self._keyed().items() if key[0] == job_id}

    def _keyed(self) -> dict[tuple[str, str], PodTimes]:
        return {tuple(key.split("\n", 1)): times for key, times in self._pods.items()}  # type: ignore[misc]

    def _run(self) -> None:
        address = self._address
        # The watch is ended by the server each second or two, so that the thread can be stopped.
        with self._connect() as client:
            version = "0"
            while not self._stop.is_set():
                try:
                    if version == "0":
                        listed = client.get(address).raise_for_status().json()
                        version = listed["metadata"]["resourceVersion"]
                    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "2"}
                    with client.stream("GET", address, params=query) as stream:
                        for line in stream.raise_for_status().iter_lines():
                            if line.strip():
                                version = self._see(json.loads(line), time.time()) or version
                except httpx.HTTPError:
                    version = "0"
                    time.sleep(0.1)

    def _see(self, event: Manifest, now: float) -> str | None:
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            return "0"
        pod = event["object"]
        labels = pod["metadata"].get("labels") or {}
        if "updraft.dev/job" in labels:
            times = self._pods.setdefault(f"{labels['updraft.dev/job']}\n{labels['updraft.dev/role']}", PodTimes())
            note(times, pod_facts(pod), event["type"], now)
        return str(pod["metadata"]["resourceVersion"])


def local_clock(home: Home) -> PodClock:
    """Return the clock of a home's local node."""
    token = (home.node / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    address = f"{load_config(home).ports.url('node')}/api/v1/namespaces/{NAMESPACE}/pods"
    return PodClock(address, lambda: httpx.Client(headers=headers, timeout=30, trust_env=False))


def note(times: PodTimes, pod: PodFacts, event: str, now: float) -> None:
    times.note("created", now)
    containers: dict[str, ContainerFacts] = {"sidecar": pod.sidecar, "main": pod.main}
    for name, container in containers.items():
        if container.state in ("running", "terminated"):
            times.note(f"{name} started", now)
        if container.state == "terminated":
            times.note(f"{name} ended", now)
    if pod.ended:
        times.note("ended", now)
    if event == "DELETED":
        times.note("deleted", now)
