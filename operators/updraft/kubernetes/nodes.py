"""List the cluster's nodes, with what pods of other workloads take of them.

In a triggerer they are listed once for all queued jobs, however many there are.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from updraft.exceptions import UnavailableError
from updraft.kubernetes.clients import async_client
from updraft.kubernetes.other_pods import LIVE, OTHERS, Amounts, used_by, with_used
from updraft.kubernetes.throttling import asked_pause_seconds

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api
    from kubernetes_asyncio.client import ApiClient

log = logging.getLogger(__name__)

KEPT_SECONDS = 1.5
PODS_KEPT_SECONDS = 15.0  # a cluster may have ten thousand pods
REFUSED_SECONDS = 300.0  # the platform may not list the pods of all namespaces
TIMEOUT_SECONDS = 20


@dataclass
class _Answer:
    """The cluster's last answer, and the time until which it is not asked again."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    until: float = 0.0  # on the monotonic clock
    nodes: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None
    used: dict[str, Amounts] = field(default_factory=dict)  # by pods of other workloads
    pods_until: float = 0.0


_answers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Answer]] = WeakKeyDictionary()


async def nodes_of(
    conn_id: str,
    *,
    connect: Callable[[str], Awaitable[ApiClient]] = async_client,
    clock: Callable[[], float] = monotonic,
) -> list[dict[str, Any]]:
    """Return the nodes as the API lists them, at most KEPT_SECONDS old, with what pods of other workloads take, at most
    PODS_KEPT_SECONDS old.

    Each time they are listed, `connect` creates a client, which knows a token that was renewed meanwhile.

    Raises UnavailableError when they cannot be listed. A server that asks for a pause is not asked again before it
    ends.
    """
    answer = _answers.setdefault(asyncio.get_running_loop(), {}).setdefault(conn_id, _Answer())
    async with answer.lock:  # of several callers at a time, one asks the cluster
        if clock() >= answer.until:
            answer.until = await _renew(answer, connect(conn_id), clock) + clock()
        if answer.problem is not None:
            raise UnavailableError(answer.problem)
        return answer.nodes


async def _renew(answer: _Answer, connecting: Awaitable[ApiClient], clock: Callable[[], float]) -> float:
    """Ask the cluster; return for how many seconds not to ask it again."""
    pause = KEPT_SECONDS
    try:
        async with await connecting as api:
            nodes = await _list(api, "list_node")
            if clock() >= answer.pods_until:
                answer.pods_until = clock() + await _renew_pods(answer, api)
        answer.nodes = with_used(nodes, answer.used)
    except UnavailableError as exc:
        answer.problem = str(exc)
    except Exception as exc:  # noqa: BLE001 - client, connection and Airflow have errors of their own; all mean waiting
        status = getattr(exc, "status", None)
        why = f"it answered {status}" if status else type(exc).__name__
        answer.problem = f"the cluster's nodes cannot be listed ({why}); `updraft doctor` tells what is wrong with it"
        pause = max(pause, asked_pause_seconds(exc))
    else:
        answer.problem = None
    return pause


async def _renew_pods(answer: _Answer, api: ApiClient) -> float:
    """List the pods of other workloads; return for how many seconds not to do so again. Without them, the nodes are
    still known."""
    try:
        pods = await _list(api, "list_pod_for_all_namespaces", label_selector=OTHERS, field_selector=LIVE)
        answer.used = await asyncio.to_thread(used_by, pods)
    except Exception as exc:  # noqa: BLE001 - as for the nodes
        refused = getattr(exc, "status", None) in (401, 403)
        log.warning("What pods of other workloads take is not known (%s)", getattr(exc, "reason", None) or exc)
        if refused:
            answer.used = {}
        return REFUSED_SECONDS if refused else max(PODS_KEPT_SECONDS, asked_pause_seconds(exc))
    return PODS_KEPT_SECONDS


async def _list(api: ApiClient, call: str, **selectors: str) -> list[dict[str, Any]]:
    """Return what the API lists."""
    from kubernetes_asyncio.client import ApiException, CoreV1Api

    # Version 0: from the server's cache. As plain JSON: building the client's objects takes long.
    response: Any = await getattr(CoreV1Api(api), call)(
        resource_version="0", _request_timeout=TIMEOUT_SECONDS, _preload_content=False, **selectors
    )
    async with response:
        if response.status >= 400:
            refused = ApiException(status=response.status, reason=response.reason)
            refused.headers = response.headers
            raise refused
        text = await response.read()
    # In a thread: ten thousand pods are fifty megabytes, and this loop serves all jobs.
    return list((await asyncio.to_thread(json.loads, text))["items"])


def with_other_pods(core: CoreV1Api, nodes: list[dict[str, Any]], timeout_seconds: float) -> list[dict[str, Any]]:
    """Return the nodes, as the API lists them, with what pods of other workloads take, for code without an event loop.
    Without an answer nothing of theirs is counted."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        answer = core.list_pod_for_all_namespaces(
            label_selector=OTHERS,
            field_selector=LIVE,
            resource_version="0",
            _request_timeout=timeout_seconds,
            _preload_content=False,  # as plain JSON, as above
        )
    except (ApiException, HTTPError) as exc:
        log.warning("What pods of other workloads take is not known (%s)", getattr(exc, "reason", None) or exc)
        return nodes
    return with_used(nodes, used_by(json.loads(answer.data)["items"]))
