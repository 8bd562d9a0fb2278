"""Samples of a program's GPUs, taken where they can be seen: in its own container.

NVIDIA's container toolkit gives the devices and `nvidia-smi` to containers that were granted GPUs, so the sidecar has
neither. A kubelet runs an exec probe in the program's container and outside of the program's processes: PID 1 gets no
child, the log no line, and nothing is left over. The probe succeeds whatever becomes of the sample, and what fails with
a readiness probe is not ended. Called by `objects`; `updraft_learner.sidecar.system` reads the file.
"""

from __future__ import annotations

from typing import Any

from updraft_learner import contract

TIMEOUT_SECONDS = 5
NEVER = 1_000_000  # failures in a row, such as of a driver that hangs, until the pod counts as not ready

# $1: the file. Replaced as a whole; a driver that answers with an error leaves the last sample to grow old.
SAMPLE_GPUS = f"""\
exec 2>/dev/null
command -v nvidia-smi >&2 || exit 0
nvidia-smi --query-gpu={",".join(contract.GPU_FIELDS)} --format=csv,noheader,nounits >"$1.part" && mv -f "$1.part" "$1"
:
"""


def gpu_probe(every_seconds: float) -> dict[str, Any]:
    """The readiness probe, in API form."""
    return {
        "exec": {"command": ["/bin/sh", "-c", SAMPLE_GPUS, "sh", contract.GPU_FILE]},
        "periodSeconds": max(1, round(every_seconds)),
        "timeoutSeconds": TIMEOUT_SECONDS,
        "failureThreshold": NEVER,
    }
