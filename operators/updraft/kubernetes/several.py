"""Start a command as several processes of one learner, through the platform's launcher.

The sidecar stages the launcher as a file (`contract.LAUNCHER_FILE`); the image needs Python to run it. Called by
`controller.programs`.
"""

from __future__ import annotations

import shlex

from updraft_learner import contract

NO_PYTHON = (
    "updraft: launcher: the image has no Python 3.8 or newer, which resources.processes_per_learner and resources.mpi "
    "need; use an image that has, or leave these fields out and start the processes in the command"
)
# The shell stays the launcher's parent. Its trap is there before the launcher is, so that no SIGTERM is lost while
# Python starts. `wait` also returns when a signal has come, so the loop asks whether the launcher still exists.
_START = """\
for python in python3 python; do
  command -v "$python" >/dev/null 2>&1 && break
  python=
done
if [ -z "$python" ]; then
  echo {no_python} >&2
  exit 127
fi
launcher= asked=
trap 'asked=yes; [ -z "$launcher" ] || kill -TERM "$launcher"' TERM
"$python" -I -S {file} --processes {processes} --cpus {cpus:g} --stop-seconds {stop_seconds} {mpi}{command} &
launcher=$!
[ -z "$asked" ] || kill -TERM "$launcher"
until wait "$launcher"; code=$?; ! kill -0 "$launcher" 2>/dev/null; do :; done
exit "$code"
"""
STORING_SECONDS = 10  # of the grace period; the launcher kills its processes that long before the kubelet kills all


def through_launcher(command: str, *, processes: int, cpus: float, grace_seconds: int, mpi: bool = False) -> str:
    """Return a line of shell that runs `command` in that many processes of each learner; with `mpi`, once in the first
    learner, where `mpirun` finds all learners and that many slots in each.

    Args:
        cpus: Of the learner; the launcher prints a warning if there are fewer than processes.
        grace_seconds: From SIGTERM to the end of the pod.
    """
    return _START.format(
        no_python=shlex.quote(NO_PYTHON),
        file=contract.LAUNCHER_FILE,
        processes=processes,
        cpus=cpus,
        mpi="--mpi " if mpi else "",
        stop_seconds=max(1, grace_seconds - STORING_SECONDS),
        command=shlex.quote(command),
    )
