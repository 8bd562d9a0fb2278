"""Write the predictions of an evaluation, from which the platform judges a new model beside the champion."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from updraft_learner.contract import PREDICTIONS
from updraft_learner.runtime import result_dir


def save_predictions(ids: Iterable[Any], labels: Iterable[Any], scores: Iterable[Any], **slices: Iterable[Any]) -> Path:
    """Write RESULT_DIR/predictions.parquet, one row for each example of the held-out data, and return its path.

    Args:
        ids: What names each example: the same for every model, and unique.
        labels: What is true.
        scores: What the model says: the class, the probability of class 1, or the number.
        slices: Columns by name, such as `site=[...]`, for rules about parts of the data.

    Raises ValueError for columns of different lengths, and ImportError without pyarrow.

    Example:
        updraft.save_predictions(ids=range(3), labels=[1, 0, 1], scores=[0.9, 0.2, 0.7], site=["a", "a", "b"])
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as exc:
        raise ImportError("save_predictions needs pyarrow; add it to environment.requirements of the manifest") from exc
    columns = {"id": [str(each) for each in ids], "label": _plain(labels), "score": _plain(scores)}
    columns |= {name: [str(each) for each in values] for name, values in slices.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ValueError(f"save_predictions needs columns of one length; there are {shown}")
    path = result_dir() / PREDICTIONS
    part = path.with_name(f".{path.name}.part")
    parquet.write_table(pyarrow.table(columns), part)
    part.replace(path)
    return path


def _plain(values: Iterable[Any]) -> list[Any]:
    """Return the values as Python's own numbers and texts: arrays and tensors have scalars of their own types."""
    return [each.item() if hasattr(each, "item") else each for each in values]
