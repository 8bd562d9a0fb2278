"""Kill the parts of a stack, and processes of tasks, one after the other, while a test goes on."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from faults.parts import kill, send, tasks, wait_serves
from system_helpers import REPOSITORY

from updraft.stack.layout import Home

KILLED = ("airflow-triggerer", "airflow-scheduler", "airflow-api", "airflow-dag-processor", "mlflow", "s3")
TASK = "a task"
PAUSE_SECONDS = (5.0, 25.0)


@contextmanager
def parts_killed_in_turn(home_folder: Path, *, seed: int) -> Iterator[Counter[str]]:
    """Send SIGKILL to one process after the other meanwhile; yields how often each was killed."""
    over, killed, problems = threading.Event(), Counter[str](), list[Exception]()
    thread = threading.Thread(target=_kill, args=(home_folder, over, killed, problems, seed))
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
        print("killed:", dict(killed))
    assert not problems, problems


def _kill(home_folder: Path, over: threading.Event, killed: Counter[str], problems: list[Exception], seed: int) -> None:
    """The next process is killed some seconds after all serve again."""
    home, rng = Home(root=home_folder, repository=REPOSITORY), Random(seed)
    try:
        while not over.is_set():
            for name in rng.sample([*KILLED, TASK], len(KILLED) + 1):
                if over.wait(rng.uniform(*PAUSE_SECONDS)):
                    return
                if name == TASK:
                    while not (running := tasks(home)):
                        if over.wait(0.05):
                            return
                    killed[name] += send(rng.choice(running), signal.SIGKILL)
                else:
                    at = kill(home, name)
                    killed[name] += 1
                    wait_serves(home, name, since=at)
    except Exception as exc:  # noqa: BLE001 - a thread's failure is the test's
        problems.append(exc)
