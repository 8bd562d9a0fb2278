"""Checkpoints are complete and verified, or they do not count. Without PyTorch: states are written by a writer."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner.checkpoint_fakes import HeldBackground

from updraft_learner import Checkpointer, CheckpointError
from updraft_learner import checkpoint_format as fmt
from updraft_learner.checkpoint_format import FileFacts


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "UPDRAFT_ATTEMPT", "UPDRAFT_CHECKPOINT_SECONDS", "UPDRAFT_STOP_FILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def writes(text: str) -> object:
    def writer(folder: Path) -> None:
        (folder / "weights").mkdir()
        (folder / "weights" / "w.txt").write_text(text)

    return writer


def save(root: Path, *steps: int) -> None:
    checkpointer = Checkpointer(directory=root)
    for step in steps:
        assert checkpointer.save(writes(f"weights of {step}"), step, metrics={"loss": 1 / step}, block=True)


def test_a_saved_checkpoint_is_complete_described_and_the_latest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_ATTEMPT", "2")
    save(root, 4)
    folder = root / "step-0000000004"
    document = json.loads((folder / "checkpoint.json").read_text())
    created = document.pop("created")
    assert document == {
        "step": 4,
        "metrics": {"loss": 0.25},
        "files": {"weights/w.txt": {"sha256": hashlib.sha256(b"weights of 4").hexdigest(), "size": 12}},
        "attempt": 2,
        "rank": 0,
    }
    assert created.endswith("Z")
    assert sorted(path.name for path in folder.iterdir()) == ["COMPLETE", "checkpoint.json", "weights"]
    assert (root / "latest").readlink() == Path("step-0000000004")
    latest = Checkpointer(directory=root).latest()
    assert latest is not None
    assert (latest.path, latest.step, latest.metrics) == (folder, 4, {"loss": 0.25})
    assert latest.files == {"weights/w.txt": FileFacts(hashlib.sha256(b"weights of 4").hexdigest(), 12)}


def test_the_newest_step_wins_and_the_link_follows(root: Path) -> None:
    save(root, 1, 10, 9)
    latest = Checkpointer(directory=root).latest()
    assert latest is not None
    assert latest.step == 10
    assert (root / "latest").readlink() == Path("step-0000000009")  # the one saved last


def test_nothing_saved_is_nothing_to_restore(root: Path) -> None:
    assert Checkpointer(directory=root).latest() is None
    assert Checkpointer(directory=root).restore() is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "weights" / "w.txt").write_text("weights of X"), "does not match its digest"),
        (lambda folder: (folder / "weights" / "w.txt").write_text("short"), "has 5 bytes instead of 12"),
        (lambda folder: (folder / "weights" / "w.txt").unlink(), "is missing"),
        (lambda folder: (folder / "checkpoint.json").write_text("{"), "checkpoint.json is unreadable"),
    ],
)
def test_a_bad_checkpoint_is_set_aside_and_the_one_before_is_used(
    root: Path, damage: object, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(root, 1, 2)
    assert callable(damage)
    damage(root / "step-0000000002")
    latest = Checkpointer(directory=root).latest()
    assert latest is not None
    assert latest.step == 1
    assert (root / ".bad-step-0000000002").is_dir()
    assert reason in capsys.readouterr().err


def test_an_incomplete_checkpoint_does_not_count(root: Path) -> None:
    save(root, 1, 2)
    (root / "step-0000000002" / "COMPLETE").unlink()
    latest = Checkpointer(directory=root).latest()
    assert latest is not None
    assert latest.step == 1


def test_a_checkpoint_of_a_shell_script_counts_without_a_description(root: Path) -> None:
    folder = root / "step-7"
    folder.mkdir()
    (folder / "COMPLETE").touch()
    latest = Checkpointer(directory=root).latest()
    assert latest is not None
    assert (latest.path, latest.step, dict(latest.files)) == (folder, 7, {})
    with pytest.raises(CheckpointError, match=r"step-7 has no state.pt: it was made by a writer; use latest\(\).path"):
        Checkpointer(directory=root).restore()


def test_due_follows_the_interval_from_the_start_and_from_each_save(root: Path) -> None:
    clock = Clock()
    checkpointer = Checkpointer(60, directory=root, clock=clock)
    clock.seconds = 59.9
    assert not checkpointer.due()
    clock.seconds = 60
    assert checkpointer.due()
    assert checkpointer.save(writes("x"), 1, block=True)
    assert not checkpointer.due()
    clock.seconds = 120
    assert checkpointer.due()


def test_the_interval_comes_from_the_manifest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_CHECKPOINT_SECONDS", "7.5")
    assert Checkpointer(directory=root).every_seconds == 7.5
    assert Checkpointer(3, directory=root).every_seconds == 3


def test_while_a_save_runs_the_next_is_skipped_and_a_blocking_one_waits(root: Path) -> None:
    background = HeldBackground()
    checkpointer = Checkpointer(0, directory=root, background=background)
    assert checkpointer.save(writes("a"), 1)
    assert background.begun.wait(30)
    assert not checkpointer.due()
    assert not checkpointer.save(writes("b"), 2)
    background.go_on.set()
    assert checkpointer.save(writes("c"), 3, block=True)
    assert [path.name for path in fmt.complete_checkpoints(root)] == ["step-0000000003", "step-0000000001"]


def test_only_the_newest_of_its_own_checkpoints_stay_on_disk(root: Path) -> None:
    save(root, 90)  # of another process: not ours to remove
    checkpointer = Checkpointer(directory=root, keep_on_disk=2)
    for step in (1, 2, 3, 4):
        assert checkpointer.save(writes("x"), step, block=True)
        if step == 2:
            fmt.remove(root / "step-0000000002")  # somebody tidied up before us
    assert sorted(path.name for path in root.iterdir()) == [
        "latest",
        "step-0000000003",
        "step-0000000004",
        "step-0000000090",
    ]


def test_a_step_is_saved_once(root: Path) -> None:
    checkpointer = Checkpointer(directory=root)
    assert checkpointer.save(writes("first"), 1, block=True)
    assert checkpointer.save(writes("again"), 1, block=True)
    assert (root / "step-0000000001" / "weights" / "w.txt").read_text() == "first"


def test_the_same_step_of_an_earlier_run_is_replaced(root: Path) -> None:
    save(root, 1)
    Checkpointer(directory=root).save(writes("newer"), 1, block=True)
    assert (root / "step-0000000001" / "weights" / "w.txt").read_text() == "newer"
    assert sorted(path.name for path in root.iterdir()) == ["latest", "step-0000000001"]


def test_a_failed_save_is_told_and_the_training_goes_on(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def writes_the_manifest(folder: Path) -> None:
        (folder / "checkpoint.json").touch()  # which the save itself creates

    checkpointer = Checkpointer(directory=root)
    assert checkpointer.save(writes_the_manifest, 5)
    with pytest.raises(CheckpointError, match="checkpoint of step 5 was not written: File exists"):
        checkpointer.wait()
    assert "training goes on" in capsys.readouterr().err
    assert list(root.iterdir()) == []
    assert checkpointer.save(writes("x"), 5, block=True)


def test_a_writer_that_fails_leaves_nothing(root: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        Checkpointer(directory=root).save(writer=broken, step=1)
    assert list(root.iterdir()) == []


def test_only_rank_0_saves_unless_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert not Checkpointer(0, directory=root).due()
    assert not Checkpointer(directory=root).save(writes("x"), 1, block=True)
    assert Checkpointer(directory=root, all_ranks=True).save(writes("x"), 1, block=True)


def test_what_a_killed_process_left_half_written_is_removed(root: Path) -> None:
    (root / ".tmp-r0-step-0000000001-99").mkdir()
    (root / ".tmp-r1-step-0000000001-98").mkdir()
    Checkpointer(directory=root)
    assert [path.name for path in root.iterdir()] == [".tmp-r1-step-0000000001-98"]


def test_the_last_save_is_completed_when_the_program_ends(root: Path) -> None:
    program = (
        "import time, pathlib, updraft_learner as updraft\n"
        "from updraft_learner import checkpoint_format as fmt\n"
        "publish = fmt.publish\n"
        "fmt.publish = lambda *a: (time.sleep(0.3), publish(*a))\n"
        f"checkpointer = updraft.Checkpointer(directory=pathlib.Path({str(root)!r}))\n"
        "checkpointer.save(lambda folder: (folder / 'a').touch(), 9)\n"
        "updraft.preempted_exit()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (75, "")
    assert [path.name for path in fmt.complete_checkpoints(root)] == ["step-0000000009"]


def test_save_needs_a_step_and_one_thing_to_save(root: Path) -> None:
    checkpointer = Checkpointer(directory=root)
    for arguments in ({"step": 1}, {"writer": writes("x")}, {"state": {}, "writer": writes("x"), "step": 1}):
        with pytest.raises(TypeError, match="a step and either a state or a writer"):
            checkpointer.save(**arguments)  # type: ignore[arg-type]


@given(chunks=st.lists(st.binary(max_size=200), max_size=20))
def test_what_is_hashed_while_written_is_what_lies_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("hash")
    facts = fmt.write_file(folder / "file", lambda file: [file.write(chunk) for chunk in chunks])  # type: ignore[arg-type,return-value]
    assert (folder / "file").read_bytes() == b"".join(chunks)
    assert fmt.hash_folder(folder) == {"file": facts}


OFFERS = """
import sys
from pathlib import Path
from updraft_learner import Checkpointer

