"""What a program says while it is removed is read to its end, each line once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from conformance_helpers import eventually
from folder_store import FolderStore

from updraft.guardian.lastwords import LastWords
from updraft.kubernetes import gang
from updraft.kubernetes.clients import cluster_api
from updraft.kubernetes.objects import Launch
from updraft.storage import logbook, objects


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    """In place of the platform's."""
    kept = FolderStore(tmp_path)
    for module in (logbook, objects):
        monkeypatch.setattr(module, "platform_store", lambda *_: kept, raising=False)
    return kept


def remove_and_read(cluster: Any, launch: Launch, store: FolderStore) -> list[str]:
    core = cluster_api(cluster.api_client)
    words = LastWords(core, launch, gang.observe(core, launch), limit_seconds=30)
    words.wait_begun()
    gang.delete(core, launch.namespace, launch.selector, grace_seconds=20)
    words.wait()
    return [line["line"] for line in objects.read_log("default", launch.job_id, "train", 1, 1, store=store)]


def test_the_last_words_of_a_removed_learner_are_kept(cluster: Any, store: FolderStore) -> None:
    launch = Launch(cluster.namespace, "default", "words-1", "train", 1, 1)
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


def test_a_learner_that_has_ended_is_read_to_its_end_before_it_is_removed(
    cluster: Any, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(cluster.namespace, "default", "words-2", "train", 1, 1)
    cluster.create(cluster.pod(launch.pod_name(1), "echo one; echo two", labels=launch.labels(1)))
    cluster.wait_phase(launch.pod_name(1), "Succeeded")
    real_open = objects.LogBook.open

    def slowly(*args: Any, **more: Any) -> Any:
        time.sleep(1)  # in which the pod would be gone
        return real_open(*args, **more)

    monkeypatch.setattr(objects.LogBook, "open", slowly)

    assert remove_and_read(cluster, launch, store) == ["one", "two"]
