"""Read the command line of the launcher."""

from __future__ import annotations

import argparse
import sys

from . import mpi
from .output import say
from .run import start_and_wait
from .signals import StopRequest

PEER_SECONDS = 30.0  # from the first failure to the SIGKILL of the other processes


def main(arguments: list[str]) -> int:
    """Run the launcher; return its exit code. Raises SystemExit for a wrong command line."""
    stop = StopRequest()
    stop.listen()
    parser = argparse.ArgumentParser(description="Start the processes of one learner.")
    if arguments[:1] == ["--rsh"]:
        return mpi.rsh(arguments[1], arguments[2:])
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--mpi", action="store_true", help="run the command once, with hosts and slots for mpirun")
    parser.add_argument("--stop-seconds", type=float, required=True)
    parser.add_argument("--peer-seconds", type=float, default=PEER_SECONDS)
    parser.add_argument("--cpus", type=float, default=float("inf"), help="of the learner; fewer than processes: warn")
    parser.add_argument("command", help="a line of shell")
    given = parser.parse_args(arguments)
    if given.processes > max(1.0, given.cpus):
        say(f"warning: {given.processes} processes share {given.cpus:g} CPUs; raise resources.cpus if they are slow")
    if given.mpi:
        return mpi.run(stop, given.command, given.processes, given.stop_seconds)
    return start_and_wait(stop, given.command, given.processes, given.stop_seconds, given.peer_seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
