"""Make a container's environment, command line and folders. Of the host's environment, only the names in
`HOST_VARIABLES` are passed on.

If a container sets HOME or TMPDIR to a path outside of its volumes, it keeps its private folder instead: the path would
be the host's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from updraft_learner.catalogue import Image, environment_path
from updraft_localnode.errors import Json
from updraft_localnode.translate import LOOPBACK, Translation, expand
from updraft_localnode.volumes import NotYetError, SecretReader, secret_bytes

# The host's certificate authorities: without them, programs behind a company's proxy cannot make TLS connections.
HOST_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "TZ")
HOST_PATH = "/usr/bin:/bin"
ENVIRONMENT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
LOOPBACK_INTERFACE = "lo" if sys.platform == "linux" else "lo0"
_KEYED_FIELD = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


@dataclass(frozen=True)
class ContainerFolders:
    """The private folders of one container, and what its image provides."""

    home: Path
    temporary: Path
    path_variable: str
    gpus: tuple[int, ...] | None = None  # None: this node has no GPUs at all


@dataclass(frozen=True)
class ContainerLaunch:
    """Everything that the shim needs to start a container's program."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path


def path_variable(image: Image, images_dir: Path, name: str) -> str:
    """Return PATH inside a container of the image of that name."""
    if image.package is None:
        return HOST_PATH
    return f"{environment_path(images_dir, name) / 'bin'}:{ENVIRONMENT_PATH}"


def _secret(name: str, read_secret: SecretReader, *, optional: bool) -> dict[str, bytes]:
    secret = read_secret(name)
    if secret is None:
        if optional:
            return {}
        raise NotYetError(f'secret "{name}" not found')
    return secret_bytes(secret)


def field_of(pod: Json, path: str) -> str:
    """Return a field of the downward API. Raises NotYetError for a path that it does not have."""
    meta, spec = pod["metadata"], pod["spec"]
    if match := _KEYED_FIELD.match(path):
        return str((meta.get(match.group(1)) or {}).get(match.group(2), ""))
    fields = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": LOOPBACK,
        "status.podIPs": LOOPBACK,
        "status.hostIP": LOOPBACK,
    }
    if path not in fields:
        raise NotYetError(f"unsupported fieldPath: {path}; the local node has {', '.join(fields)}")
    return str(fields[path])


def declared_variables(container: Json, pod: Json, read_secret: SecretReader) -> tuple[dict[str, str], set[str]]:
    """Return the container's own variables before translation, and the names of those whose value is a secret."""
    values: dict[str, str] = {}
    opaque: set[str] = set()
    for source in container.get("envFrom") or []:
        reference = source.get("secretRef")
        if reference is None:
            raise NotYetError("envFrom: the local node has secretRef only")
        found = _secret(reference["name"], read_secret, optional=bool(reference.get("optional")))
        for key, value in found.items():
            values[(source.get("prefix") or "") + key] = value.decode()
            opaque.add((source.get("prefix") or "") + key)
    for item in container.get("env") or []:
        name, origin = item["name"], item.get("valueFrom") or {}
        if reference := origin.get("secretKeyRef"):
            optional = bool(reference.get("optional"))
            found = _secret(reference["name"], read_secret, optional=optional)
            if reference["key"] not in found:
                if optional:
                    continue
                raise NotYetError(f"couldn't find key {reference['key']} in Secret {reference['name']}")
            values[name] = found[reference["key"]].decode()
            opaque.add(name)
        elif reference := origin.get("fieldRef"):
            values[name] = field_of(pod, reference["fieldPath"])
            opaque.discard(name)
        else:
            values[name] = expand(item.get("value") or "", values)
            opaque.discard(name)
    return values, opaque


def _platform_variables(container: Json, pod: Json, place: ContainerFolders, host: Mapping[str, str]) -> dict[str, str]:
    variables = {
        "PATH": place.path_variable,
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        "HOME": str(place.home),
        "TMPDIR": str(place.temporary),
        "LANG": "C.UTF-8",
        "GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE,
        **{name: host[name] for name in HOST_VARIABLES if name in host},
    }
    if place.gpus is not None:
        indices = ",".join(map(str, place.gpus))
        variables |= {"NVIDIA_VISIBLE_DEVICES": indices or "void", "CUDA_VISIBLE_DEVICES": indices}
    return variables


def _working_folder(container: Json, translation: Translation, place: ContainerFolders) -> Path:
    wanted = container.get("workingDir")
    if not wanted:
        return place.home
    host = translation.path(wanted.rstrip("/") or "/")
    return Path(host) if host is not None else place.home / wanted.strip("/")


def launch_of(
    container: Json,
    pod: Json,
    read_secret: SecretReader,
    translation: Translation,
    place: ContainerFolders,
    host: Mapping[str, str],
) -> ContainerLaunch:
    """Return how the container is started. Raises NotYetError if it refers to something that does not exist."""
    declared, opaque = declared_variables(container, pod, read_secret)
    environment = _platform_variables(container, pod, place, host)
    for name, value in declared.items():
        if name in ("HOME", "TMPDIR") and translation.path(value) is None:
            continue
        environment[name] = value if name in opaque else translation.variable(name, value)
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    if not words:
        raise NotYetError("no command specified: images of the local node have no entrypoint; give command or args")
    argv = tuple(translation.text(expand(word, declared)) for word in words)
    return ContainerLaunch(argv, environment, _working_folder(container, translation, place))
