"""A state spread over two learners: saved in parts, one checkpoint in the store, resumed by any number of learners.

Real FSDP2 over gloo, one process per rank and one folder per pod; sidecars and staging between them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the PyTorch learner environment")

from folder_store import FolderStore  # noqa: E402
from learner.checkpoint_fakes import HeldBackground  # noqa: E402
from learner.sidecar_fakes import CONFIG, FailingStore, make_paths  # noqa: E402

from updraft_learner import Checkpointer, CheckpointError, ShardedCheckpointer  # noqa: E402
from updraft_learner import checkpoint_format as fmt  # noqa: E402
from updraft_learner.contract import Keys  # noqa: E402
from updraft_learner.pod import PodPaths  # noqa: E402
from updraft_learner.record.report import Warnings  # noqa: E402
from updraft_learner.sidecar.checkpoints import CheckpointUploader  # noqa: E402
from updraft_learner.stage import stage  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("sharded_ranks.py")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LEARNER_ID", "UPDRAFT_CHECKPOINT_SECONDS", "UPDRAFT_STOP_FILE"):
        monkeypatch.delenv(name, raising=False)
    torch.manual_seed(0)


def run(scenario: str, root: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank saw."""
    root.mkdir(exist_ok=True)
    command = [sys.executable, str(PROGRAM), scenario, str(root), str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((root / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def sidecars(saved: Path, pods: Path, store: FolderStore) -> list[CheckpointUploader]:
    """One for each rank, over a copy of its folders."""
    shutil.copytree(saved, pods, symlinks=True)
    made = []
    for rank in range(2):
        paths = PodPaths(pods / f"rank-{rank}")
        paths.private.mkdir()
        made.append(CheckpointUploader(replace(CONFIG, learner=rank + 1, learners=2), paths, store, Warnings()))
    return made


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("saved")
    return root, run("save", root, 2)


@pytest.fixture(scope="module")
def stored(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[FolderStore, str]:
    """A store with the checkpoint of step 3, brought there by two sidecars; and its name."""
    root = tmp_path_factory.mktemp("stored")
    store = FolderStore(root / "store")
    watching = sidecars(saved[0], root / "pods", store)
    for one in watching:
        one.poll()
    (name,) = [entry["stored"] for entry in watching[0].stored() if entry["step"] == 3]
    return store, name


def test_ranks_save_together_or_not_at_all(saved: tuple[Path, list[dict[str, Any]]]) -> None:
    seen = saved[1]
    folders = [one.pop("folders") for one in seen]
    assert seen[0] == seen[1]
    assert seen[0]["nothing"] is None
    assert seen[0]["due"] == [False, *[True] * 8]
    assert (seen[0]["saved"], seen[0]["again"], seen[0]["begun"], seen[0]["busy"]) == (True, True, True, False)
    assert seen[0]["full"] == "checkpoint of step 6 was not written: rank 1: No space left on device"
    assert seen[0]["full while writing"].startswith("checkpoint of step 7 was not written: rank 1: [Errno 28] No space")
    assert seen[0]["steps differ"].startswith("ranks save different steps (10 on rank 0, 11 on rank 1)")
    assert seen[0]["parts alone"].startswith("no checkpoint is whole in every learner's directory")
    assert seen[0]["whole state"].endswith("is a DTensor: each rank holds a shard of it; use ShardedCheckpointer")
    assert seen[0]["refused"].startswith("state['model'] is a builtins.object")
    steps = ["step-0000000003", "step-0000000004"]
    own = [
        [".metadata", "COMPLETE", "__0_0.distcp", "checkpoint-0001-of-0002.json"],
        ["COMPLETE", "__1_0.distcp", "checkpoint-0002-of-0002.json"],
    ]
    assert folders == [dict.fromkeys(steps, files) for files in own]


def test_the_store_has_one_checkpoint_once_every_learners_part_is_there(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    store, keys = FailingStore(tmp_path / "store"), Keys("t")
    first, second = sidecars(saved[0], tmp_path / "pods", store)
    first.poll()
    assert not [key for key in store.written if key.endswith("MANIFEST.json")]
    assert first.final is None
    assert [item.uploaded for item in first.shown()] == [False, False]
    second.poll()
    names = [item.name for item in second.shown()]
    assert [item.uploaded for item in second.shown()] == [True, True]
    assert second.final == names[0]
    manifest = json.loads(store.get_bytes(keys.checkpoint_marker("job-1", names[1])) or b"")
    assert {
        field: manifest[field] for field in ("name", "local", "attempt", "learner", "parts", "step", "metrics")
    } == {
        "name": names[1],
        "local": "step-0000000003",
        "attempt": 1,
        "learner": 1,
        "parts": 2,
        "step": 3,
        "metrics": {"acc": 0.5},
    }
    assert sorted(manifest["files"]) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "checkpoint-0001-of-0002.json",
        "checkpoint-0002-of-0002.json",
    ]
    first._next_join = 0.0
    first.poll()
    assert first.final == second.final
    assert [key for key in store.written if key.endswith("MANIFEST.json")] == [
        keys.checkpoint_marker("job-1", name) for name in names
    ]


@pytest.mark.parametrize("learners", [3, 1])
def test_another_number_of_learners_goes_on_where_two_left_off(
    saved: tuple[Path, list[dict[str, Any]]], stored: tuple[FolderStore, str], tmp_path: Path, learners: int
) -> None:
    store, name = stored
    for rank in range(learners):
        config = replace(CONFIG, attempt=2, learner=rank + 1, learners=learners, restore_checkpoint=name)
        stage(config, PodPaths(tmp_path / f"rank-{rank}"), store)
    for seen in run("resume", tmp_path, learners):
        wrong = seen.pop("wrong")
        assert wrong == "checkpoint step-0000000003 does not load: rank 0: Missing key in checkpoint state_dict: more."
        assert seen == {
            "step": 3,
            "seen": 3,
            "table": [3.0, 3.0, 3.0],
            "again": True,
            "losses": pytest.approx(saved[1][0]["losses"], abs=2e-5),
        }


def test_ranks_of_one_learner_write_one_whole_checkpoint(tmp_path: Path) -> None:
    for seen in run("one_folder", tmp_path, 2):
        assert seen == {
            "files": [".metadata", "COMPLETE", "__0_0.distcp", "__1_0.distcp", "checkpoint.json"],
            "newest": "step-0000000001",
            "same": True,
        }


def test_one_process_alone_saves_and_restores_and_passes_over_a_bad_one(tmp_path: Path) -> None:
    checkpoints = ShardedCheckpointer(directory=tmp_path)
    assert checkpoints.restore(into={"w": torch.zeros(3)}) is None
    for step in (1, 2):
        assert checkpoints.save({"w": torch.full((3,), float(step)), "note": "x" * step}, step, block=True)
    (tmp_path / "step-0000000002" / "__0_0.distcp").write_bytes(b"spoilt")
    restored = ShardedCheckpointer(directory=tmp_path).restore(into={"w": torch.zeros(3), "note": ""})
    assert restored is not None
    assert (restored[0]["w"].tolist(), restored[0]["note"], restored[1]) == ([1.0, 1.0, 1.0], "x", 1)
    assert (tmp_path / ".bad-step-0000000002").is_dir()


def test_the_state_is_that_of_the_moment_of_the_save(tmp_path: Path) -> None:
    weights, background = torch.zeros(100), HeldBackground()
    checkpoints = ShardedCheckpointer(directory=tmp_path, background=background)
    checkpoints.save({"w": weights}, 1)
    weights.fill_(5)
    background.go_on.set()
    checkpoints.wait()
    restored = checkpoints.restore(into={"w": torch.ones(100)})
    assert restored is not None
    assert restored[0]["w"].tolist() == [0.0] * 100


def test_each_kind_of_checkpoint_names_the_class_that_reads_the_other(tmp_path: Path) -> None:
    ShardedCheckpointer(directory=tmp_path).save({"w": torch.ones(1)}, 1, block=True)
    with pytest.raises(CheckpointError, match=r"step-0000000001 holds a sharded state: use ShardedCheckpointer\(\)"):
        Checkpointer(directory=tmp_path).restore()
    Checkpointer(directory=tmp_path).save({"w": torch.ones(1)}, 2, block=True)
    with pytest.raises(CheckpointError, match=r"step-0000000002 holds no sharded state; use Checkpointer\(\)"):
        ShardedCheckpointer(directory=tmp_path).restore(into={"w": torch.ones(1)})


def test_several_learners_without_a_process_group_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match="WORLD_SIZE is 2, but there is no process group"):
        ShardedCheckpointer(directory=tmp_path)


def test_the_next_one_waits_until_the_sidecar_has_stored_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_paths(tmp_path / "pod")
    monkeypatch.setenv("JOB_STATE_DIR", str(paths.io))
    now = [0.0]
    checkpoints = ShardedCheckpointer(60, directory=paths.checkpoints, clock=lambda: now[0])
    store = FailingStore(tmp_path / "store")
    store.fails = lambda operation, key: True
    watched = CheckpointUploader(CONFIG, paths, store, Warnings())
    for step in (1, 2):
        checkpoints.save({"w": torch.ones(2)}, step, block=True)
    now[0] = 100.0
    assert not checkpoints.due()
    now[0] = 659.0
    assert not checkpoints.due()
    now[0] = 661.0
    assert checkpoints.due()  # the store has been away for long; the disk has a newer one at least
    now[0] = 100.0
    store.fails = lambda *_: False
    watched.poll()
    assert checkpoints.due()
    checkpoints.save({"w": torch.ones(2)}, 3, block=True)
    now[0] = 200.0
    assert not checkpoints.due()
    (paths.checkpoints / "step-0000000003").rename(paths.checkpoints / ".bad-step-0000000003")
    assert [checkpoints.due() for _ in range(3)][-1]


def test_asking_whether_a_save_is_due_costs_the_ranks_a_word_about_once_a_second(tmp_path: Path) -> None:
    seconds, talks = 0.0, 0

    def clock() -> float:
        """What a rank tells the others in `due` holds the time: the clock is read once for each talk."""
        nonlocal talks
        talks += 1
        return seconds

    checkpoints = ShardedCheckpointer(60, directory=tmp_path, clock=clock)
    calls = 0
    while not checkpoints.due():
        seconds += 0.01
        calls += 1
    assert 60 <= seconds < 61
    assert talks < 80 < calls
    assert fmt.complete_checkpoints(tmp_path) == []


def test_an_offer_saves_when_it_is_time_and_only_then_asks_for_the_state(tmp_path: Path) -> None:
    seconds, asked = 0.0, []
    checkpoints = ShardedCheckpointer(60, directory=tmp_path, clock=lambda: seconds)

    def state() -> dict[str, Any]:
        asked.append(seconds)
        return {"w": torch.ones(2)}

    assert not checkpoints.save_when_due(state, 1)
    seconds = 61.0
    assert any(checkpoints.save_when_due(state, step, metrics={"acc": 0.5}) for step in (2, 3))
    checkpoints.wait()
    (path,) = fmt.complete_checkpoints(tmp_path)
    assert (asked, fmt.read(path).metrics) == ([61.0], {"acc": 0.5})


@pytest.mark.parametrize(
    ("end", "steps"),
    [
        ("pass", ["step-0000000003"]),
        ("sys.exit(0)", ["step-0000000003"]),
        ("checkpoints.save(state(), 3, block=True); dist.destroy_process_group()", ["step-0000000003"]),
        ("dist.destroy_process_group()", []),
        ("raise ValueError('no')", []),
    ],
)
def test_ranks_that_end_before_a_save_is_due_save_the_last_one_together(
    tmp_path: Path, end: str, steps: list[str]
) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM.with_name("sharded_ends.py")), str(rank), str(tmp_path), end],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in ranks]
    failed = [process.returncode != 0 for process in ranks]  # not always 1: torch aborts a rank whose peer is gone
    assert failed == ["raise" in end] * 2, said
    for rank in range(2):
        whole = [path.parent.name for path in (tmp_path / f"rank-{rank}").glob("step-*/COMPLETE")]
        assert whole == steps, said
    lost = "the process group was destroyed before step 3 was saved"
    assert [lost in text for text in said] == [end == "dist.destroy_process_group()"] * 2, said
    # Those of the program's own group: a thread that frees a tensor while the interpreter ends aborts the process.
    assert [int((tmp_path / f"threads-{rank}").read_text()) for rank in range(2)] == [3, 3]
