"""Train a classifier of handwritten digits on every delivery below DATA_DIR/training."""

from __future__ import annotations

import mlflow.sklearn
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import updraft_learner as updraft


def main() -> None:
    files = sorted((updraft.data_dir() / "training").glob("*.csv"))
    table = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    pixels = table.filter(regex=r"^p\d\d$").to_numpy(dtype=float) / 16
    model = LogisticRegression(max_iter=200, C=0.3).fit(pixels, table["label"])
    updraft.log_metrics({"rows": float(len(table)), "train_accuracy": model.score(pixels, table["label"])}, step=1)
    np.savez(updraft.result_dir() / "weights.npz", coefficients=model.coef_, intercept=model.intercept_)
    mlflow.sklearn.save_model(model, str(updraft.result_dir() / "model"), input_example=pixels[:2])
    print(f"trained on {len(table)} digits in {len(files)} deliveries")


if __name__ == "__main__":
    main()
