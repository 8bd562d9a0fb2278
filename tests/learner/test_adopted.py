"""Checkpoints that an unchanged program writes by itself, adopted by the sidecar."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.adopted_fakes import GLOB, Watch, content, copied, write
from learner.sidecar_fakes import CONFIG, make_paths

from updraft_learner import checkpoint_format as fmt
from updraft_learner.record.disk import PodDisk
from updraft_learner.sidecar.adopted import MOST_COPIES, MOST_REFUSED, QUIET_SECONDS, step_of
from updraft_learner.sidecar.adopted_copy import Disturbed, make_copy
from updraft_learner.sidecar.adopted_scan import look


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(make_paths(tmp_path / "pod"))


def test_a_folder_becomes_a_checkpoint_when_it_is_quiet(watch: Watch) -> None:
    write(watch.paths, "output/checkpoint-500", {"model.bin": "m", "rng/0.pth": "r"})
    watch.adopter.poll()
    watch.seconds = QUIET_SECONDS - 0.1
    watch.adopter.poll()
    assert watch.steps() == []
    watch.seconds = QUIET_SECONDS
    watch.adopter.poll()
    assert copied(watch.paths, 500) == {"checkpoint-500/model.bin": "m", "checkpoint-500/rng/0.pth": "r"}
    found = fmt.read(watch.paths.checkpoints / fmt.step_name(500))  # verifies the digests
    assert found.step == 500
    assert set(found.files) == {"adopted.json", "adopted/checkpoint-500/model.bin", "adopted/checkpoint-500/rng/0.pth"}


def test_a_write_begins_the_wait_anew_even_with_the_old_time(watch: Watch) -> None:
    file = write(watch.paths, "output/checkpoint-1", {"a": "one"}) / "a"
    watch.adopter.poll()
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    watch.seconds = QUIET_SECONDS
    watch.adopter.poll()
    assert watch.steps() == []
    watch.quiet()
    assert copied(watch.paths, 1) == {"checkpoint-1/a": "two"}


def saved_again(watch: Watch, number: int) -> None:
    write(watch.paths, "out", {"model.pt": f"weights {number}"})


def test_a_file_that_is_rewritten_all_the_time_is_adopted(tmp_path: Path) -> None:
    watch = Watch(make_paths(tmp_path / "pod"), replace(CONFIG, adopt="out/model.pt"))
    for second in range(20):
        watch.seconds = second
        if second % 3 == 0:
            saved_again(watch, second)
        watch.adopter.poll()
    texts = [copied(watch.paths, step)["model.pt"] for step in watch.steps()]
    assert texts == [f"weights {second}" for second in (0, 3, 6, 9, 12)]
    watch.adopter.poll(last=True)
    assert [path.name for path in watch.paths.checkpoints.iterdir() if path.name.startswith(".")] == []
    assert "it changed in the last 5 s before the end" in watch.said()


def test_a_file_that_is_open_for_writing_waits_until_it_is_quiet(tmp_path: Path) -> None:
    watch = Watch(make_paths(tmp_path / "pod"), replace(CONFIG, adopt="out/model.pt"))
    saved_again(watch, 1)
    with (watch.paths.code / "out" / "model.pt").open("a") as file:
        for second in range(8):
            watch.seconds = second
            if second == 4:
                file.write(" and more")
                file.flush()
            watch.adopter.poll()
        assert watch.steps() == []
    watch.quiet()
    assert copied(watch.paths, 1) == {"model.pt": "weights 1 and more"}


def test_what_a_killed_program_leaves_half_written_is_not_adopted(tmp_path: Path) -> None:
    """Its files are closed too; the end comes before the copy counts."""
    watch = Watch(make_paths(tmp_path / "pod"), replace(CONFIG, adopt="out/model.pt"))
    saved_again(watch, 1)
    for second in (0.0, 1.5, 4.5):
        watch.seconds = second
        watch.adopter.poll(last=second > 4)
    assert watch.steps() == []
    assert list(watch.paths.checkpoints.iterdir()) == []


def test_a_single_file_is_adopted(tmp_path: Path) -> None:
    watch = Watch(make_paths(tmp_path / "pod"), replace(CONFIG, adopt="models/epoch-*.h5"))
    write(watch.paths, "models", {"epoch-03.h5": "weights", "notes.txt": "no"})
    watch.quiet()
    assert (watch.steps(), copied(watch.paths, 3)) == ([3], {"epoch-03.h5": "weights"})


def test_names_without_a_number_are_counted_in_the_order_of_adoption(tmp_path: Path) -> None:
    watch = Watch(make_paths(tmp_path / "pod"), replace(CONFIG, adopt="*.ckpt"))
    for text in ("first", "second"):
        write(watch.paths, "", {"last.ckpt": text})
        watch.quiet()
    assert watch.steps() == [1, 2]
    assert copied(watch.paths, 2) == {"last.ckpt": "second"}


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("output/checkpoint-500", 500),
        ("run-7/last", None),
        ("epoch=3-step=40.ckpt", 40),
        ("model.h5", None),
        ("w.007.h5", 7),
        ("x" + "9" * 19, None),
    ],
)
def test_the_last_number_of_the_name_is_the_step(path: str, step: int | None) -> None:
    assert step_of(path) == step


def test_unfinished_names_wait_and_are_named_at_the_end(watch: Watch) -> None:
    folder = write(watch.paths, "output/checkpoint-1", {"model.bin.tmp": "half"})
    watch.quiet(last=True)
    assert watch.steps() == []
    assert "model.bin.tmp in it says that it is unfinished" in watch.said()
    (folder / "model.bin.tmp").rename(folder / "model.bin")
    watch.quiet()
    assert watch.steps() == [1]
    assert watch.said() == ""


def test_what_changed_just_before_the_end_may_be_torn_and_is_not_adopted(watch: Watch) -> None:
    write(watch.paths, "output/checkpoint-1", {"a": "whole"})
    watch.adopter.poll()
    write(watch.paths, "output/checkpoint-2", {"a": "ha"})
    watch.seconds = QUIET_SECONDS
    watch.adopter.poll(last=True)
    assert watch.steps() == [1]
    assert "output/checkpoint-2 is not adopted as a checkpoint: it changed in the last 5 s" in watch.said()


def test_folders_that_the_program_removes_are_forgotten_and_their_copies_stay(watch: Watch) -> None:
    for step in range(1, 4):
        write(watch.paths, f"output/checkpoint-{step}", {"a": str(step)})
        shutil.rmtree(watch.paths.code / f"output/checkpoint-{step - 1}", ignore_errors=True)
        watch.quiet()
    assert watch.steps() == [1, 2, 3]
    assert watch.said() == ""


def test_what_lies_there_before_the_program_starts_is_not_adopted(tmp_path: Path) -> None:
    paths = make_paths(tmp_path / "pod")
    write(paths, "output/checkpoint-9", {"a": "shipped"})
    watch = Watch(paths)
    watch.quiet()
    assert watch.steps() == []
    write(paths, "output/checkpoint-9", {"a": "trained"})
    watch.quiet()
    assert copied(paths, 9) == {"checkpoint-9/a": "trained"}


def test_a_restarted_sidecar_adopts_nothing_twice_and_what_came_meanwhile(watch: Watch) -> None:
    write(watch.paths, "output/checkpoint-1", {"a": "1"})
    watch.quiet()
    marker = watch.paths.checkpoints / fmt.step_name(1) / "COMPLETE"
    inode = marker.stat().st_ino
    write(watch.paths, "output/checkpoint-2", {"a": "2"})
    (watch.paths.checkpoints / ".tmp-adopted-left").mkdir()
    again = Watch(watch.paths)
    again.quiet()
    assert again.steps() == [1, 2]
    assert marker.stat().st_ino == inode
    assert not (watch.paths.checkpoints / ".tmp-adopted-left").exists()


def test_planted_links_are_never_followed(watch: Watch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (secret / "checkpoint-1").mkdir(parents=True)
    (secret / "checkpoint-1/token").write_text("hush")
    folder = write(watch.paths, "output/checkpoint-2", {"a": "1"})
    (folder / "token").symlink_to(secret / "checkpoint-1/token")
    (watch.paths.code / "output/checkpoint-3").symlink_to(secret / "checkpoint-1")
    os.mkfifo(write(watch.paths, "output/checkpoint-4", {"a": "1"}) / "pipe")
    watch.quiet()
    assert watch.steps() == []
    assert "output/checkpoint-2 is not adopted as a checkpoint: token is a link" in watch.said()
    assert "output/checkpoint-3 is not adopted as a checkpoint: it is a link" in watch.said()
    shutil.rmtree(watch.paths.code / "output")
    (watch.paths.code / "output").symlink_to(secret)
    watch.quiet()
    assert watch.steps() == []


def test_few_refused_matches_are_named_until_they_are_gone(watch: Watch) -> None:
    for step in range(1, 100):
        (write(watch.paths, f"output/checkpoint-{step}", {"a": "1"}) / "link").symlink_to("a")
    watch.quiet()
    assert len(watch.warnings.texts()) == MOST_REFUSED
    shutil.rmtree(watch.paths.code / "output")
    watch.quiet()
    assert watch.warnings.texts() == ()


def test_folders_of_others_in_the_checkpoint_folder_do_not_count(watch: Watch) -> None:
    for number in range(MOST_COPIES):
        (watch.paths.checkpoints / f"own-{number}").mkdir()
    (watch.paths.checkpoints / "latest").symlink_to("own-0")
    write(watch.paths, "output/checkpoint-1", {"a": "1"})
    watch.quiet()
    assert watch.steps() == [1]


def test_a_checkpoint_folder_that_is_a_link_is_not_written_through(watch: Watch, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    watch.paths.checkpoints.rmdir()
    watch.paths.checkpoints.symlink_to(outside)
    write(watch.paths, "output/checkpoint-1", {"a": "1"})
    watch.quiet()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("change", ["rewrite", "remove", "add", "replace by a link"])
def test_a_folder_that_changes_while_it_is_copied_is_not_published(watch: Watch, change: str) -> None:
    folder = write(watch.paths, "output/checkpoint-1", {"a": "1", "b": "2"})
    state = look(watch.paths.root, "code/output/checkpoint-1")
    if change == "rewrite":
        (folder / "b").write_text("3")
    elif change == "remove":
        shutil.rmtree(folder)
    elif change == "add":
        (folder / "c").write_text("3")
    else:
        (folder / "b").unlink()
        (folder / "b").symlink_to("/etc/hostname")
    with pytest.raises((Disturbed, OSError)):
        make_copy(watch.paths.root, "code", "output/checkpoint-1", state)
    assert list(watch.paths.checkpoints.iterdir()) == []


ROTATING = """\
import os, shutil
for step in range(1, 201):
    os.makedirs("output/tmp-checkpoint")
    for name in "ab":
        with open(f"output/tmp-checkpoint/{name}", "w") as file:
            file.write(str(step))
    os.rename("output/tmp-checkpoint", f"output/checkpoint-{step}")
    shutil.rmtree(f"output/checkpoint-{step - 2}", ignore_errors=True)
