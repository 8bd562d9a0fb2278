"""A fresh clone: `make demo`, then the commands of README.md and of the pages for people who train, as they stand.

`reader` says how a block is typed. Two people read at once, while the demo still trains: what pages need goes on beside
each other, and each page is judged by a test of its own. The one block that is no user's command, the checkpoint of a
program without Python, is run as such a program.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pages
import pytest
from reader import UPDRAFT, Demo, Reader, Shell
from system_helpers import PREPARED, REPOSITORY

pytestmark = [pytest.mark.system, pytest.mark.pages, pytest.mark.timeout(2400)]
DEMO = ["make demo"]
PROGRAM = "docs/howto/write-a-program.md"
READERS = (
    (
        "README.md",
        "docs/howto/first-job.md",
        "docs/howto/checkpoints.md",
        "docs/howto/frameworks.md",
        "docs/howto/mlflow.md",
        "docs/howto/several-processes.md",
    ),
    (PROGRAM, "docs/howto/bring-your-program.md", "docs/howto/halt-and-resume.md", "docs/howto/when-things-fail.md"),
)


@dataclass(frozen=True)
class Clone:
    """`read`: what came of each page."""

    shell: Shell
    demo: Demo
    read: dict[str, Future[None]]


@pytest.fixture(scope="module")
def clone() -> Iterator[Clone]:
    if not (PREPARED / "envs" / "mlflow").exists():
        pytest.skip("SKIPPED SYSTEM TESTS: the environments are not built; run `make test`, which builds them")
    folder = PREPARED / "fresh-clone"
    shutil.rmtree(folder, ignore_errors=True)
    make_clone(folder)
    shell = Shell(folder)
    try:
        demo = Demo(shell)
        demo.wait_until_submitted()
        with ThreadPoolExecutor(len(READERS)) as people:
            read: dict[str, Future[None]] = {page: Future() for own in READERS for page in own}
            for own in READERS:
                people.submit(read_pages, Shell(folder), demo, {page: read[page] for page in own})
        yield Clone(shell, demo, read)
    finally:
        subprocess.run(["make", "down"], cwd=folder, env=shell.environment, timeout=180, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def make_clone(folder: Path) -> None:
    """A clone of this repository, with what is not committed yet."""
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)
    for options in (["--deleted"], ["--cached", "--others", "--exclude-standard"]):
        listing = ["git", "ls-files", "-z", *options]
        listed = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            (folder / name).unlink(missing_ok=True)
            if (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)


def read_pages(shell: Shell, demo: Demo, results: dict[str, Future[None]]) -> None:
    for page, result in results.items():
        try:
            if page == PROGRAM:
                run_program_of_page(shell)
            else:
                type_page(Reader(shell, demo), page)
            result.set_result(None)
        except Exception as exc:  # noqa: BLE001 - the test of the page raises it
            result.set_exception(exc)


def type_page(reader: Reader, page: str) -> None:
    for block in pages.command_blocks(page):
        if block.commands != DEMO:
            reader.type_block(block)
    reader.leave()


def run_program_of_page(shell: Shell) -> None:
    """The page's metrics and its checkpoint, by a job whose command they are."""
    [checkpoint] = pages.command_blocks(PROGRAM)
    [metrics] = [block for block in pages.blocks(PROGRAM) if block.language == "json"]
    folder = shell.folder / "as-the-page-says"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(metrics.text)
    (folder / "weights.bin").write_bytes(b"weights")
    (folder / "train.sh").write_text(f'set -e\ncat metrics.jsonl >>"$UPDRAFT_METRICS_FILE"\n{checkpoint.text}')
    manifest = {
        "name": "as-the-page-says",
        "framework": {"name": "shell"},
        "code": ".",
        "command": "sh train.sh",
        "resources": {"learners": 1, "cpus": 0.5, "memory": "256MiB"},
        "checkpoints": {"every": "60s", "keep": {"latest": 2}},
    }
    (folder / "manifest.yaml").write_text(json.dumps(manifest))

    said = shell.type(f"{UPDRAFT} submit as-the-page-says/manifest.yaml --follow")

    job = re.findall(r"^(\S+) submitted$", said, re.MULTILINE)[0]
    stored = shell.documents(f"checkpoints {job}")["checkpoints"]
    assert [(item["name"], item["step"]) for item in stored] == [("step-0000000030-a1", 30)]
    found = shell.documents(f"show {job}")["metrics"]
    assert (found["loss"], found["val_accuracy"]) == (0.25, 0.98)


def test_make_demo_registers_a_model_on_a_fresh_clone(clone: Clone) -> None:
    clone.demo.wait()
    assert clone.demo.lines[-1].startswith("The model digits-cnn is in the registry as version ")
    assert clone.shell.documents(f"show {clone.demo.job}")["state"] == "COMPLETED"


def test_nothing_is_wrong_after_the_demo_and_its_output_lists_no_packages(clone: Clone) -> None:
    """`type` judges the exit code; `make status` of a stack that is not ready leaves with 0 all the same."""
    clone.demo.wait()
    clone.shell.type("make doctor")
    assert " ready " in clone.shell.type("make status")
    assert clone.shell.documents("status")["ready"]
    assert [line for line in clone.demo.lines if line.startswith(" + ")] == []


def test_every_page_is_read() -> None:
    assert sorted(page for own in READERS for page in own) == sorted(pages.PAGES)


@pytest.mark.parametrize("page", pages.PAGES)
def test_the_commands_of_a_page_do_what_they_say(clone: Clone, page: str) -> None:
    clone.read[page].result()
