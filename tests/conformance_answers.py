"""Questions to a pod API, and what is comparable in the answers: one list for the real API server and the local node.

`tests/record_answers.py` asks the real one and keeps the answers; tests/conformance/test_recorded.py asks the local
node in every ordinary run and compares.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import urllib3

Answers = dict[str, Any]
JSON, MERGE = "application/json", "application/merge-patch+json"
PATIENCE_SECONDS = 40.0
# Keys below these are data, not fields.
MAPS = frozenset({"labels", "annotations", "data", "capacity", "allocatable", "limits", "requests", "nodeSelector"})
OPAQUE = frozenset({"managedFields"})
VARYING = {
    re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"): "{uid}",
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"): "{time}",
}


def server_of(api_client: Any, namespace: str, image: str) -> Server:
    """The server and the credentials of a Kubernetes client."""
    settings = api_client.configuration
    token = settings.get_api_key_with_prefix("authorization")
    headers = {"Authorization": token} if token else {}
    return Server(settings.host, namespace, image, api_client.rest_client.pool_manager, headers)


@dataclass
class Server:
    """An API server and the namespace to ask in."""

    url: str
    namespace: str
    image: str
    pool: urllib3.PoolManager
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, **query: Any
    ) -> urllib3.BaseHTTPResponse:
        """`path` is below the namespace, unless it begins with a slash."""
        full = path if path.startswith("/") else f"/api/v1/namespaces/{self.namespace}/{path}"
        headers = {**self.headers, "Content-Type": kind, "Accept": "application/json"}
        sent = None if body is None else json.dumps(body)
        target = f"{self.url}{full}?{urlencode(query)}"
        return self.pool.request(method, target, body=sent, headers=headers, retries=False, timeout=60)

    def pod(self, name: str, script: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "base", "image": self.image, "command": ["/bin/sh", "-c", script]}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **spec, "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"asked": name}}, "spec": spec}

    def create(self, name: str, script: str, **spec: Any) -> urllib3.BaseHTTPResponse:
        return self.ask("POST", "pods", self.pod(name, script, **spec))

    def when(self, name: str, *phases: str) -> urllib3.BaseHTTPResponse:
        """The pod, once it is in one of the phases."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self.ask("GET", f"pods/{name}")
            if answer.json().get("status", {}).get("phase") in phases:
                return answer
            assert time.monotonic() < deadline, answer.data
            time.sleep(0.1)


def told(server: Server, answer: urllib3.BaseHTTPResponse) -> Answers:
    """What is the same in each asking: the status code, a Status as a whole, else the names and types of all fields."""
    body = answer.json()
    found: Answers = {"code": answer.status, "type": (answer.headers["Content-Type"] or "").partition(";")[0]}
    if body.get("kind") == "Status":
        return {**found, "status": steady(server, body)}
    return {**found, "kind": body.get("kind"), "fields": sorted(set(fields(body)))}


