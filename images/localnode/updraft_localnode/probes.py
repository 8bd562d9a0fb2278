"""Run startup and readiness probes and postStart hooks: httpGet, tcpSocket and exec, on the host's ports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from updraft_localnode.environment import ContainerLaunch
from updraft_localnode.errors import Json
from updraft_localnode.translate import LOOPBACK, Translation

PROBE_ERRORS = (OSError, ValueError, IndexError, StopIteration, TimeoutError)


def port_number(port: Any, container: Json) -> int:
    """Return a probe's port, which is given as a number or as the name of one of the container's ports."""
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    return next(int(p["containerPort"]) for p in container.get("ports") or [] if p.get("name") == port)


async def _http(probe: Json, port: int) -> None:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        headers = "".join(f"{h['name']}: {h['value']}\r\n" for h in probe.get("httpHeaders") or [])
        path = probe.get("path") or "/"
        request = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nUser-Agent: kube-probe\r\nConnection: close\r\n"
        writer.write(f"{request}{headers}\r\n".encode())
        await writer.drain()
        status = int((await reader.readline()).split()[1])
    finally:
        writer.close()
    if not 200 <= status < 400:
        raise OSError(f"HTTP probe failed with statuscode: {status}")


async def _exec(command: list[str], launch: ContainerLaunch) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(launch.environment),
        cwd=launch.cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if status != 0:
        raise OSError(f"command ended with {status}")


async def run_once(probe: Json, container: Json, translation: Translation, launch: ContainerLaunch) -> None:
    """Run the action of a probe or a hook. Raises one of PROBE_ERRORS when it fails."""
    if action := probe.get("httpGet"):
        await _http(action, translation.port(port_number(action["port"], container)))
    elif action := probe.get("tcpSocket"):
        _, writer = await asyncio.open_connection(LOOPBACK, translation.port(port_number(action["port"], container)))
        writer.close()
    elif action := probe.get("exec"):
        await _exec([translation.text(word) for word in action["command"]], launch)


async def wait_until_started(
    probe: Json,
    container: Json,
    translation: Translation,
    launch: ContainerLaunch,
    unhealthy: Callable[[str], None],
) -> bool:
    """Ask until the probe passes; False once it failed `failureThreshold` times in a row."""
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    for _ in range(probe.get("failureThreshold") or 3):
        try:
            await asyncio.wait_for(run_once(probe, container, translation, launch), probe.get("timeoutSeconds") or 1)
            return True
        except PROBE_ERRORS as exc:
            unhealthy(f"Startup probe failed: {exc or type(exc).__name__}")
        await asyncio.sleep(probe.get("periodSeconds") or 10)
    return False


async def keep_asking(
    probe: Json,
    container: Json,
    translation: Translation,
    launch: ContainerLaunch,
    tell: Callable[[bool], None],
    unhealthy: Callable[[str], None],
    before: Callable[[], None],
) -> None:
    """Run a readiness probe until it is cancelled, and report whether the container is ready. `before` is called in a
    thread before each run."""
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    failures = 0
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(before)
        try:
            await asyncio.wait_for(run_once(probe, container, translation, launch), probe.get("timeoutSeconds") or 1)
            failures = 0
            tell(True)
        except PROBE_ERRORS as exc:
            failures += 1
            unhealthy(f"Readiness probe failed: {exc or type(exc).__name__}")
            if failures >= (probe.get("failureThreshold") or 3):
                tell(False)
        await asyncio.sleep(probe.get("periodSeconds") or 10)
