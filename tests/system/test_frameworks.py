"""The examples of frameworks whose images are built on demand: each trains, loses its learner, and goes on."""

from __future__ import annotations

import pytest
import yaml
from system_helpers import REPOSITORY, Stack, kill_after_a_checkpoint, on_demand_examples, pretty

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
TURNS = 3
# Long enough to be killed after the first checkpoint.
LONG = {
    "digits-huggingface": {"epochs": 60},
    "digits-jax": {"steps": 60_000},
    "digits-keras": {"epochs": 120},
    "digits-lightgbm": {"rounds": 8_000},
    "digits-lightning": {"epochs": 200},
    "digits-xgboost": {"rounds": 4_000},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.turn(at % TURNS)) for at, name in enumerate(on_demand_examples())],
)
def test_an_example_goes_on_after_its_learner_is_killed(stack: Stack, name: str) -> None:
    folder = REPOSITORY / "jobs" / name
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    manifest["params"] |= LONG[name]
    job = stack.submit(manifest, base=folder)
    kill_after_a_checkpoint(stack, job)
    detail = stack.end(job)
    assert detail.state == "COMPLETED", pretty(detail)
    attempts = [attempt for attempt in stack.client.attempts(job).attempts if attempt.role == "train"]
    assert len(attempts) == 2
    assert attempts[1].resume is not None, attempts
    assert detail.metrics["val_accuracy"] > 0.9
    if "export" in manifest:
        assert detail.model is not None
        assert detail.model.name == name
