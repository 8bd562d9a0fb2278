"""A JAX program with Orbax's adapter goes on after a kill and a halt, and ends as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.adapter_runs import Place, value

pytest.importorskip("orbax.checkpoint", reason="runs in the environment of the image learner-jax")
pytestmark = [pytest.mark.framework(name="jax"), pytest.mark.timeout(300)]

PROGRAM = """
import time
import jax
import jax.numpy as jnp
import optax
from updraft_learner.adapters import orbax

x = jax.random.normal(jax.random.key(1), (32, 3))
y = x.sum(1)
optimizer = optax.adam(0.1)


def loss_of(weights):
    return jnp.mean((x @ weights["w"] + weights["b"] - y) ** 2)


@jax.jit
def update(state):
    loss, gradient = jax.value_and_grad(loss_of)(state["weights"])
    changes, inner = optimizer.update(gradient, state["optimizer"])
    return {"weights": optax.apply_updates(state["weights"], changes), "optimizer": inner}, loss


weights = {"w": jnp.zeros(3), "b": jnp.zeros(())}
state = {"weights": weights, "optimizer": optimizer.init(weights)}
checkpoints = orbax.Checkpoints(total_steps=30)
state, first = checkpoints.restore(state)
for step in range(first + 1, 31):
    state, loss = update(state)
    checkpoints.step(state, step, {"loss": loss})
    print("step", step, flush=True)
    time.sleep(0.1)
print("weights:", [round(float(weight), 5) for weight in state["weights"]["w"]])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run prints that is never interrupted."""
    return Place(tmp_path_factory.mktemp("whole")).run(PROGRAM)


def test_a_killed_training_ends_with_the_same_weights(whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.killed(PROGRAM, at="step 11")
    printed = place.run(PROGRAM)
    assert "step 1\n" not in printed
    assert value(printed, "weights") == value(whole, "weights")
    assert place.checkpoints()[-1] == "step-0000000030"
    assert {step for step, _ in place.metrics("loss")} == set(range(1, 31))


def test_a_halt_saves_the_last_step_and_leaves(whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path, variables={"UPDRAFT_CHECKPOINT_SECONDS": "3600"})
    assert "stopped on request after step" in place.stopped(PROGRAM, at="step 11")
    assert len(place.checkpoints()) == 1
    assert value(place.run(PROGRAM), "weights") == value(whole, "weights")


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.killed(PROGRAM, at="step 11")
    changed = PROGRAM.replace("(32, 3)", "(32, 4)").replace("jnp.zeros(3)", "jnp.zeros(4)")
    [process] = place.start(changed)
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "shape" in printed