checkpoints = Checkpointer(directory=Path(sys.argv[1]))
at = 0
for at in (1, 2, 3):
    begun = checkpoints.save_when_due(step=at, writer=lambda folder: (folder / "w.txt").write_text(f"of {at}"))
    assert not begun
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("end", "steps"),
    [
        ("", ["step-0000000003"]),
        ("sys.exit(0)", ["step-0000000003"]),
        ("raise ValueError('no')", []),
        ("checkpoints.save(lambda folder: None, 3, block=True)", ["step-0000000003"]),
    ],
)
def test_a_program_that_ends_before_a_save_is_due_saves_the_last_one(root: Path, end: str, steps: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", OFFERS, str(root), end], capture_output=True, text=True, check=False)
    assert [path.name for path in fmt.complete_checkpoints(root)] == steps, done.stderr
    written = [path.read_text() for path in root.glob("step-*/w.txt")]
    assert written == (["of 3"] if steps and "save(" not in end else [])


def test_a_last_save_that_fails_is_told_and_does_not_fail_the_program(root: Path) -> None:
    end = "root = Path(sys.argv[1]); root.rmdir(); root.write_text('a file')"
    done = subprocess.run([sys.executable, "-c", OFFERS, str(root), end], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "updraft: the last checkpoint was not written" in done.stderr


def test_the_last_save_is_tried_though_the_one_before_failed(root: Path) -> None:
    end = "checkpoints._background.failed(2, OSError(28, 'No space left on device'))"
    done = subprocess.run([sys.executable, "-c", OFFERS, str(root), end], capture_output=True, text=True, check=False)
    assert "checkpoint of step 2 was not written" in done.stderr
    assert [path.name for path in fmt.complete_checkpoints(root)] == ["step-0000000003"]


def test_an_offer_saves_when_it_is_time(root: Path) -> None:
    clock = Clock()
    checkpointer = Checkpointer(5, directory=root, clock=clock)
    assert not checkpointer.save_when_due(step=1, writer=writes("one"))
    clock.seconds = 6
    assert checkpointer.save_when_due(step=2, writer=writes("two"))
    checkpointer.wait()
    assert [path.name for path in fmt.complete_checkpoints(root)] == ["step-0000000002"]
    assert not checkpointer.save_when_due(step=2, writer=writes("two"))
    with pytest.raises(TypeError, match="either a state, or a writer"):
        checkpointer.save_when_due(step=3)
