"""Read a kubeconfig: its contexts, the one to use, and a client for it. Called by the doctor and `admit`.

A file with several contexts needs an explicit choice. Its `current-context` is ignored: kubectl changes it, and the
platform runs for months.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from updraft.exceptions import RefusedError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


@dataclass(frozen=True)
class Chosen:
    """One context of a kubeconfig."""

    path: Path
    context: str
    server: str


def choose(path: Path, context: str | None = None) -> Chosen:
    """Return the context that is meant. Raises RefusedError naming the file, what is in it, and what to do."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise RefusedError(
            f"kubeconfig: {path} does not exist; give the path of a file that reaches your cluster with kubectl"
        ) from None
    except UnicodeDecodeError:
        raise RefusedError(_no_kubeconfig(str(path))) from None
    except OSError as exc:
        raise RefusedError(f"kubeconfig: {path} cannot be read ({exc.strerror}); repair its permissions") from None
    return Chosen(path, *_choose(str(path), text, context))


def choose_inside(document: str | Mapping[str, Any], context: str | None = None) -> str:
    """Return the same of a kubeconfig that Airflow's connection holds itself."""
    return _choose("kube_config of Airflow's connection", document, context)[0]


def _choose(where: str, document: str | Mapping[str, Any], context: str | None) -> tuple[str, str]:
    """Return the context's name and its server."""
    contexts, servers = _read(where, document)
    if not contexts:
        raise RefusedError(
            f"kubeconfig: {where} holds no context; take the file that reaches your cluster with kubectl"
        )
    names = ", ".join(sorted(contexts))
    if context is None and len(contexts) > 1:
        raise RefusedError(
            f"kubeconfig: {where} holds {len(contexts)} contexts ({names}), and none is chosen; name the one to use: "
            "--context NAME, or cluster_context in Airflow's connection"
        )
    name = next(iter(contexts)) if context is None else context
    if name not in contexts:
        raise RefusedError(f"kubeconfig: {where} has no context {name!r}; it holds {names}")
    cluster = str(contexts[name].get("cluster") or "")
    if not servers.get(cluster):
        raise RefusedError(
            f"kubeconfig: context {name!r} of {where} names the cluster {cluster!r}, "
            "which has no server's address there"
        )
    return name, servers[cluster]


def _read(where: str, document: str | Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return the contexts and the servers' addresses by name. No message repeats the document, which holds secrets."""
    from yaml import YAMLError, safe_load

    try:
        found = safe_load(document) if isinstance(document, str) else document
        contexts = {str(item["name"]): item.get("context") or {} for item in found.get("contexts") or ()}
        servers = {
            str(item["name"]): str((item.get("cluster") or {}).get("server") or "")
            for item in found.get("clusters") or ()
        }
    except (YAMLError, AttributeError, KeyError, TypeError):
        raise RefusedError(_no_kubeconfig(where)) from None
    return contexts, servers


def _no_kubeconfig(where: str) -> str:
    return f"kubeconfig: {where} is no kubeconfig; `kubectl config view` shows how one looks"


def client_of(chosen: Chosen) -> ApiClient:
    """Create a client without retries. Raises RefusedError for credentials that the file does not hold or cannot
    get."""
    from kubernetes import client, config
    from kubernetes.config import ConfigException

    settings = client.Configuration()
    settings.retries = False
    try:
        config.load_kube_config(
            str(chosen.path), context=chosen.context, client_configuration=settings, persist_config=False
        )
    except (ConfigException, OSError) as exc:
        raise RefusedError(f"kubeconfig: context {chosen.context!r} of {chosen.path} cannot be used: {exc}") from None
    return client.ApiClient(settings)
