"""Pods on a real cluster, for its tests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kubecluster.objects import RESTRICTED
from kubecluster.target import Target
from kubernetes import client, config

WITHIN_SECONDS = 60.0


def eventually(ask: Callable[[], Any], *, within_seconds: float = WITHIN_SECONDS) -> Any:
    """The first truthy answer."""
    deadline = time.monotonic() + within_seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {within_seconds} s"
        time.sleep(0.1)


@contextmanager
def pods_apart(target: Target) -> Iterator[Pods]:
    """In a namespace of their own that enforces the Pod Security profile "restricted", as namespaces of jobs do."""
    made = Pods(target, f"updraft-test-{uuid.uuid4().hex[:8]}")
    made.create_namespace()
    try:
        yield made
    finally:
        made.core.delete_namespace(made.namespace)


class Pods:
    """A namespace, and pods with one container `base` in it."""

    def __init__(self, target: Target, namespace: str) -> None:
        self.target, self.namespace = target, namespace
        self.api_client = config.new_client_from_config(str(target.kubeconfig))
        self.core = client.CoreV1Api(self.api_client)

    def create_namespace(self) -> None:
        self.core.create_namespace({"metadata": {"name": self.namespace, "labels": RESTRICTED}})
        # Pods are refused until the controller has made it.
        eventually(lambda: self._has_account())

    def _has_account(self) -> bool:
        return bool(self.core.list_namespaced_service_account(self.namespace).items)

    def body(self, name: str, script: str, *, base: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
        """As "restricted" wants it. `base` and `spec` add to the container and the pod."""
        container = {
            "name": "base",
            "image": self.target.python_image,
            "command": ["/bin/sh", "-c", script],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            **(base or {}),
        }
        return {
            "metadata": {"name": name, "labels": spec.pop("labels", {})},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
                **spec,
            },
        }

    def create(self, name: str, script: str, **options: Any) -> None:
        self.core.create_namespaced_pod(self.namespace, self.body(name, script, **options))

    def read(self, name: str) -> Any:
        return self.core.read_namespaced_pod(name, self.namespace)

    def in_phase(self, name: str, *phases: str) -> Any:
        def reached() -> Any:
            pod = self.read(name)
            return pod if pod.status.phase in phases else None

        return eventually(reached)

    def finished(self, name: str) -> Any:
        return self.in_phase(name, "Succeeded", "Failed")

    def terminated(self, name: str) -> Any:
        """How the container of a finished pod ended."""
        return self.finished(name).status.container_statuses[0].state.terminated

    def log(self, name: str) -> str:
        # Preloaded, this client's answer is the text of a bytes literal.
        answer = self.core.read_namespaced_pod_log(name, self.namespace, _preload_content=False)
        return str(answer.data.decode())
