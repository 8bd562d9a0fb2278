"""List the cluster's nodes once for all queued jobs of a triggerer, however many there are.

Used by `updraft.triggers` only, in the triggerer's event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from updraft.exceptions import UnavailableError
from updraft.kubernetes.clients import async_client
from updraft.kubernetes.throttling import asked_pause_seconds

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

KEPT_SECONDS = 1.5
TIMEOUT_SECONDS = 20


@dataclass
class _Answer:
    """The cluster's last answer, and the time until which it is not asked again."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    until: float = 0.0  # on the monotonic clock
    nodes: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None


_answers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Answer]] = WeakKeyDictionary()


async def nodes_of(
    conn_id: str,
    *,
    connect: Callable[[str], Awaitable[ApiClient]] = async_client,
    clock: Callable[[], float] = monotonic,
) -> list[dict[str, Any]]:
    """Return the nodes as the API lists them, at most KEPT_SECONDS old.

    Each time they are listed, `connect` creates a client, which knows a token that was renewed meanwhile.

    Raises UnavailableError when they cannot be listed. A server that asks for a pause is not asked again before it
    ends.
    """
    answer = _answers.setdefault(asyncio.get_running_loop(), {}).setdefault(conn_id, _Answer())
    async with answer.lock:  # of several callers at a time, one asks the cluster
        if clock() >= answer.until:
            answer.until = await _renew(answer, connect(conn_id)) + clock()
        if answer.problem is not None:
            raise UnavailableError(answer.problem)
        return answer.nodes


async def _renew(answer: _Answer, connecting: Awaitable[ApiClient]) -> float:
    """Ask the cluster; return for how many seconds not to ask it again."""
    pause = KEPT_SECONDS
    try:
        answer.nodes = await _list(await connecting)
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


async def _list(client: ApiClient) -> list[dict[str, Any]]:
    """List the nodes, and close the client."""
    from kubernetes_asyncio.client import ApiException, CoreV1Api

    async with client as api:
        # Version 0: from the server's cache. As plain JSON: building the client's objects takes long.
        response: Any = await CoreV1Api(api).list_node(
            resource_version="0", _request_timeout=TIMEOUT_SECONDS, _preload_content=False
        )
        async with response:
            if response.status >= 400:
                refused = ApiException(status=response.status, reason=response.reason)
                refused.headers = response.headers
                raise refused
            return list(json.loads(await response.read())["items"])
