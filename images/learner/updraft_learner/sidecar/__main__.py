"""`python -m updraft_learner.sidecar`: runs until SIGTERM, which the kubelet sends after the program has ended.

`--health` asks a running sidecar instead and ends with 0 or 1: an exec probe, because the endpoint listens on the pod's
loopback address, which the kubelet's own HTTP probe does not reach.
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
import threading

from updraft_learner.contract import ExitCode
from updraft_learner.pod import PodError, read_config, read_credentials, read_paths
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.sidecar.endpoint import HEALTH_PATH
from updraft_learner.sidecar.report import log
from updraft_learner.sidecar.tracking import TrackingServer
from updraft_learner.store import Store

NICENESS = 10


def main(arguments: list[str]) -> int:
    """Entry; returns the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        config, paths = read_config(), read_paths()
        if arguments == ["--health"]:
            return check_health(config.listen)
        credentials = read_credentials()
        os.nice(NICENESS)
        store = Store(config.bucket, credentials.s3)
        server = TrackingServer(credentials.mlflow, run_id=config.mlflow_run_id)
        sidecar = Sidecar(config, paths, store, server)
    except (PodError, ValueError) as exc:
        print(f"updraft-sidecar: {exc}", file=sys.stderr, flush=True)
        return int(ExitCode.CONFIGURATION)
    except OSError as exc:
        print(f"updraft-sidecar: cannot start on {config.listen}: {exc}", file=sys.stderr, flush=True)
        return 1
    sidecar.start()
    stop.wait()
    sidecar.drain()
    return int(ExitCode.DONE)


def check_health(listen: str) -> int:
    host, _, port = listen.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=3)
    try:
        connection.request("GET", HEALTH_PATH)
        return 0 if connection.getresponse().status == 200 else 1
    except (OSError, http.client.HTTPException) as exc:
        log(f"not healthy: {exc}")
        return 1
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
