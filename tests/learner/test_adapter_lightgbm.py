"""A training with LightGBM's adapter goes on after a kill and a halt, and ends as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.adapter_runs import Place, value

pytest.importorskip("lightgbm", reason="runs in the environment of the image learner-lightgbm")
pytestmark = pytest.mark.framework(name="lightgbm")

DATA = """
import time
import lightgbm
import numpy as np
from updraft_learner.adapters import lightgbm as adapter

random = np.random.default_rng(1)
x = random.normal(size=(400, 5))
y = (x[:, 0] * x[:, 1] > 0).astype("int")


def slow(environment):
    print("round", environment.iteration + 1, flush=True)
    time.sleep(0.05)
"""
NATIVE = (
    DATA
    + """
rows = lightgbm.Dataset(x, y, free_raw_data=False)
parameters = {
    "objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1, "deterministic": True, "num_rounds": 30
}
booster = adapter.train(parameters, rows, valid_sets=[rows], valid_names=["train"], callbacks=[slow])
print("rounds:", booster.current_iteration())
print("predictions:", booster.predict(x).round(5).tolist()[:40])
"""
)
SKLEARN = (
    DATA
    + """
checkpoints = adapter.Checkpoints(rounds=30)
model = lightgbm.LGBMClassifier(n_estimators=checkpoints.rounds_left, num_leaves=7, n_jobs=1, verbose=-1)
model.fit(x, y, eval_set=[(x, y)], callbacks=[slow, checkpoints], init_model=checkpoints.model)
print("rounds:", model.booster_.current_iteration())
print("predictions:", model.booster_.predict(x).round(5).tolist()[:40])
"""
)


@pytest.fixture(scope="module", params=[NATIVE, SKLEARN], ids=["train", "sklearn"])
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(program: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run prints that is never interrupted."""
    return Place(tmp_path_factory.mktemp("whole")).run(program)


def test_a_killed_training_ends_with_the_same_trees(program: str, whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.killed(program, at="round 12")
    printed = place.run(program)
    assert "round 1\n" not in printed
    assert value(printed, "rounds") == value(whole, "rounds") == "30"
    assert value(printed, "predictions") == value(whole, "predictions")
    assert place.checkpoints()[-1] == "step-0000000030"


def test_a_halt_saves_the_last_round_and_leaves(program: str, whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path, variables={"UPDRAFT_CHECKPOINT_SECONDS": "3600"})
    assert "stopped on request after step" in place.stopped(program, at="round 12")
    [saved] = place.checkpoints()
    assert int(saved.rpartition("-")[2]) in (12, 13)
    assert value(place.run(program), "predictions") == value(whole, "predictions")


def test_metrics_are_live_and_count_on(program: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.killed(program, at="round 12")
    place.run(program)
    name = "train_binary_logloss" if program == NATIVE else "training_binary_logloss"
    points = place.metrics(name)
    assert {step for step, _ in points} == set(range(1, 31))
    assert points[-1][1] < points[0][1]


def test_a_program_that_is_started_again_at_its_end_trains_no_more(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = place.run(NATIVE)
    again = place.run(NATIVE)
    assert "round" not in again.replace("rounds:", "")
    assert value(again, "predictions") == value(first, "predictions")
