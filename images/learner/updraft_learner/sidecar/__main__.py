"""`python -m updraft_learner.sidecar`: runs until SIGTERM, which the kubelet sends after the program has ended.

A second SIGTERM changes nothing: what is left is stored until SIGKILL ends the pod's grace period.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from updraft_learner.contract import ExitCode
from updraft_learner.pod import PodError, read_config, read_credentials, read_paths
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.sidecar.tracking import TrackingServer
from updraft_learner.store import open_store
from updraft_learner.uploads import UploadBook

NICENESS = 10
CONTROL_SECONDS = 10.0  # the store's answer to what somebody waits for


def main() -> int:
    """Entry; returns the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        config, paths = read_config(), read_paths()
        credentials = read_credentials()
        store = open_store(config.bucket, credentials.s3, uploads=UploadBook(paths.private / "uploads"))
        control = open_store(config.bucket, credentials.s3, attempts=1, read_seconds=CONTROL_SECONDS)
        server = TrackingServer(credentials.mlflow, run_id=config.mlflow_run_id)
        sidecar = Sidecar(config, paths, store, server, control)
    except (PodError, ValueError) as exc:
        print(f"updraft-sidecar: {exc}", file=sys.stderr, flush=True)
        return int(ExitCode.CONFIGURATION)
    except OSError as exc:
        print(f"updraft-sidecar: cannot start on {config.listen}: {exc}", file=sys.stderr, flush=True)
        return 1
    os.nice(NICENESS)  # of this thread and those that it starts; not before: the program waits for what came so far
    sidecar.start()
    stop.wait()
    sidecar.drain()
    if not sidecar.fence.fenced:
        store.uploads.abort_kept()
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
