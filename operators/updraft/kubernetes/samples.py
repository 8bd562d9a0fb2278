"""Sample the program's memory and GPUs from inside its own container, the only place where they are visible.

A container's memory is counted by its own control group, and NVIDIA's container toolkit gives devices and `nvidia-smi`
only to containers that were granted GPUs, so the sidecar sees neither. The samples are taken by an exec probe: a
kubelet runs it in the program's container, outside of the program's processes. PID 1 gets no child, the log gets no
line, and no process stays behind. The probe succeeds even if sampling fails, and a failing readiness probe ends
nothing. Each run costs one shell and its start by the container runtime. Called by `objects`;
`updraft_learner.sidecar.system` reads the files.
"""

from __future__ import annotations

from typing import Any

from updraft_learner import contract

TIMEOUT_SECONDS = 5
NEVER = 1_000_000  # consecutive failures, of a hanging driver for instance, before the pod is not ready

# $1: the file, $2: the folder of control groups, version 1 or 2. Inactive file pages are listed separately: the kernel
# can take them back at any time. A file is replaced as a whole.
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
# $3: the file. If the driver answers with an error, the last sample stays and grows old.
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
