"""A training with XGBoost's adapter goes on after a kill and a halt, and ends as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.adapter_runs import Place, value

pytest.importorskip("xgboost", reason="runs in the environment of the image learner-xgboost")
pytestmark = pytest.mark.framework(name="xgboost")

DATA = """
import time
import numpy as np
import xgboost
from updraft_learner.adapters import xgboost as adapter

random = np.random.default_rng(1)
x = random.normal(size=(400, 5)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int")


class Slow(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        print("round", model.num_boosted_rounds(), flush=True)
        time.sleep(0.05)
        return False
"""
NATIVE = (
    DATA
    + """
rows = xgboost.DMatrix(x, y)
booster = adapter.train(
    {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}, rows, 30,
    evals=[(rows, "train")], verbose_eval=False, callbacks=[Slow()],
)
print("rounds:", booster.num_boosted_rounds())
print("predictions:", booster.predict(rows).round(5).tolist()[:40])
"""
)
SKLEARN = (
    DATA
    + """
checkpoints = adapter.Checkpoints(rounds=30)
model = xgboost.XGBClassifier(
    n_estimators=checkpoints.rounds_left, max_depth=3, n_jobs=1, callbacks=[Slow(), checkpoints]
)
model.fit(x, y, eval_set=[(x, y)], verbose=False, xgb_model=checkpoints.model)
print("rounds:", model.get_booster().num_boosted_rounds())
print("predictions:", model.predict_proba(x)[:40, 1].round(5).tolist())
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
    name = "train_logloss" if program == NATIVE else "validation_0_logloss"
    points = place.metrics(name)
    assert {step for step, _ in points} == set(range(1, 31))
    assert points[-1][1] < points[0][1]


def test_a_program_that_is_started_again_at_its_end_trains_no_more(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = place.run(NATIVE)
    again = place.run(NATIVE)
    assert "round" not in again.replace("rounds:", "")
    assert value(again, "predictions") == value(first, "predictions")
