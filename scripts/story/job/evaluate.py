"""Say for each held-out digit what the trained classifier takes it for."""

from __future__ import annotations

import numpy as np
import pandas as pd

import updraft_learner as updraft


def main() -> None:
    table = pd.read_csv(updraft.data_dir() / "held-out" / "digits.csv")
    pixels = table.filter(regex=r"^p\d\d$").to_numpy(dtype=float) / 16
    weights = np.load(updraft.result_dir() / "weights.npz")
    said = (pixels @ weights["coefficients"].T + weights["intercept"]).argmax(axis=1)
    updraft.save_predictions(
        ids=table.index, labels=table["label"], scores=said, digits=np.where(table["label"] < 5, "0-4", "5-9")
    )
    print(f"accuracy {(said == table['label']).mean():.4f} on {len(table)} digits")


if __name__ == "__main__":
    main()
