"""`python fakelogs.py KUBECONFIG HOST PORT LINE_SECONDS CERTIFICATE KEY`: the logs of pods that run nowhere.

Answers as a kubelet does to GET /containerLogs/NAMESPACE/POD/CONTAINER: lines with nanoseconds, followed until the
program's container has ended. A program prints at its start, then each LINE_SECONDS, and at its end. KWOK's own server
never ends a log that is followed. Started by `kwok`.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from kubernetes_asyncio import client, config, watch

MAIN = "base"
KEEP_LINES = 200


@dataclass
class Log:
    """What one pod's program has printed; `changed` is replaced by a new event each time it is set."""

    lines: list[str] = field(default_factory=list)
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def print(self, text: str) -> None:
        self.lines.append(f"{stamp(time.time_ns())} {text}\n")
        del self.lines[:-KEEP_LINES]
        self.tell()

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def stamp(nanoseconds: int) -> str:
    """RFC 3339 with nanoseconds, as a container runtime writes it."""
    whole = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 10**9:09d}Z"


def since(lines: list[str], second: str) -> list[str]:
    """Those from a whole second on; all without one."""
    return [line for line in lines if line[:19] >= second[:19]] if second else list(lines)


class Logs:
    """Of every pod in the cluster whose program has started."""

    def __init__(self, line_seconds: float) -> None:
        self._line_seconds = line_seconds
        self._logs: dict[tuple[str, str], Log] = {}

    def of(self, namespace: str, pod: str) -> Log | None:
        return self._logs.get((namespace, pod))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        log = self.of(request.match_info["namespace"], request.match_info["pod"])
        if log is None:
            raise web.HTTPNotFound(text="the pod is not known")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        following = request.query.get("follow") == "true"
        sent = ""
        first = request.query.get("sinceTime", "")
        while True:
            changed, ended = log.changed, log.ended
            for line in since(log.lines, first):
                if line[:30] > sent:
                    await response.write(line.encode())
                    sent = line[:30]
            if ended or not following:
                await response.write_eof()
                return response
            await changed.wait()

    def see(self, kind: str, pod: dict[str, Any]) -> None:
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        if kind == "DELETED":
            gone = self._logs.pop(key, None)
            if gone is not None:
                gone.ended = True
                gone.tell()
            return
        statuses = pod.get("status", {}).get("containerStatuses") or ()
        state: dict[str, Any] = next((s["state"] for s in statuses if s["name"] == MAIN), {})
        if key not in self._logs and ("running" in state or "terminated" in state):
            self._logs[key] = Log()
            self._logs[key].print("the program has started")
        log = self._logs.get(key)
        if log is not None and "terminated" in state and not log.ended:
            log.ended = True
            log.print("the program has ended")

    async def print_lines(self) -> None:
        """Spread over the time between two lines, as programs that started at different times print them."""
        step = 0
        while True:
            for number, log in enumerate(list(self._logs.values())):
                if number % 100 == step % 100 and not log.ended:
                    log.print(f"step {step // 100}")
            step += 1
            await asyncio.sleep(self._line_seconds / 100)

    async def follow_pods(self) -> None:
        api_client = client.ApiClient()
        core = client.CoreV1Api(api_client)
        while True:
            try:
                listed = await core.list_pod_for_all_namespaces()
                for pod in api_client.sanitize_for_serialization(listed)["items"]:
                    self.see("ADDED", pod)
                version = listed.metadata.resource_version
                async with watch.Watch().stream(core.list_pod_for_all_namespaces, resource_version=version) as events:
                    async for event in events:
                        self.see(event["type"], event["raw_object"])
            except Exception as exc:  # noqa: BLE001 - outermost line: listed afresh
                print(f"pods are listed again: {type(exc).__name__}: {exc}", flush=True)
                await asyncio.sleep(0.5)


async def serve(kubeconfig: str, host: str, port: int, line_seconds: float, certificate: str, key: str) -> None:
    await config.load_kube_config(kubeconfig)
    logs = Logs(line_seconds)
    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    trusted = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trusted.load_cert_chain(certificate, key)
    await web.TCPSite(runner, host, port, ssl_context=trusted).start()
    await asyncio.gather(logs.follow_pods(), logs.print_lines())


if __name__ == "__main__":
    _kubeconfig, _host, _port, _line_seconds, _certificate, _key = sys.argv[1:]
    asyncio.run(serve(_kubeconfig, _host, int(_port), float(_line_seconds), _certificate, _key))
