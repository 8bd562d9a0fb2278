"""A linear classifier of scikit-learn on the digits, step by step, beside the hash chain of `chain.py`.

Parameters and the last metric go through MLflow's own client, as users of scikit-learn log; the chain's points through
the metrics file; checkpoints are folders that the program writes itself.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import chain
import mlflow
import numpy as np
from sklearn.linear_model import SGDClassifier

BATCH = 64


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels [N, 64] and labels [N]."""
    path = Path(os.environ["DATA_DIR"]) / "training" / "digits.csv"
    rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=str)
    return rows[:, 2:].astype(np.float64) / 16, rows[:, 1].astype(np.int64)


def main() -> None:
    params, witness = chain.begin()
    steps, step_seconds = int(params["steps"]), float(params["step_seconds"])
    pixels, labels = load()
    model = SGDClassifier(loss="log_loss", random_state=0)
    model.partial_fit(pixels[:BATCH], labels[:BATCH], classes=np.arange(10))
    step, digest, lineage = chain.goes_on(witness, *chain.restore(witness), steps)
    if step:
        kept = np.load(chain.CHECKPOINTS / "latest" / "model.npz")
        model.coef_, model.intercept_, model.t_ = kept["coef"], kept["intercept"], float(kept["t"])

    def write_model(folder: Path) -> None:
        np.savez(folder / "model.npz", coef=model.coef_, intercept=model.intercept_, t=model.t_)

    saved_at, saved_step = time.monotonic(), step
    while step < steps:
        leave = chain.stopped or chain.STOP_FILE.exists()
        due = time.monotonic() - saved_at >= float(params["checkpoint_seconds"])
        if (leave or due) and step > saved_step:
            chain.save(step, digest, lineage, witness, write_model)
            saved_at, saved_step = time.monotonic(), step
        if leave:
            witness.tell(event="exit", code=chain.PREEMPTED, step=step)
            sys.exit(chain.PREEMPTED)
        time.sleep(step_seconds)
        step += 1
        batch = np.arange(step * BATCH, (step + 1) * BATCH) % len(labels)
        model.partial_fit(pixels[batch], labels[batch])
        digest = chain.made_step(step, digest, lineage, witness)
        chain.append_metrics(step, steps)
        chain.fail_on_purpose(step, params, witness)
    chain.save(step, digest, lineage, witness, write_model)
    with mlflow.start_run():
        mlflow.log_metric("accuracy", float(model.score(pixels, labels)), step=step)
    chain.finish(step, digest, lineage, witness)


if __name__ == "__main__":
    main()
