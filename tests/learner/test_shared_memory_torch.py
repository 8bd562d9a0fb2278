"""Shared-memory training of PyTorch programs in real processes, which are killed; and what is said of bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

import torch

from updraft_learner import shared
from updraft_learner.shared import memory, training

pytestmark = [pytest.mark.torch, pytest.mark.turn(2), pytest.mark.timeout(600)]
PROGRAM = Path(__file__).with_name("shared_programs.py")


def run(name: str, *, seconds: float = 300, gate: Path | None = None, **arguments: Any) -> dict[str, Any]:
    environment = {**os.environ, **({"UPDRAFT_TEST_GATE": str(gate)} if gate else {})}
    command = [sys.executable, "-W", "ignore", str(PROGRAM), name, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def serially(steps: int, learners: int, optimizer: Any) -> list[float]:
    """Train in this process, on the average of the gradients of all learners."""
    import shared_programs

    model = shared_programs.Net()
    given = optimizer(model.parameters())
    for step in range(steps):
        given.zero_grad()
        for learner in range(learners):
            samples, labels = shared_programs.samples_of(step, learner)
            (torch.nn.functional.cross_entropy(model(samples), labels) / learners).backward()
        given.step()
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("servers", [1, 2])
def test_synchronous_training_equals_the_optimizers_of_pytorch(servers: int) -> None:
    sys.path.insert(0, str(PROGRAM.parent))
    adam = run("learn", learners=2, steps=30, adam=True, servers=servers, chunk=100)
    expected = serially(30, 2, lambda given: torch.optim.Adam(given, lr=0.01))
    assert adam["weights"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    sgd = run("learn", learners=2, steps=30, lr=0.1, momentum=0.9, servers=servers, chunk=100)
    expected = serially(30, 2, lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9))
    assert sgd["weights"] == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kills", [30, pytest.param(1000, marks=[pytest.mark.large, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize(("staleness", "value"), [(None, -0.5), (3, -1.0)])
def test_random_kills_lose_and_double_no_gradient(
    staleness: int | None, value: float, kills: int, tmp_path: Path
) -> None:
    """Each gradient has weights of its own. `-m "torch and large"` sends a thousand kills."""
    gate = tmp_path / "kills"
    gate.touch()
    found = run(
        "mark",
        seconds=60 + 10 * kills,
        gate=gate,
        learners=2,
        steps=25 * kills,
        staleness=staleness,
        chunk=512,
        kills=kills,
        pause_seconds=0.15,
    )
    print(found)
    assert found["values"] == [value]
    assert found["killed"] >= kills / 2  # on a fast machine the training may end first
    assert sum(found["restarts"].values()) >= found["killed"] - 2  # the last may hit a process that is done
    assert found["stalest"] <= (0 if staleness is None else 2 * staleness + 3)


def test_kills_change_no_bit_of_synchronous_training() -> None:
    calm = run("learn", learners=2, steps=300, adam=True, chunk=100)
    killed = run("learn", learners=2, steps=300, adam=True, chunk=100, kills=8, pause_seconds=0.2, seed=3)
    assert killed["killed"] > 0
    assert killed["digest"] == calm["digest"]


@pytest.mark.parametrize("kills", [0, 6])
def test_a_stopped_training_goes_on_and_no_bit_differs(kills: int, tmp_path: Path) -> None:
    """It is stopped again and again, as by the platform, and its processes are killed meanwhile."""
    arguments: dict[str, Any] = {"learners": 2, "steps": 400, "adam": True, "chunk": 100, "pause_seconds": 0.3}
    calm = run("learn", **arguments)
    arguments |= {"kills": kills, "folder": str(tmp_path / "checkpoints")}
    command = [sys.executable, "-W", "ignore", str(PROGRAM), "learn"]
    steps = []
    for attempt in range(1, 40):
        environment = {**os.environ, "UPDRAFT_STOP_FILE": str(tmp_path / f"stop-{attempt}")}
        given = json.dumps({**arguments, "seed": attempt})
        with subprocess.Popen([*command, given], env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            until = time.monotonic() + 8
            newest = checkpoint_steps(tmp_path)
            while process.poll() is None and checkpoint_steps(tmp_path) == newest and time.monotonic() < until:
                time.sleep(0.02)
            if attempt < 4:
                Path(environment["UPDRAFT_STOP_FILE"]).touch()
            output = process.communicate(timeout=120)[0]
        steps.append(max(checkpoint_steps(tmp_path), default=0))
        if process.returncode == 0:
            break
        assert process.returncode == 75, output
        assert "error" not in output
    assert attempt > 1
    assert steps == sorted(steps)
    assert json.loads(output.splitlines()[-1])["digest"] == calm["digest"]


def checkpoint_steps(folder: Path) -> set[int]:
    return {int(path.parent.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*/COMPLETE")}


def test_gradients_that_are_not_finite_are_skipped_and_counted() -> None:
    found = run("poison", learners=2, steps=9, staleness=1)
    assert found["skipped"] == [0, 3]
    assert found["values"] == [-1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "arguments", "error", "words"),
    [
        ("poison", {"nonfinite": "refuse"}, "ProgramFailed", "gradient of parameter 'marks' is not finite in step 0"),
        ("grow", {}, "InvalidSharedModel", "parameter 'marks' has the shape (7,), and had (1, 9, 2)"),
        ("replace", {}, "InvalidSharedModel", "parameter 'marks' was replaced"),
        ("hang", {"patience_seconds": 2}, "TrainingStalled", "learner 1 has pushed no gradient for 2 s"),
        ("leave", {}, "ProgramFailed", "learner 1 returned after 3 of its 9 steps"),
        ("fail", {}, "ProgramFailed", "no data for step 0"),
        ("forget", {}, "ProgramFailed", "ended without push()"),
        ("die", {}, "TooManyKills", "ended 11 times without a step in between, the last time by signal 9"),
        ("clamp", {}, "TooManyKills", "the last time by signal 11; if that is 9"),
    ],
)
def test_a_program_that_goes_wrong_ends_the_training(
    name: str, arguments: dict[str, Any], error: str, words: str
) -> None:
    began = time.monotonic()
    found = run(name, learners=2, steps=9, **arguments)
    assert (found["error"], words in found["message"]) == (error, True), found["message"]
    assert time.monotonic() - began < 120


def test_the_program_of_the_page_trains(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "shared-memory.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    data = "\n\ndef load():\n    return torch.randn(100, 64), torch.zeros(100, dtype=torch.long)\n"
    for old, new in (("import shared\n", "import shared\n" + data), ("steps=2000", "steps=20")):
        assert old in program
        program = program.replace(old, new)
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    environment = {**os.environ, "UPDRAFT_SHARED_LEARNERS": "2"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert "\nTrained(steps=20, skipped=(0, 0), restarts={}" in done.stdout, done.stderr[-2000:]
    assert all(f"step 0: process_{learner}/loss " in done.stdout for learner in (0, 1))
    assert len(torch.load(tmp_path / "model.pt")) == 4


class Views(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        whole = torch.zeros(10)
        self.first = torch.nn.Parameter(whole[:6])
        self.second = torch.nn.Parameter(whole[4:])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Views(), "parameters 'first' and 'second' share memory"),
        (torch.nn.Linear(2, 2).double(), "parameter 'weight' is torch.float64; it must be torch.float32"),
        (torch.nn.Linear(2, 2, device="meta"), "parameter 'weight' is on meta; it must be on cpu"),
        (torch.nn.Linear(2, 2).requires_grad_(False), "no parameter that requires a gradient"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), "module '1' is a BatchNorm1d"),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused(model: Any, words: str) -> None:
    with pytest.raises(shared.InvalidSharedModel) as raised:
        shared.train(model, print, steps=1, learners=1, optimizer=shared.SGD(lr=1))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"learners": 0}, "learners is 0; give a whole number from 1 to 256"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"staleness": -1}, "staleness is -1; give a whole number from 0"),
        ({"nonfinite": "ignore"}, "nonfinite is 'ignore'; give 'skip' or 'refuse'"),
        ({"patience_seconds": 0}, "patience_seconds is 0"),
        ({"optimizer": torch.optim.SGD}, "give updraft_learner.shared.SGD or Adam"),
    ],
)
def test_an_argument_out_of_range_is_named(changed: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"steps": 1, "learners": 1, "optimizer": shared.SGD(lr=1), **changed}
    with pytest.raises(shared.InvalidSetting) as raised:
        shared.train(torch.nn.Linear(2, 2), print, **arguments)
    assert words in str(raised.value)


def test_too_little_memory_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: (1 << 20, "the pod's memory limit"))
    with pytest.raises(shared.NotEnoughSharedMemory) as raised:
        shared.train(torch.nn.Linear(1024, 1024), print, steps=1, learners=2, optimizer=shared.Adam())
    assert "this needs 28." in str(raised.value)
    assert "16.0 MiB of gradients" in str(raised.value)
    assert "the pod's memory limit has 1.0 MiB left" in str(raised.value)


def test_more_learners_than_cores_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "create", lambda layout: (_ for _ in ()).throw(RuntimeError("not started")))
    with pytest.warns(UserWarning, match="learners is 200, more than the"), pytest.raises(RuntimeError):
        shared.train(torch.nn.Linear(2, 2), print, steps=1, learners=200, optimizer=shared.Adam())


def test_the_number_of_learners_is_that_of_the_manifest_or_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPDRAFT_SHARED_LEARNERS", raising=False)
    assert shared.learners_asked() == training.usable_cores()
    monkeypatch.setenv("UPDRAFT_SHARED_LEARNERS", "3")
    assert shared.learners_asked() == 3
    assert run("learn", learners=None, steps=4, lr=0.1, momentum=0.9)["skipped"] == [0, 0, 0]
    monkeypatch.setenv("UPDRAFT_SHARED_LEARNERS", "many")
    with pytest.raises(shared.InvalidSetting, match="UPDRAFT_SHARED_LEARNERS is 'many'"):
        shared.learners_asked()


def test_the_memory_that_the_platform_names_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_MEMORY_BYTES", "1000")
    free, where = memory.free_bytes()
    assert free < 1000
    assert where == "the pod's memory limit"
