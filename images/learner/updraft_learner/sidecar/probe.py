"""`python -m updraft_learner.sidecar.probe`: ends with 0 when the sidecar beside it answers.

An exec probe, because the endpoint listens on the pod's loopback address, which the kubelet's HTTP probe cannot reach.
"""

from __future__ import annotations

import http.client
import sys

from updraft_learner.contract import ExitCode
from updraft_learner.pod import PodError, read_config
from updraft_learner.sidecar.endpoint import HEALTH_PATH


def main() -> int:
    """Entry; returns the exit code."""
    try:
        host, _, port = read_config().listen.rpartition(":")
    except PodError as exc:
        print(f"updraft-sidecar: {exc}", file=sys.stderr)
        return int(ExitCode.CONFIGURATION)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=3)
    try:
        connection.request("GET", HEALTH_PATH)
        return 0 if connection.getresponse().status == 200 else 1
    except (OSError, http.client.HTTPException) as exc:
        print(f"updraft-sidecar: {exc}", file=sys.stderr)
        return 1
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
