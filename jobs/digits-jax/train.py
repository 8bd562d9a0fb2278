"""Classify the digits with JAX and optax.

On the platform, from the repository's root:

    updraft submit jobs/digits-jax --follow

On your own machine, with jax, optax and orbax-checkpoint installed:

    updraft run --local jobs/digits-jax --data training=jobs/data/digits
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import updraft_learner as updraft
from updraft_learner.adapters import orbax

BATCH = 128


def load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels [N, 64], from 0 to 1, and labels [N] of a split."""
    rows = np.loadtxt(updraft.data_dir() / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    return rows[:, 2:].astype(np.float32) / 16, rows[:, 1].astype(np.int32)


def logits(weights: Any, x: jax.Array) -> jax.Array:
    """Return the scores [N, 10] of the pixels [N, 64]."""
    hidden = jax.nn.relu(x @ weights["in"] + weights["bias"])
    return hidden @ weights["out"]


def main() -> None:
    config = {"steps": 3000, "width": 128, "learning_rate": 0.001, "seed": 1} | updraft.params()
    (x, y), (val_x, val_y) = load("train"), load("val")
    optimizer = optax.adam(config["learning_rate"])
    first, second = jax.random.split(jax.random.key(config["seed"]))
    weights = {
        "in": jax.random.normal(first, (64, config["width"])) * 0.1,
        "bias": jnp.zeros(config["width"]),
        "out": jax.random.normal(second, (config["width"], 10)) * 0.1,
    }
    state = {"weights": weights, "optimizer": optimizer.init(weights)}

    @jax.jit
    def update(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        def loss_of(weights: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(logits(weights, x), y).mean()

        loss, gradient = jax.value_and_grad(loss_of)(state["weights"])
        changes, inner = optimizer.update(gradient, state["optimizer"])
        return {"weights": optax.apply_updates(state["weights"], changes), "optimizer": inner}, loss

    checkpoints = orbax.Checkpoints(total_steps=config["steps"])
    state, begun = checkpoints.restore(state)
    print(f"begins after step {begun}", flush=True)
    for step in range(begun + 1, config["steps"] + 1):
        rows = np.random.default_rng((config["seed"], step)).choice(len(x), BATCH, replace=False)
        state, loss = update(state, x[rows], y[rows])
        metrics = {}
        if step % 100 == 0 or step == config["steps"]:
            accuracy = (logits(state["weights"], val_x).argmax(1) == val_y).mean()
            metrics = {"loss": float(loss), "val_accuracy": float(accuracy)}
            print(f"step {step}: loss {metrics['loss']:.4f}, val_accuracy {metrics['val_accuracy']:.4f}", flush=True)
        checkpoints.step(state, step, metrics)
    np.savez(
        updraft.result_dir() / "weights.npz", **{name: np.asarray(part) for name, part in state["weights"].items()}
    )


if __name__ == "__main__":
    main()
