"""Make the digits data set of the examples from the one that scikit-learn ships.

    python jobs/data/make_digits.py            # writes jobs/data/digits/digits.csv

1,797 handwritten digits of 8x8 pixels with 17 grey levels (UCI, "Optical Recognition of Handwritten Digits"), one row
each: `split` (train, val or test), `label`, and the pixels p00 to p63, row by row. Each split holds every digit in the
same proportion. The result is the same on every machine; needs scikit-learn and NumPy.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

VAL_SHARE = TEST_SHARE = 1 / 6
SEED = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "digits" / "digits.csv")
    path: Path = parser.parse_args().out
    digits = load_digits()
    splits = split_evenly(digits.target)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["split", "label", *(f"p{index:02d}" for index in range(64))])
        for split, label, pixels in zip(splits, digits.target, digits.data.astype(int), strict=True):
            writer.writerow([split, label, *pixels])
    print(f"{path}: {len(splits)} rows, {path.stat().st_size:,} bytes")


def split_evenly(labels: np.ndarray) -> list[str]:
    """A split for each row, drawn within each label."""
    random = np.random.RandomState(SEED)  # the legacy generator: its numbers never change
    splits = ["train"] * len(labels)
    for label in range(10):
        rows = random.permutation(np.flatnonzero(labels == label))
        val, test = round(len(rows) * VAL_SHARE), round(len(rows) * TEST_SHARE)
        for row in rows[:val]:
            splits[row] = "val"
        for row in rows[val : val + test]:
            splits[row] = "test"
    return splits


if __name__ == "__main__":
    main()
