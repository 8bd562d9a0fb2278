"""Copy what a program prints into files, where the sidecar looks for metrics; the log of the container stays as it is.

No container can read another's log without rights at the cluster's API. Called by `controller.processes`.
"""

from __future__ import annotations

import shlex

from updraft_learner import contract

# `tee` ignores the signals that end the program, whose last lines it still has to write, and ends with the program's
# output. A process that the program left behind may hold that output open, so it is waited for only so long.
_SCRIPT = """\
out={folder}
if ! command -v tee >/dev/null 2>&1 || ! command -v mkfifo >/dev/null 2>&1; then
  echo 'updraft: the image has no tee or no mkfifo: no metrics are taken from the output' >&2
  exec /bin/sh -c {command}
fi
mkdir -p "$out" && rm -f "$out/.stdout" "$out/.stderr" && mkfifo "$out/.stdout" "$out/.stderr" || exit
(trap '' TERM INT HUP; exec tee -a "$out/stdout" <"$out/.stdout") &
copies=$!
(trap '' TERM INT HUP; exec tee -a "$out/stderr" <"$out/.stderr" >&2) &
copies="$copies $!"
/bin/sh -c {command} >"$out/.stdout" 2>"$out/.stderr"
code=$?
(sleep {seconds}; kill -KILL $copies) </dev/null >/dev/null 2>&1 &
wait $copies
exit "$code"
"""
LEFT_BEHIND_SECONDS = 5


def copying_output(command: str) -> str:
    """Return lines of shell that run `command`, copy its output to `contract.OUTPUT_DIR`, and end with its code."""
    return _SCRIPT.format(folder=contract.OUTPUT_DIR, command=shlex.quote(command), seconds=LEFT_BEHIND_SECONDS)
