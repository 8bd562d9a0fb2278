"""The services of docker-compose.yaml as one pod: what a namespace of somebody's cluster gets a whole platform from.

Services that others wait for become init containers in that order: those that go on as sidecars, which count once their
image's own health check passes, one-shots as they are. Ports are the pod's, so a name of the compose network is its
loopback address. Nothing is kept when the pod goes. Pure functions; called by `namespace_platform`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml
from containers import recipes
from containers.places import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yaml"
LEFT_OUT = ("node", "cli")  # the cluster itself takes the place of the bundled one, the tests that of the command
NAME, SECRET, FILES = "platform", "platform", "platform-files"
ACCOUNT = "platform"
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
READY_PROBES = 120
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_HEALTH = re.compile(r"^HEALTHCHECK .*CMD (\[.*\])$", re.MULTILINE)
_SIZES = {"m": "Mi", "g": "Gi"}


@dataclass(frozen=True)
class Composed:
    """Objects of one platform, all in one namespace, but for the secret's content."""

    pod: dict[str, Any]
    files: dict[str, Any]  # a ConfigMap: what compose mounts from the checkout
    services: tuple[dict[str, Any], ...]  # for learners, by the names that the pod itself uses
    secrets: frozenset[str]  # names of the files that the secret has to hold


def composed(variables: Mapping[str, str], image: Mapping[str, str], ports: Mapping[str, int]) -> Composed:
    """`variables` are compose's; `image` has for each name of ours that of the cluster; learners reach `ports`."""
    document = yaml.safe_load(COMPOSE.read_text())
    services = {name: found for name, found in document["services"].items() if name not in LEFT_OUT}
    containers = {name: _container(name, services[name], variables, image) for name in _order(services)}
    awaited = {other for service in services.values() for other in service.get("depends_on", ())}
    first = [{**container, **_goes_on(services[name])} for name, container in containers.items() if name in awaited]
    volumes = sorted({m["name"] for c in containers.values() for m in c["volumeMounts"]} - {SECRET, FILES, "token"})
    used = {m["subPath"] for c in containers.values() for m in c["volumeMounts"] if m["name"] == SECRET}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": {"app": NAME}},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "hostAliases": [{"ip": "127.0.0.1", "hostnames": sorted(services)}],
            "initContainers": first,
            "containers": [container for name, container in containers.items() if name not in awaited],
            "volumes": [
                *({"name": name, "emptyDir": {}} for name in volumes),
                {"name": SECRET, "secret": {"secretName": SECRET}},
                {"name": FILES, "configMap": {"name": FILES}},
                {"name": "token", "projected": {"sources": _token()}},
            ],
        },
    }
    return Composed(pod, _files(services), tuple(_service(*port) for port in ports.items()), frozenset(used))


def _order(services: Mapping[str, Any]) -> list[str]:
    before = {name: [o for o in s.get("depends_on", ()) if o in services] for name, s in services.items()}
    return list(TopologicalSorter(before).static_order())


def _container(
    name: str, service: Mapping[str, Any], variables: Mapping[str, str], image: Mapping[str, str]
) -> dict[str, Any]:
    given = _filled(service["image"], {})
    secrets = [secret for secret in service.get("secrets", ()) if secret != "kubeconfig"]
    environment = {
        key: _filled(str(value), variables)
        for key, value in (service.get("environment") or {}).items()
        if value is not None
    }
    mounts = [{"name": SECRET, "mountPath": f"/run/secrets/{s}", "subPath": s, "readOnly": True} for s in secrets]
    mounts += [m for text in (*service.get("volumes", ()), *service.get("tmpfs", ())) for m in _mounts(name, text)]
    if len(secrets) < len(service.get("secrets", ())):  # it speaks to the cluster
        mounts.append({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True})
        connection = {"conn_type": "kubernetes", "extra": {"in_cluster": True}}
        environment["AIRFLOW_CONN_UPDRAFT_KUBERNETES"] = json.dumps(connection)
    container = {
        "name": name,
        "image": image[given],
        **({"command": service["entrypoint"]} if "entrypoint" in service else {}),
        **({"args": [_filled(part, variables) for part in service["command"]]} if service.get("command") else {}),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"memory": _size(service["deploy"]["resources"]["limits"]["memory"])},
        },
    }
    if "restart" in service:
        probe = {"exec": {"command": _health(given)}, "periodSeconds": 2, "timeoutSeconds": 20}
        container["startupProbe"] = {**probe, "failureThreshold": READY_PROBES}
    return container


def _goes_on(service: Mapping[str, Any]) -> dict[str, str]:
    """Beside those that begin after it."""
    return {"restartPolicy": "Always"} if "restart" in service else {}


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """`${NAME:-default}`, as compose reads it."""
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[2] or ""), text)


def _mounts(service: str, text: str) -> list[dict[str, Any]]:
    """Of `./file:/path:ro`, `./folder:/path:ro`, `volume:/path`, or a tmpfs `/path:options`."""
    source, _, rest = text.partition(":")
    if source.startswith("/"):
        return [{"name": f"{service}{source.replace('/', '-')}", "mountPath": source}]
    if not source.startswith("./"):
        return [{"name": source, "mountPath": rest}]
    target, folder = rest.partition(":")[0], REPOSITORY / source
    places = {file: f"{target}/{file.name}" for file in folder.iterdir()} if folder.is_dir() else {folder: target}
    return [{"name": FILES, "mountPath": at, "subPath": f.name, "readOnly": True} for f, at in places.items()]


def _files(services: Mapping[str, Any]) -> dict[str, Any]:
    """What compose mounts from the checkout, by the files' own names, which differ."""
    mounted = {text.partition(":")[0] for service in services.values() for text in service.get("volumes", ())}
    paths = [REPOSITORY / source for source in sorted(mounted) if source.startswith("./")]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    data = {file.name: file.read_text() for file in files}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": FILES}, "data": data}


def _health(image: str) -> list[str]:
    """The image's own health check, of its Dockerfile."""
    recipe = next(recipe for recipe in recipes.RECIPES if recipe.name == image)
    found = _HEALTH.search(Path(REPOSITORY / recipe.dockerfile).read_text())
    assert found is not None, recipe.dockerfile
    command: list[str] = json.loads(found[1])
    return command


def _size(text: str) -> str:
    """`512m` is 512Mi to Kubernetes."""
    return text[:-1] + _SIZES[text[-1]]


def _token() -> list[dict[str, Any]]:
    return [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]


def _service(name: str, port: int) -> dict[str, Any]:
    """Headless: MLflow and the store have to be found while the pod's later containers are not there yet."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"app": NAME},
            "ports": [{"name": "http", "port": port}],
        },
    }
