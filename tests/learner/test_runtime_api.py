"""Where a program runs and whether it was asked to stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import updraft_learner as updraft
from updraft_learner import runtime


@pytest.fixture(autouse=True)
def outside_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA_DIR", "RESULT_DIR", "CHECKPOINT_DIR", "RANK", "WORLD_SIZE", "UPDRAFT_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("UPDRAFT_PARAMS_FILE", "UPDRAFT_STOP_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_outside_the_platform_everything_has_a_sensible_value(tmp_path: Path) -> None:
    out = tmp_path / "updraft-out"
    assert updraft.params() == {}
    assert (updraft.rank(), updraft.world_size(), updraft.attempt()) == (0, 1, 1)
    assert (updraft.data_dir(), updraft.result_dir(), updraft.checkpoint_dir()) == (
        out / "data",
        out / "result",
        out / "checkpoints",
    )
    assert updraft.result_dir().is_dir()


def test_inside_the_platform_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.json").write_text(json.dumps({"epochs": 3, "name": "x"}))
    monkeypatch.setenv("UPDRAFT_PARAMS_FILE", str(tmp_path / "params.json"))
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "r"))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert updraft.params() == {"epochs": 3, "name": "x"}
    assert updraft.result_dir() == tmp_path / "r"
    assert (updraft.rank(), updraft.world_size()) == (1, 2)


def test_a_rank_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match="environment variable RANK is 'one'; it must be a whole number"):
        updraft.rank()


def test_params_that_are_no_object_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.json").write_text("[1]")
    monkeypatch.setenv("UPDRAFT_PARAMS_FILE", str(tmp_path / "params.json"))
    with pytest.raises(ValueError, match="params are a JSON object"):
        updraft.params()


def test_the_stop_file_is_a_stop_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_STOP_FILE", str(tmp_path / "stop"))
    assert not runtime.stop_pending()
    (tmp_path / "stop").touch()
    assert runtime.stop_pending()


def test_preempted_exit_leaves_with_75() -> None:
    with pytest.raises(SystemExit) as caught:
        updraft.preempted_exit()
    assert caught.value.code == 75


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_sigterm_becomes_a_stop_request_once_the_program_asks() -> None:
    done = run_program(
        "import os, signal, updraft_learner as updraft\n"
        "assert not updraft.stop_requested()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert updraft.stop_requested()\n"
        "updraft.preempted_exit()"
    )
    assert (done.returncode, done.stderr) == (75, "")


def test_a_program_that_never_asks_dies_of_sigterm() -> None:
    done = run_program("import os, signal, updraft_learner\nos.kill(os.getpid(), signal.SIGTERM)")
    assert done.returncode == -15


def test_a_handler_of_the_program_is_called_too() -> None:
    done = run_program(
        "import os, signal, updraft_learner as updraft\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
        "updraft.stop_requested()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(updraft.stop_requested())"
    )
    assert done.stdout == "mine\nTrue\n"


def test_forked_workers_still_die_of_sigterm() -> None:
    done = run_program(
        "import os, signal, updraft_learner as updraft\n"
        "updraft.stop_requested()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert done.stdout == "-15\n"


def test_importing_the_package_needs_the_standard_library_only() -> None:
    done = run_program(
        "import sys, signal, updraft_learner\n"
        "heavy = {'torch', 'numpy', 'boto3', 'mlflow', 'safetensors', 'onnx'} & set(sys.modules)\n"
        "print(heavy or 'light', signal.getsignal(signal.SIGTERM).name)"
    )
    assert done.stdout == "light SIG_DFL\n"
