"""Samples of a program's memory and GPUs, taken where they can be seen: in its own container.

A container's memory is counted by its own control group, and NVIDIA's container toolkit gives the devices and
`nvidia-smi` to containers that were granted GPUs, so the sidecar sees neither. A kubelet runs an exec probe in the
program's container and outside of the program's processes: PID 1 gets no child, the log no line, and nothing is left
over. The probe succeeds whatever becomes of the samples, and what fails with a readiness probe is not ended. Each
time costs a shell, and what the container runtime needs to start it. Called by `objects`;
`updraft_learner.sidecar.system` reads the files.
"""

from __future__ import annotations

from typing import Any

from updraft_learner import contract

TIMEOUT_SECONDS = 5
NEVER = 1_000_000  # failures in a row, such as of a driver that hangs, until the pod counts as not ready

# $1: the file, $2: where control groups are. Both versions of them; pages of files that were not used lately can be
# taken back at any time, so they are told apart. A file is replaced as a whole.
SAMPLE_MEMORY = """\
exec 2>/dev/null
used= inactive=0 limit=max stat=
if read -r used <"$2/memory.current"; then
  stat=$2/memory.stat
  read -r limit <"$2/memory.max"
elif read -r used <"$2/memory/memory.usage_in_bytes"; then
  stat=$2/memory/memory.stat
  read -r limit <"$2/memory/memory.limit_in_bytes"
fi
if [ -n "$used" ]; then
  if [ -r "$stat" ]; then
    while read -r name value; do
      case $name in inactive_file | total_inactive_file) inactive=$value ;; esac
    done <"$stat"
  fi
  echo "$used $inactive $limit" >"$1.part" && mv -f "$1.part" "$1"
fi
"""
# $3: the file. A driver that answers with an error leaves the last sample to grow old.
SAMPLE_GPUS = f"""\
command -v nvidia-smi >&2 || exit 0
nvidia-smi --query-gpu={",".join(contract.GPU_FIELDS)} --format=csv,noheader,nounits >"$3.part" && mv -f "$3.part" "$3"
"""


def sample_probe(every_seconds: float, *, gpus: bool) -> dict[str, Any]:
    """Return the readiness probe, in API form. Without GPUs it runs every MEMORY_INTERVALS intervals."""
    intervals = 1 if gpus else contract.MEMORY_INTERVALS
    script = SAMPLE_MEMORY + (SAMPLE_GPUS if gpus else "") + ":\n"
    files = [contract.MEMORY_FILE, contract.CGROUP_DIR, *([contract.GPU_FILE] if gpus else [])]
    return {
        "exec": {"command": ["/bin/sh", "-c", script, "sh", *files]},
        "periodSeconds": max(1, round(every_seconds * intervals)),
        "timeoutSeconds": TIMEOUT_SECONDS,
        "failureThreshold": NEVER,
    }
