"""`python -m updraft_learner.sidecar`: stage, let the program start, and serve it until SIGTERM, which the kubelet
sends after the program has ended.

A second SIGTERM changes nothing: the sidecar stores the rest until SIGKILL ends the pod's grace period.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TextIO, cast

from updraft_learner.contract import EXPORT_ROLE, ExitCode, PodConfig
from updraft_learner.mlflow_rest import TrackingServer
from updraft_learner.pod import PodCredentials, PodError, PodPaths, read_config, read_credentials, read_paths
from updraft_learner.prepare.errors import SourceError
from updraft_learner.record.report import LogLines
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.sidecar.logged_model import fetch_logged_model
from updraft_learner.sidecar.results_store import open_results_store
from updraft_learner.stage import StageError, let_program_start, stage_once, tell_failure
from updraft_learner.store import StorageError, open_store
from updraft_learner.streams.opening import read_files
from updraft_learner.uploads import UploadBook

NICENESS = 10
CONTROL_SECONDS = 10.0  # timeout of the store while a caller waits
LOOK_SECONDS = 0.2


def main() -> int:
    """Run the sidecar; return the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    paths = read_paths()
    try:
        config = read_config()
        credentials = read_credentials()
    except PodError as exc:
        return _give_up(paths, ExitCode.CONFIGURATION, str(exc), stop)
    failure = _stage(config, paths, credentials, stop)
    if failure is not None:
        return _give_up(paths, failure.code, str(failure), stop)
    try:
        store = open_store(config.bucket, credentials.s3, uploads=UploadBook(paths.private / "uploads"))
        control = open_store(config.bucket, credentials.s3, attempts=1, read_seconds=CONTROL_SECONDS)
        server = TrackingServer(credentials.mlflow, run_id=config.mlflow_run_id)
        if config.role == EXPORT_ROLE and config.own_model:
            fetch_logged_model(config, paths, server, cast("TextIO", LogLines()))
        streamed = read_files(config, store, credentials)
        sidecar = Sidecar(
            config,
            paths,
            store,
            server,
            credentials.endpoint_token,
            control,
            streamed=streamed,
            results_store=open_results_store(config, credentials),
        )
    except (SourceError, StageError) as exc:
        return _give_up(paths, exc.code, str(exc), stop)
    except StorageError as exc:
        return _give_up(paths, ExitCode.STORAGE, str(exc), stop)
    except ValueError as exc:
        return _give_up(paths, ExitCode.CONFIGURATION, str(exc), stop)
    except OSError as exc:
        print(f"updraft-sidecar: cannot start on {config.listen}: {exc}", file=sys.stderr, flush=True)
        return 1
    os.nice(NICENESS)  # for this thread and those it starts; only now, because the program waited for the work before
    sidecar.start()
    let_program_start(paths)
    stop.wait()
    sidecar.drain()
    if not sidecar.fence.fenced:
        store.uploads.abort_kept()
    return int(ExitCode.DONE)


def _stage(config: PodConfig, paths: PodPaths, credentials: PodCredentials, stop: threading.Event) -> StageError | None:
    """Return what went wrong. A pod that is removed meanwhile does not wait for the rest: this process ends at once."""
    failures: list[StageError] = []

    def work() -> None:
        try:
            stage_once(config, paths, open_store(config.bucket, credentials.s3), cast("TextIO", LogLines()))
        except StageError as exc:
            failures.append(exc)
        except Exception as exc:  # noqa: BLE001 - outermost line of the thread
            failures.append(StageError(ExitCode.CONFIGURATION, f"unexpected {type(exc).__name__}: {exc}"))

    thread = threading.Thread(target=work, name="stage", daemon=True)
    thread.start()
    while thread.is_alive():
        if stop.is_set():
            os._exit(int(ExitCode.DONE))  # not `sys.exit`, which would wait for download threads
        thread.join(LOOK_SECONDS)
    return failures[0] if failures else None


def _give_up(paths: PodPaths, code: int, reason: str, stop: threading.Event) -> int:
    """Report the failure and wait: the program's container ends the pod, and a sidecar that exits is restarted."""
    print(f"updraft-sidecar: {reason}", file=sys.stderr, flush=True)
    try:
        tell_failure(paths, code, reason)
    except OSError as exc:
        print(f"updraft-sidecar: the program cannot be told: {exc}", file=sys.stderr, flush=True)
        return code
    stop.wait()
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
