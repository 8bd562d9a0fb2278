"""`python -m updraft_learner.sidecar.probe [SECONDS]`: ends with 0 once the sidecar beside it answers, with 1 when it
has not answered for so long.

The sidecar's postStart hook. The endpoint listens on the pod's loopback address, which nothing outside of the pod could
ask. It imports next to nothing: the program's start waits for it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

CONFIG_ENV = "UPDRAFT_POD_CONFIG"  # the contract's, which takes longer to import than the rest of this
HEALTH_PATH = "/updraft/health"
WAIT_SECONDS = 120.0  # then the sidecar is started again
PAUSE_SECONDS = 0.02


def main(arguments: list[str]) -> int:
    """Entry; returns the exit code."""
    wait_seconds = float(arguments[0]) if arguments else WAIT_SECONDS
    try:
        host, _, port = json.loads(os.environ[CONFIG_ENV])["listen"].rpartition(":")
        address = (host.strip("[]"), int(port))
    except (KeyError, ValueError, TypeError, AttributeError):
        print(f"updraft-sidecar: {CONFIG_ENV} is not a valid pod configuration", file=sys.stderr)
        return 64  # ExitCode.CONFIGURATION
    deadline = time.monotonic() + wait_seconds
    while True:
        problem = ask(address, max(deadline - time.monotonic(), 0.5))
        if problem is None:
            return 0
        if time.monotonic() >= deadline:
            print(f"updraft-sidecar: no answer at {host}:{port}: {problem}", file=sys.stderr)
            return 1
        time.sleep(PAUSE_SECONDS)


def ask(address: tuple[str, int], timeout_seconds: float) -> str | None:
    """What is wrong, or None when the sidecar answers."""
    try:
        with socket.create_connection(address, timeout_seconds) as connection:
            connection.sendall(f"GET {HEALTH_PATH} HTTP/1.0\r\n\r\n".encode())
            head = connection.recv(64)
    except OSError as exc:
        return exc.strerror or type(exc).__name__
    return None if head.split(b" ")[1:2] == [b"200"] else "it does not say 200"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
