"""SIGTERM for the program, not only for the shell that runs `command`.

A kubelet signals the container's first process alone. That is a shell, which waits for the program and passes nothing
on, so that the program would be killed at the end of the grace period without having heard that it is to leave. A hook
that the kubelet runs before its SIGTERM tells the topmost processes that handle the signal, and nothing below them: a
program saves and ends its workers by itself. Where nobody handles it, all get it and end. A first process that handles
it is left to the kubelet. Called by `objects`; `localnode.shim` does the same for processes without a container.
"""

from __future__ import annotations

from typing import Any

# $1: the first process, 1 in a container. SigCgt has bit 14 set where SIGTERM (15) is handled: the fourth digit from
# the right is 4 to 7 or c to f. In /proc/PID/stat the parent follows the name in brackets and the state.
PASS_ON_SIGTERM = """\
first=${1:-1} pids=$first handlers= others=
while [ "$pids" ]; do
  below=
  for pid in $pids; do
    handles=
    while read -r key mask; do
      case $key$mask in SigCgt:*[4567cdef]???) handles=yes ;; esac
    done <"/proc/$pid/status"
    if [ "$handles" ]; then
      handlers="$handlers $pid"
      continue
    fi
    [ "$pid" = "$first" ] || others="$others $pid"
    for stat in /proc/[0-9]*/stat; do
      line=
      read -r line <"$stat"
      parent=${line##*) ? }
      child=${stat#/proc/}
      [ "${parent%% *}" != "$pid" ] || below="$below ${child%/stat}"
    done
  done
  pids=$below
done 2>/dev/null
case ${handlers:-$others} in
'' | " $first") ;;
*) kill -TERM ${handlers:-$others} 2>/dev/null ;;
esac
:
"""


def pre_stop() -> dict[str, Any]:
    """The hook, in API form."""
    return {"exec": {"command": ["/bin/sh", "-c", PASS_ON_SIGTERM]}}
