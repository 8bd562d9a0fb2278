"""What `make test-cluster` runs, with a program in pytest's place."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubecluster import suite
from kubecluster.layout import STATE_VARIABLE, Layout
from kubecluster.target import KUBECONFIG_VARIABLE

PROGRAM = f"""
import os, pathlib, sys
here = pathlib.Path(os.environ["SEEN"])
name = "ends" if "tests/cluster/test_cluster_ends.py" in sys.argv else "others"
words = [os.environ.get("{STATE_VARIABLE}", "-"), os.environ.get("{KUBECONFIG_VARIABLE}", "-"), *sys.argv[1:]]
(here / name).write_text(" ".join(words))
print(name, "say this")
if "WAIT" in os.environ:
    import time
    try:
        (here / (name + " waits")).touch()
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.6)  # longer than subprocess waits for somebody who was interrupted with it
        (here / (name + " cleaned up")).touch()
        sys.exit(2)
sys.exit(int(os.environ[name.upper()]))
"""


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    monkeypatch.delenv(KUBECONFIG_VARIABLE, raising=False)
    for name, value in (("SEEN", str(tmp_path)), ("ENDS", "0"), ("OTHERS", "0")):
        monkeypatch.setenv(name, value)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Layout(tmp_path / "cluster", tmp_path / "cache")
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(layout: Layout, arguments: list[str], why_not: str | None = None) -> int:
    cluster: Any = SimpleNamespace(load_python_image=lambda say: "python")
    return suite.run(
        layout,
        arguments,
        print,
        pytest=(sys.executable, "-c", PROGRAM),
        keep_running=lambda layout, say: nullcontext(cluster),
        why_not=lambda layout: why_not,
    )


def seen(layout: Layout) -> dict[str, list[str]]:
    return {file.name: file.read_text().split() for file in layout.root.parent.iterdir() if file.is_file()}


def test_tests_that_end_clusters_run_beside_the_others(layout: Layout, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(layout, []) == 0
    second = f"{layout.root}-beside"
    assert seen(layout) == {
        "others": [str(layout.root), "-", "tests/cluster", "--ignore=tests/cluster/test_cluster_ends.py"],
        "ends": [second, f"{second}/kubeconfig", "tests/conformance", "tests/cluster/test_cluster_ends.py"],
    }
    said = capfd.readouterr().out
    assert said.index("others say this") < said.index("ends say this")  # each in one piece


@pytest.mark.parametrize(("fails", "code"), [("ENDS", 3), ("OTHERS", 4)])
def test_either_fails_the_whole(layout: Layout, monkeypatch: pytest.MonkeyPatch, fails: str, code: int) -> None:
    monkeypatch.setenv(fails, str(code))
    assert run(layout, []) == code


@pytest.mark.parametrize(("arguments", "names"), [([], ["ends", "others"]), (["-x"], ["others"])])
def test_interrupted_it_waits_until_the_tests_have_cleaned_up(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: list[str]
) -> None:
    monkeypatch.setenv("WAIT", "1")
    folder = layout.root.parent

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not all((folder / f"{name} waits").exists() for name in names) and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(2):  # somebody in a hurry
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = run(layout, arguments)
    thread.join()
    assert code == suite.INTERRUPTED
    assert [name for name in names if (folder / f"{name} cleaned up").exists()] == names


def test_chosen_tests_are_one_run(layout: Layout) -> None:
    assert run(layout, ["-k", "a or b"]) == 0
    assert {name: words[2:] for name, words in seen(layout).items()} == {
        "others": ["tests/cluster", "-k", "a", "or", "b"]
    }


def test_a_named_cluster_is_one_run(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KUBECONFIG_VARIABLE, "/somewhere/kubeconfig")
    assert run(layout, ["-x"]) == 0
    words = [str(layout.root), "/somewhere/kubeconfig", "tests/cluster", "tests/conformance", "-x"]
    assert seen(layout) == {"others": words}


def test_where_no_cluster_can_be_started_the_tests_say_why(layout: Layout) -> None:
    assert run(layout, [], why_not="only root") == 0
    assert list(seen(layout)) == ["others"]
