"""Asking a part over HTTP whether it is ready. Called by `supervisor` and `status`."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

from updraft.stack.parts import Probe

TIMEOUT_SECONDS = 5.0
# Loopback only: a proxy of the environment has no business here.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def not_ready_because(probe: Probe, *, since: float = 0.0) -> str | None:
    """None when ready, else why not. `since`: unix seconds; an older heartbeat is another process's."""
    try:
        with _opener.open(probe.url, timeout=TIMEOUT_SECONDS) as response:
            body = response.read()
    except urllib.error.HTTPError as exc:
        exc.close()
        if probe.any_answer and exc.code < 500:
            return None
        return f"{probe.url} answers {exc.code}"
    except (OSError, http.client.HTTPException) as exc:
        reason = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        return f"{probe.url} does not answer ({reason})"
    return None if probe.component is None else _component(probe.component, body, since)


def _component(component: str, body: bytes, since: float) -> str | None:
    try:
        report: dict[str, Any] = json.loads(body)[component]
    except (KeyError, TypeError, ValueError):
        return f"Airflow's health report has no {component}"
    beat = report.get(f"latest_{component}_heartbeat")
    if not beat:
        return f"{component} has sent no heartbeat"
    if datetime.fromisoformat(beat.replace("Z", "+00:00")).timestamp() < since:
        return f"{component} has sent no heartbeat since its start"
    return None if report.get("status") == "healthy" else f"{component} is {report.get('status')}"
