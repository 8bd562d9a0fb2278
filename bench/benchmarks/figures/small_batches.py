"""How accurate the classifier of `task: text-classification` is on several text sets, with one learning rate for all of
them, by the size of the batch: whether one choice of hyper-parameters serves data that nobody has seen.

`bench/programs/text_sets.py` runs in the PyTorch learner's environment.
"""

from __future__ import annotations

import statistics

from benchmarks.figures.shared_memory import PROGRAM as OTHER_PROGRAM
from benchmarks.figures.shared_memory import run_program
from benchmarks.options import Options
from benchmarks.results import Measured, TableOf

NAME, TITLE = "small_batches", "One learning rate for all texts"
PROGRAM = OTHER_PROGRAM.with_name("text_sets.py")
BATCHES = (1, 4, 16, 64)
EPOCHS = 3

NOTES = (
    "Each row is one size of batch, each column one text set, which `bench/programs/text_sets.py` makes: 1,600 texts "
    "to train on, 400 held out. The number is the accuracy on the latter; *worst* is that of the worst set.",
    f"All have the same learning rate (Adam, 0.001) and see each text {EPOCHS} times, by one process. The median of "
    "the seeds counts.",
    "The finding is GaDei's ([arXiv 1611.06213](https://arxiv.org/abs/1611.06213)): where hyper-parameters must serve "
    "all tenants, batches have to be small.",
)


def measure(options: Options) -> Measured:
    batches, seeds = (BATCHES[2:], 1) if options.quick else (BATCHES, options.pairs(3, 1))
    found = run_program(PROGRAM, {"batches": batches, "epochs": 1 if options.quick else EPOCHS, "seeds": seeds})
    sets = list(next(iter(found.values())))
    rows = []
    for batch, accuracies in found.items():
        middles = [statistics.median(accuracies[name]) for name in sets]
        rows.append((f"batch {batch}", *(round(each, 3) for each in middles), round(min(middles), 3)))
    return Measured(
        settings={"epochs": EPOCHS, "seeds": seeds},
        tables=(TableOf(title="Accuracy on held-out texts", columns=("", *sets, "worst"), rows=tuple(rows)),),
        notes=NOTES,
    )
