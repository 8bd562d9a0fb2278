"""What a program says last is kept, each line once: while it is removed, and behind more than can be read."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conformance_helpers import eventually
from folder_store import FolderStore

from updraft.controller.final_logs import CLOSE_SECONDS, FinalLogCollector
from updraft.kubernetes import gang
from updraft.kubernetes.clients import cluster_api
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.membership import Membership
from updraft.recovery.matching import decisive
from updraft.storage import objects
from updraft.timing import TIMING
from updraft.triggers.followers import Followers

ERROR = "ValueError: batch 17 has no labels"
FLOODS = {
    "200,000 lines": "for n in range(200_000): print(n)",
    "30 MB": "for n in range(3_000): print(n, 'x' * 10_000)",
}
READ_SECONDS = 2.0  # after the program's end; no reader comes to the end of these floods in that time


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def remove_and_read(
    cluster: Any, launch: Launch, store: FolderStore, *, limit_seconds: float = 30, opening_seconds: float = 0
) -> list[str]:
    def open_store() -> FolderStore:
        time.sleep(opening_seconds)
        return store

    core = cluster_api(cluster.api_client)
    words = FinalLogCollector(core, open_store, launch, gang.observe(core, launch), limit_seconds=limit_seconds)
    words.wait_begun()
    gang.delete(core, launch.namespace, launch.selector, grace_seconds=20)
    words.wait()
    return recorded(launch, store)


def recorded(launch: Launch, store: FolderStore) -> list[str]:
    """All lines. `read_log` returns one page, which ends at a number of characters as well as of lines."""
    lines: list[dict[str, Any]] = []
    while page := objects.read_log(
        "default", launch.job_id, "train", 1, 1, after=lines[-1]["n"] if lines else 0, limit=10**6, store=store
    ):
        lines += page
    return [line["line"] for line in lines]


def test_the_last_words_of_a_removed_learner_are_kept(cluster: Any, store: FolderStore) -> None:
    launch = Launch(cluster.namespace, "default", "words-1", "train", 1, Membership.first(1))
    asked = "trap 'echo asked to stop; sleep 1; echo bye; exit 75' TERM"
    script = f"{asked}; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.2; done"
    cluster.create(cluster.pod(launch.pod_name(1), script, labels=launch.labels(1)))
    cluster.wait_phase(launch.pod_name(1), "Running")
    said = eventually(lambda: cluster.log(launch.pod_name(1), timestamps=True).splitlines()[:3])
    first = said[0].split(" ", 1)
    book = objects.LogBook.open("default", "words-1", "train", 1, 1, store=store)
    from updraft.kubernetes.logs import pad_nanoseconds

    book.append([{"n": 1, "t": pad_nanoseconds(first[0]), "line": first[1]}])

    lines = remove_and_read(cluster, launch, store)

    assert lines[-2:] == ["asked to stop", "bye"]
    assert lines[:-2] == [f"line {n}" for n in range(1, len(lines) - 1)]


def test_a_learner_that_has_ended_is_read_to_its_end_before_it_is_removed(cluster: Any, store: FolderStore) -> None:
    launch = Launch(cluster.namespace, "default", "words-2", "train", 1, Membership.first(1))
    cluster.create(cluster.pod(launch.pod_name(1), "echo one; echo two", labels=launch.labels(1)))
    cluster.wait_phase(launch.pod_name(1), "Succeeded")

    lines = remove_and_read(cluster, launch, store, opening_seconds=1)  # in which the pod would be gone

    assert lines == ["one", "two"]


# --- a flood ------------------------------------------------------------------------------------------------------


def flood(cluster: Any, launch: Launch, printing: str, streams: str) -> None:
    """A learner that prints faster than its log is read, and then raises."""
    program = f"{printing}\nraise ValueError('batch 17 has no labels')"
    script = f"exec python3 -u -c {shlex.quote(program)} {streams}"
    cluster.create(cluster.pod(launch.pod_name(1), script, labels=launch.labels(1)))
    cluster.wait_phase(launch.pod_name(1), "Running", "Failed")


def follow(cluster: Any, launch: Launch, store: FolderStore) -> list[str]:
    """Until the program has ended, as the job's trigger does: the lines that the verdict is made of."""
    core = cluster_api(cluster.api_client)

    async def followed() -> Followers:
        timing = replace(TIMING, log_end_seconds=READ_SECONDS)
        made = Followers(launch, lambda: store, logging.getLogger(__name__), timing=timing)
        async with cluster.async_client() as api:
            watch: Any = SimpleNamespace(api=api)
            ended = False
            while not ended:
                pods = await asyncio.to_thread(gang.observe, core, launch)
                made.follow(watch, pods)
                ended = any(pod.main.state == "terminated" for pod in pods)
                await asyncio.sleep(0.05)
            await made.finish()
        return made

    return asyncio.run(followed()).tails[1]


def last_line(cluster: Any, launch: Launch) -> str:
    """Of the cluster's own log. A container runtime on a busy machine may lose what a pipe held at the program's end
    (containerd: the last 64 KiB): then that is not the traceback's last line."""
    line: str = cluster.log(launch.pod_name(1), tail_lines=1).splitlines()[-1]
    if line != ERROR:
        warnings.warn(f"the container runtime lost the log's end; it ends with {line!r}", stacklevel=2)
    return line


def check_record(lines: list[str], last: str) -> None:
    """It ends with the log's last line, says that lines are missing, and has none twice."""
    assert lines[-1] == last
    assert len([line for line in lines if line.startswith("... ")]) == 1
    numbers = [int(line.split()[0]) for line in lines[:-1] if line[:1].isdigit()]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("printing", FLOODS.values(), ids=FLOODS)
def test_the_lines_kept_end_with_the_traceback_whatever_the_volume(
    cluster: Any, store: FolderStore, printing: str
) -> None:
    launch = Launch(cluster.namespace, "default", "flood-1", "train", 1, Membership.first(1))
    flood(cluster, launch, printing, "2>&1")  # of two streams a runtime may write the later one's lines first
    tail = follow(cluster, launch, store)
    last = last_line(cluster, launch)
    assert tail[-1] == last
    check_record(recorded(launch, store), last)


@pytest.mark.parametrize("printing", FLOODS.values(), ids=FLOODS)
def test_so_do_those_of_a_learner_that_is_removed(cluster: Any, store: FolderStore, printing: str) -> None:
    launch = Launch(cluster.namespace, "default", "flood-2", "train", 1, Membership.first(1))
    flood(cluster, launch, printing, "2>&1")
    cluster.wait_phase(launch.pod_name(1), "Failed")
    last = last_line(cluster, launch)
    check_record(remove_and_read(cluster, launch, store, limit_seconds=CLOSE_SECONDS + READ_SECONDS), last)


def test_a_traceback_on_stderr_is_found_behind_a_flood_on_stdout(cluster: Any, store: FolderStore) -> None:
    """The runtime may put it before thousands of lines that were printed earlier: as many as a pipe holds."""
    launch = Launch(cluster.namespace, "default", "flood-3", "train", 1, Membership.first(1))
    flood(cluster, launch, FLOODS["200,000 lines"], "")
    tail = follow(cluster, launch, store)
    if ERROR not in cluster.log(launch.pod_name(1)):
        pytest.skip("SKIPPED: THE CONTAINER RUNTIME LOST WHAT THE PROGRAM PRINTED LAST")
    assert ERROR in decisive(tail)