def fields(value: Any, path: str = "") -> Iterator[str]:
    """`spec.containers[].name: string` and so on for everything in the object."""
    name = path.rpartition(".")[2]
    if isinstance(value, dict) and name not in MAPS:
        for key, inner in value.items():
            yield from fields(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and name not in OPAQUE:
        for inner in value:
            yield from fields(inner, f"{path}[]")
        if not value:
            yield f"{path}[]: nothing"
    else:
        yield f"{path}: {type(value).__name__}"


def steady(server: Server, value: Any) -> Any:
    """The same with this run's names, times and identities replaced."""
    if isinstance(value, dict):
        return {key: steady(server, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [steady(server, inner) for inner in value]
    if not isinstance(value, str):
        return value
    text = value.replace(server.namespace, "{namespace}").replace(server.image, "{image}")
    for pattern, instead in VARYING.items():
        text = pattern.sub(instead, text)
    return text


def state_of(pod: dict[str, Any]) -> list[Any]:
    """Phase, and what the container is at: "waiting ContainerCreating", "terminated Error 3"."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    states = [
        " ".join([kind, *(str(inner[key]) for key in ("reason", "exitCode") if key in inner)])
        for status in statuses
        for kind, inner in status["state"].items()
    ]
    return [pod.get("status", {}).get("phase"), *states]


# --- what is asked --------------------------------------------------------------------------------------------


def pod_that_ends_well(server: Server) -> Answers:
    created = server.create("well", "echo one; echo two")
    ended = server.when("well", "Succeeded", "Failed")
    asked = {
        "created": told(server, created),
        "ended": told(server, ended),
        "state": state_of(ended.json()),
        "conditions": {c["type"]: [c["status"], c.get("reason")] for c in ended.json()["status"]["conditions"]},
        "listed": told(server, server.ask("GET", "pods", labelSelector="asked=well")),
        "deleted": told(server, server.ask("DELETE", "pods/well", {"gracePeriodSeconds": 0})),
    }
    return asked


def pod_that_fails(server: Server) -> Answers:
    server.create("ill", "exit 3")
    return {"state": state_of(server.when("ill", "Succeeded", "Failed").json())}


def pod_that_has_no_place(server: Server) -> Answers:
    server.create("huge", "true", nodeSelector={"updraft.dev/gpu-type": "nobody-has-this"})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (conditions := server.ask("GET", "pods/huge").json()["status"].get("conditions")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    log = server.ask("GET", "pods/huge/log")
    return {
        "conditions": [[c["type"], c["status"], c["reason"]] for c in conditions],
        "log": [log.status, log.data.decode()],
    }


def life_in_a_watch(server: Server) -> Answers:
    """Each state once, in order: how often a state is told is the server's own business, and whether a container's end
    is told before its pod's."""
    version = server.ask("GET", "pods").json()["metadata"]["resourceVersion"]
    server.create("seen", "sleep 3; exit 4")  # a kubelet looks each second
    server.when("seen", "Failed")
    server.ask("DELETE", "pods/seen", {"gracePeriodSeconds": 0})
    query = {"watch": "True", "resourceVersion": version, "timeoutSeconds": 2, "fieldSelector": "metadata.name=seen"}
    answer = server.ask("GET", "pods", **query)
    story: list[list[Any]] = []
    for line in answer.data.decode().splitlines():
        event = json.loads(line)
        step = [event["type"], *state_of(event["object"])]
        ended_alone = step[1] == "Running" and step[-1].startswith("terminated")
        if not ended_alone and (not story or story[-1] != step):
            story.append(step)
    return {"code": answer.status, "type": answer.headers["Content-Type"].partition(";")[0], "story": story}


def log_framing(server: Server) -> Answers:
    server.create("talks", "echo one; echo two; printf three")
    server.when("talks", "Succeeded", "Failed")

    def said(**query: Any) -> list[Any]:
        answer = server.ask("GET", "pods/talks/log", container="base", **query)
        kind = (answer.headers.get("Content-Type") or "").partition(";")[0]
        return [answer.status, kind, steady(server, answer.data.decode())]

    return {
        "plain": said(),
        "followed": said(follow="True"),
        "tail": said(tailLines=1),
        "bytes": said(limitBytes=5),
        "stamped": said(timestamps="True"),
        "wrong_container": told(server, server.ask("GET", "pods/talks/log", container="nobody")),
        "wrong_pod": told(server, server.ask("GET", "pods/nobody/log")),
        "wrong_number": [server.ask("GET", "pods/talks/log", tailLines=-1).status],
    }


def refusals(server: Server) -> Answers:
    server.create("there", "sleep 60")
    wrong = server.pod("Not_A_Name", "true", restartPolicy="Sometimes")
    nowhere = server.pod("p", "true")
    nowhere["metadata"]["namespace"] = "another"
    several = server.ask("POST", "pods", wrong)
    spec = {"spec": {"restartPolicy": "Always"}}
    asked = {
        "absent": server.ask("GET", "pods/nobody"),
        "absent_deleted": server.ask("DELETE", "pods/nobody"),
        "absent_patched": server.ask("PATCH", "pods/nobody", {"metadata": {}}, kind=MERGE),
        "twice": server.create("there", "sleep 60"),
        "selector": server.ask("GET", "pods", labelSelector="a in (b"),
        "other_namespace": server.ask("POST", "pods", nowhere),
        "secret_absent": server.ask("GET", "secrets/nobody"),
        "eviction_absent": server.ask("POST", "pods/nobody/eviction", eviction("nobody")),
    }
    changed = server.ask("PATCH", "pods/there", spec, kind=MERGE)
    return {
        **{name: told(server, answer) for name, answer in asked.items()},
        "several": [several.status, sorted({c["field"] for c in several.json()["details"]["causes"]})],
        "changed": [changed.status, changed.json()["reason"]],
    }


def eviction(name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


def removals(server: Server) -> Answers:
    server.create("leaves", "trap '' TERM; sleep 60")
    server.when("leaves", "Running")
    first = told(server, server.ask("POST", "pods/leaves/eviction", eviction("leaves")))
    again = server.ask("DELETE", "pods/leaves", {"gracePeriodSeconds": 1})
    marked = again.json()["metadata"]
    return {"evicted": first, "deleted": [again.status, "deletionTimestamp" in marked]}


def other_objects(server: Server) -> Answers:
    secret = {"metadata": {"name": "word"}, "stringData": {"k": "v"}, "type": "Opaque"}
    service = {"metadata": {"name": "gang"}, "spec": {"clusterIP": "None", "ports": [{"port": 29500}]}}
    asked = {
        "secret_created": server.ask("POST", "secrets", secret),
        "secret_read": server.ask("GET", "secrets/word"),
        "secret_deleted": server.ask("DELETE", "secrets/word"),
        "service_created": server.ask("POST", "services", service),
        "service_listed": server.ask("GET", "services"),
        "service_deleted": server.ask("DELETE", "services/gang"),
        "namespace": server.ask("GET", f"/api/v1/namespaces/{server.namespace}"),
        "nodes": server.ask("GET", "/api/v1/nodes"),
    }
    return {name: told(server, answer) for name, answer in asked.items()}


def events(server: Server) -> Answers:
    server.create("reported", "true")
    server.when("reported", "Succeeded", "Failed")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:  # the scheduler and the kubelet tell them in their own time
        answer = server.ask("GET", "events", fieldSelector="involvedObject.name=reported")
        items = answer.json()["items"]
        if {"Scheduled", "Started"} <= {e["reason"] for e in items}:
            break
        assert time.monotonic() < deadline, answer.data
        time.sleep(0.1)
    return {
        "list": told(server, answer),
        "reasons": sorted({e["reason"] for e in items}),
        "types": sorted({e["type"] for e in items}),
    }


QUESTIONS: tuple[Callable[[Server], Answers], ...] = (
    pod_that_ends_well,
    pod_that_fails,
    pod_that_has_no_place,
    life_in_a_watch,
    log_framing,
    refusals,
    removals,
    other_objects,
    events,
)
