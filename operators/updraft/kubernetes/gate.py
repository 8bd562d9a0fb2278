"""Make the program's container wait until the sidecar has staged what the program needs.

A kubelet starts the containers of a pod one after the other, a second apart, so staging in an init container would cost
a second per launch. Instead the sidecar stages first, and the shell in the program's container waits for it. If staging
fails, this shell prints the reason and exits with the sidecar's exit code. Called by `objects`.
"""

from __future__ import annotations

from typing import Any

from updraft_learner import contract

# $0: the program's command. The trap is needed: the first process of a container ignores SIGTERM without a handler.
WAIT = f"""\
trap 'exit 143' TERM
until [ -e {contract.STAGED_FILE} ]; do
  if [ -e {contract.STAGING_FAILED_FILE} ]; then
    read -r code reason <{contract.STAGING_FAILED_FILE}
    printf '%s%s\\n' '{contract.STAGING_FAILED}' "$reason" >&2
    exit "$code"
  fi
  sleep 0.1
done
trap - TERM
cd {contract.CODE_DIR} || exit
if [ -f {contract.RESUME_FROM_FILE} ]; then
  IFS= read -r resume <{contract.RESUME_FROM_FILE}
  export {contract.RESUME_FROM_ENV}="$PWD/$resume"
fi
exec /bin/sh -c "$0"
"""
LONGEST_DAYS = 30  # for staging; after this time the kubelet kills the program's container


def gated(command: str) -> list[str]:
    """Return arguments of `/bin/sh -c` that run `command` in a shell of its own once everything is staged."""
    return [WAIT, command]


def started_probe() -> dict[str, Any]:
    """Return the startup probe that succeeds when the wait is over; until then the container runs but is not
    started."""
    return {
        "exec": {"command": ["/bin/sh", "-c", f"test -e {contract.STAGED_FILE}"]},
        "periodSeconds": 1,
        "timeoutSeconds": 10,
        "failureThreshold": LONGEST_DAYS * 24 * 3600,
    }
