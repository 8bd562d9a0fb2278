"""Ask a part over HTTP whether it is ready. Called by `supervisor`, `watchdog` and `doctor`."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

from updraft.stack.layout import StackError
from updraft.stack.parts import Probe

TIMEOUT_SECONDS = 5.0
# These are loopback addresses: never use a proxy of the environment.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoAnswerError(StackError):
    """An address did not answer as it should. `code`: the status of its answer; None if there was no answer."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


def ask(probe: Probe, timeout_seconds: float) -> bytes:
    """Return the body of the answer. Raises NoAnswerError."""
    try:
        with _opener.open(probe.url, timeout=timeout_seconds) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as exc:
        exc.close()
        if probe.any_answer and exc.code < 500:
            return b""
        raise NoAnswerError(f"{probe.url} answers {exc.code}", exc.code) from exc
    except (OSError, http.client.HTTPException) as exc:
        reason = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        raise NoAnswerError(f"{probe.url} does not answer ({reason})") from exc


def not_ready_because(probe: Probe, *, since: float = 0.0) -> str | None:
    """Return None if the part is ready, else why not. `since`: Unix time in seconds; an older heartbeat is another
    process's."""
    try:
        body = ask(probe, TIMEOUT_SECONDS)
    except NoAnswerError as exc:
        return str(exc)
    return None if probe.component is None else _component(probe.component, body, since)


def heartbeat_age_seconds(component: str, body: bytes, now: float) -> float | None:
    """Return the age of a daemon's last heartbeat in Airflow's health report; None if the report lacks it, as when
    Airflow's database does not answer. `now`: Unix time in seconds."""
    try:
        beat = datetime.fromisoformat(json.loads(body)[component][f"latest_{component}_heartbeat"])
    except (KeyError, TypeError, ValueError):
        return None
    return now - beat.timestamp()


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
