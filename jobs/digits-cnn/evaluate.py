"""Judge the trained digits network on the test split, which training never saw.

The platform runs this after training, with the training's results in RESULT_DIR. On your own machine, after train.py:

    DATA_DIR=../data python evaluate.py --data digits/digits.csv

Logs test_loss, test_accuracy and the recall of each digit; writes RESULT_DIR/evaluation.json with the confusion matrix.
"""

from __future__ import annotations

import argparse
import json

import torch
from digits import load_split
from torch import nn

import updraft_learner as updraft


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    config = parser.parse_args()

    pixels, labels = load_split(updraft.data_dir() / config.data, "test")
    # The saved program, not the class: what is judged is what will be exported.
    program = torch.export.load(updraft.result_dir() / "model" / "program.pt2").module()
    with torch.no_grad():
        logits = program(pixels)
    predicted = logits.argmax(1)

    confusion = torch.zeros(10, 10, dtype=torch.int64)  # [label, prediction]
    confusion.index_put_((labels, predicted), torch.ones_like(labels), accumulate=True)
    recall = confusion.diagonal() / confusion.sum(1)
    metrics = {
        "test_loss": nn.functional.cross_entropy(logits, labels).item(),
        "test_accuracy": (predicted == labels).float().mean().item(),
        **{f"test_recall_{digit}": recall[digit].item() for digit in range(10)},
    }
    updraft.log_metrics(metrics, step=0)
    report = {"samples": len(labels), "metrics": metrics, "confusion": confusion.tolist()}
    (updraft.result_dir() / "evaluation.json").write_text(json.dumps(report, indent=1), encoding="utf-8")

    print(f"test_accuracy {metrics['test_accuracy']:.4f} on {len(labels)} samples; rows are labels:")
    for digit, row in enumerate(confusion.tolist()):
        print(f"  {digit}: " + " ".join(f"{count:3d}" for count in row))


if __name__ == "__main__":
    main()
