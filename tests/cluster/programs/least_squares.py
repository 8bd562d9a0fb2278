"""Fit the digits by least squares, in the way of FfDL's examples: options, environment variables, print. NumPy alone.

Run by tests/cluster/test_cluster_jobs.py with FfDL's manifest.
"""

from __future__ import annotations

import argparse
import os

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True)
    args = parser.parse_args()
    rows = np.loadtxt(args.dataset, delimiter=",", skiprows=1, dtype=str)
    chosen = {split: rows[rows[:, 0] == split] for split in ("train", "test")}
    pixels = {split: part[:, 2:].astype(np.float64) / 16 for split, part in chosen.items()}
    labels = {split: part[:, 1].astype(int) for split, part in chosen.items()}
    weights = np.linalg.lstsq(pixels["train"], np.eye(10)[labels["train"]], rcond=None)[0]
    accuracy = ((pixels["test"] @ weights).argmax(1) == labels["test"]).mean()
    print("Training", os.environ["TRAINING_ID"], "learner", os.environ["LEARNER_ID"])
    print(f"accuracy {accuracy:.4f}")
    np.save(os.path.join(os.environ["RESULT_DIR"], "weights.npy"), weights)


if __name__ == "__main__":
    main()
