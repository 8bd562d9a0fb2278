"""SIGTERM for the program, not only for the shell that runs `command`.

A kubelet signals the container's first process alone. That is a shell, which waits for the program and passes nothing
on, so that the program would be killed at the end of the grace period without having heard that it is to leave. A hook
that the kubelet runs before its SIGTERM looks through shells and tells what they run, and nothing below that: a program
saves and ends its workers by itself. A shell with a trap for SIGTERM is told itself. The first process is left to the
kubelet. Called by `objects`; `updraft_localnode.shim` does the same for processes without a container.

They are told a second after the hook has returned, by which time the kubelet's own stop of the container is under way.
A container that ends in the milliseconds before that stop makes containerd fail it ("ttrpc: closed"), and a kubelet
whose stop has failed lets the sidecar wait for the whole grace period (`killContainer` of Kubernetes 1.34 returns
before it tells `terminationOrdering`): with programs told at once, that were 1 of 240 deletions on busy nodes.
"""

from __future__ import annotations

from typing import Any

# $1: the first process, 1 in a container. In SigCgt the fourth digit from the right stands for the signals 13 to 16:
# with 4 SIGTERM (15) is handled. With 2 (SIGALRM) too it is what bash does for `trap ... EXIT`, and would end the shell
# at once, whatever it runs.
PASS_ON_SIGTERM = """\
first=${1:-1} look=$first table= told=
for status in /proc/[0-9]*/status; do
  while read -r key value; do
    case $key in PPid:) pid=${status#/proc/} table="$table ${pid%/status}:$value" && break ;; esac
  done <"$status"
done 2>/dev/null
while [ "$look" ]; do
  next=
  for pid in $look; do
    shell= traps= runs=
    case $(readlink "/proc/$pid/exe") in
    */sh | */dash | */bash | */ash | */ksh | */mksh | */zsh | */busybox) shell=yes ;;
    esac
    while read -r key mask; do
      case $key$mask in SigCgt:*[45cd]???) traps=yes ;; esac
    done <"/proc/$pid/status"
    for entry in $table; do
      [ "${entry#*:}" != "$pid" ] || runs="$runs ${entry%:*}"
    done
    if [ "$shell" ] && [ "$runs" ] && [ -z "$traps" ]; then
      next="$next$runs"
    elif [ "$pid" != "$first" ]; then
      told="$told $pid"
    fi
  done
  look=$next
done 2>/dev/null
if [ "$told" ]; then
  (sleep 1; kill -TERM $told) </dev/null >/dev/null 2>&1 &
fi
:
"""


def pre_stop() -> dict[str, Any]:
    """Return the hook, in API form."""
    return {"exec": {"command": ["/bin/sh", "-c", PASS_ON_SIGTERM]}}