"""


def test_of_a_program_that_rotates_its_folders_only_whole_ones_are_published(watch: Watch) -> None:
    """It removes folders while they are copied: time is made to pass at each look, so that all of them seem quiet."""
    seen: set[int] = set()
    with subprocess.Popen([sys.executable, "-c", ROTATING], cwd=watch.paths.code) as program:
        ended = False
        while not ended:
            ended = program.poll() is not None
            watch.quiet()
            for step in watch.steps():
                assert copied(watch.paths, step) == {f"checkpoint-{step}/{name}": str(step) for name in "ab"}
                seen.add(step)
                fmt.remove(watch.paths.checkpoints / fmt.step_name(step))  # as when it is stored
    assert program.returncode == 0
    assert {199, 200} <= seen


def test_a_full_disk_is_no_end(tmp_path: Path) -> None:
    class Full(PodDisk):
        def free_bytes(self, folder: Path) -> int | None:
            return 1000

    watch = Watch(make_paths(tmp_path / "pod"), disk=Full())
    write(watch.paths, "output/checkpoint-1", {"a": "1"})
    watch.quiet()
    assert watch.steps() == []
    assert "the pod's disk has 1000 bytes free" in watch.said()


def test_no_more_is_copied_while_the_store_is_slow(watch: Watch) -> None:
    for step in range(1, MOST_COPIES + 3):
        write(watch.paths, f"output/checkpoint-{step}", {"a": str(step)})
    watch.quiet()
    assert watch.steps() == [3, 4, 5, 6, 7]


def test_a_glob_that_names_nothing_is_reported_at_the_end(watch: Watch) -> None:
    write(watch.paths, "out/checkpoint-1", {"a": "1"})
    watch.quiet(last=True)
    assert "matches output/checkpoint-*, as checkpoints.from says; no checkpoint was adopted" in watch.said()


def test_without_a_glob_nothing_is_done(tmp_path: Path) -> None:
    watch = Watch(make_paths(tmp_path / "pod"), CONFIG)
    write(watch.paths, "output/checkpoint-1", {"a": "1"})
    watch.quiet(last=True)
    assert (watch.steps(), watch.said()) == ([], "")


def test_other_learners_adopt_nothing_and_say_so(tmp_path: Path) -> None:
    watch = Watch(make_paths(tmp_path / "pod"), replace(GLOB, learner=2, learners=2))
    write(watch.paths, "output/checkpoint-1", {"a": "1"})
    watch.quiet()
    assert watch.steps() == []
    assert "learner 2 writes output/checkpoint-1: only what learner 1 writes is adopted" in watch.said()


def _actions() -> st.SearchStrategy[tuple[str, str]]:
    names, texts = st.sampled_from(["a", "b", "c.tmp"]), st.text("xy", max_size=3)
    return st.one_of(
        st.tuples(st.just("poll"), st.just("")),
        st.tuples(st.just("wait"), st.just("")),
        st.tuples(names, texts),
        st.tuples(st.just("remove"), st.just("")),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(_actions(), max_size=25))
def test_a_published_checkpoint_equals_a_state_of_the_folder_that_was_quiet(actions: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        watch = Watch(make_paths(Path(root) / "pod"))
        folder = watch.paths.code / "output/checkpoint-1"
        quiet: list[dict[str, str]] = []
        changed_at = 0.0
        for action, text in actions:
            if action == "wait":
                watch.seconds += QUIET_SECONDS / 2
            elif action == "remove":
                shutil.rmtree(folder, ignore_errors=True)
                changed_at = watch.seconds
            elif action != "poll":
                write(watch.paths, "output/checkpoint-1", {action: text})
                changed_at = watch.seconds
            if watch.seconds - changed_at >= QUIET_SECONDS and folder.exists():
                quiet.append(content(folder))
            watch.adopter.poll()
            if watch.steps():
                found = content(watch.paths.checkpoints / fmt.step_name(1) / "adopted/checkpoint-1")
                assert found in quiet
                assert "c.tmp" not in found
                fmt.read(watch.paths.checkpoints / fmt.step_name(1))
