"""Training a script or a function from Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.client.client_fakes import FakeAirflow, make_client

from updraft.client.default import trainable
from updraft.client.train import program_of
from updraft.exceptions import DataError

OUTSIDE = 3


def fit(epochs: int, name: str = "x") -> None:
    import json

    print(json.dumps({"epochs": epochs, "name": name}))


@trainable(resources={"cpus": 2})
def decorated(rate: float = 0.1) -> float:
    """Return the rate, doubled."""
    return rate * 2


def uses_outside() -> int:
    return OUTSIDE


def submitted(airflow: FakeAirflow) -> dict[str, Any]:
    (run,) = airflow.runs.values()
    manifest: dict[str, Any] = run["conf"]["manifest"]
    return manifest


def run_program(text: str, params: dict[str, Any], folder: Path) -> str:
    (folder / "params.json").write_text(json.dumps(params))
    environment = {"UPDRAFT_PARAMS_FILE": str(folder / "params.json")}
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_function_runs_in_another_process_with_its_params(tmp_path: Path) -> None:
    assert json.loads(run_program(program_of(fit), {"epochs": 3}, tmp_path)) == {"epochs": 3, "name": "x"}


def test_a_nested_function_is_sent_without_its_indentation(tmp_path: Path) -> None:
    def inner(text: str) -> None:
        for word in text.split():
            print(word)

    assert run_program(program_of(inner), {"text": "a b"}, tmp_path) == "a\nb\n"


def test_a_function_is_submitted_with_what_was_given(airflow: FakeAirflow) -> None:
    job = make_client(airflow).train(fit, params={"epochs": 3}, framework={"name": "shell"}, resources={"cpus": 0.5})
    manifest = submitted(airflow)
    assert job.id in airflow.runs
    assert (manifest["name"], manifest["command"], manifest["params"]) == ("fit", "python train.py", {"epochs": 3})
    assert (manifest["resources"]["cpus"], manifest["code"].startswith("tree:")) == (0.5, True)


def test_a_script_is_submitted_with_its_folder(airflow: FakeAirflow, tmp_path: Path) -> None:
    (tmp_path / "my_fit.py").write_text("import torch, helper")
    (tmp_path / "helper.py").write_text("")
    make_client(airflow).train(tmp_path / "my_fit.py", image="example/mine:1")
    manifest = submitted(airflow)
    assert (manifest["name"], manifest["image"], manifest.get("framework")) == ("my-fit", "example/mine:1", None)
    (tree,) = airflow.trees.values()
    assert sorted(file["path"] for file in tree["files"]) == ["helper.py", "my_fit.py"]


def test_a_trainable_function_runs_here_and_there(airflow: FakeAirflow) -> None:
    assert decorated(0.5) == 1.0
    assert decorated.__doc__ == "Return the rate, doubled."
    assert "trainable" not in program_of(decorated._function)
    there = type(decorated)(decorated._function, {"framework": {"name": "shell"}}, lambda: make_client(airflow))
    there.submit(rate=0.3)
    assert submitted(airflow)["params"] == {"rate": 0.3}


@pytest.mark.parametrize(
    ("program", "params", "text"),
    [
        (uses_outside, {}, "uses OUTSIDE of the code around it"),
        (lambda: None, {}, "written with def"),
        (print, {}, "written with def"),
        (fit, {"epoch": 3}, "params: fit cannot be called with them: missing a required argument"),
        (fit, {"epochs": {1}}, "params: fit cannot be called with them: Object of type set"),
        ("missing.py", {}, "program: missing.py is no file"),
    ],
)
def test_what_cannot_be_sent_is_told_before_anything_is(
    program: str | Callable[..., object], params: dict[str, Any], text: str, airflow: FakeAirflow
) -> None:
    with pytest.raises(DataError, match=text):
        make_client(airflow).train(program, params=params)
    assert airflow.requests == []
