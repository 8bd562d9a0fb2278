"""Start the processes of one learner, and be their parent: the platform's own launcher.

    python3 -I -S launcher.pyz --processes N --stop-seconds S COMMAND

Staging puts this package into the pod as one file (`updraft_learner.launcher_file`), and the image's own Python runs it
(3.8 or newer). So its modules import only the standard library and each other. Each process runs COMMAND in a shell of
its own, with its rank in the environment and with no input. Its lines are printed with its rank, as `[rank3]: ...`.

If a process fails, the others get SIGTERM, and SIGKILL after PEER_SECONDS. A SIGTERM to the launcher is passed on to
all processes, and SIGKILL follows after `--stop-seconds`. The exit code is that of the process which failed first; 128
plus the signal's number if a signal ended it. Nothing that a process started outlives the launcher.
"""
