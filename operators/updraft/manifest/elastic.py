"""Find the batches that numbers of learners can share in equal parts, and check the limits of an elastic job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from updraft.manifest.errors import FieldError, show


def smallest_batch(learners: int, low: int, high: int, most_each: int | None) -> int | None:
    """Return the smallest global batch from `low` to `high` that so many learners can share in equal parts of at most
    `most_each`; None if there is none."""
    batch = -(-low // learners) * learners
    return batch if batch <= high and (most_each is None or batch // learners <= most_each) else None


def elastic_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Return what is wrong with `elastic` in a manifest whose fields are right by themselves."""
    elastic = raw.get("elastic")
    if not isinstance(elastic, Mapping):
        return
    least: Any = elastic.get("min_learners", 1)
    most: Any = elastic.get("max_learners")
    low, high, each = (elastic.get(name) for name in ("min_batch", "max_batch", "max_batch_per_learner"))
    if not _counts(least, most) or not all(value is None or _counts(value) for value in (low, high, each)):
        return  # said field by field
    ranges = (("learners", least, most), ("batch", low, high))
    crossed = [(name, a, b) for name, a, b in ranges if a is not None and b is not None and a > b]
    for name, a, b in crossed:
        problem = f"{show(a)} is above max_{name}, which is {show(b)}"
        yield FieldError(f"elastic.min_{name}", show(a), problem, f"at most {show(b)}")
    if elastic.get("resize") == "in_place":
        yield from _in_place(raw, elastic)
    if not crossed:
        yield from _batches(elastic, range(least, most + 1), low, high, each)
        yield from _rest(raw, least, most)


def _batches(
    elastic: Mapping[str, Any], sizes: range, low: int | None, high: int | None, each: int | None
) -> Iterator[FieldError]:
    if low is None and high is None:
        for name, default in (("max_batch_per_learner", None), ("lr", "none")):
            if (value := elastic.get(name, default)) != default:
                problem = f"{show(value)} needs a batch that the platform chooses"
                yield FieldError(f"elastic.{name}", show(value), problem, "min_batch and max_batch too, or nothing")
    elif low is None or high is None:
        name = "min_batch" if low is None else "max_batch"
        yield FieldError(f"elastic.{name}", show(None), "is missing, and the other bound is not", "both, or neither")
    elif not any(smallest_batch(learners, low, high, each) for learners in sizes):
        shared = f"{sizes[0]} learners" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} learners"
        problem = f"no batch from {low} to {high} can be shared by {shared} in equal parts"
        problem += f" of at most {each}" if each is not None else ""
        yield FieldError("elastic.max_batch", show(high), problem, "bounds with a multiple of a number of learners")


def _in_place(raw: Mapping[str, Any], elastic: Mapping[str, Any]) -> Iterator[FieldError]:
    """Return what does not go with learners that join and leave while the others train."""
    for name in ("min_batch", "max_batch", "max_batch_per_learner"):
        if (value := elastic.get(name)) is not None:
            problem = f"{show(value)} does not go with resize: in_place, whose programs say their batch to elastic.init"
            yield FieldError(f"elastic.{name}", show(value), problem, "nothing, or resize: restart")
    resources = raw.get("resources")
    for name in ("processes_per_learner", "mpi"):
        if value := resources.get(name) if isinstance(resources, Mapping) else None:
            problem = f"{show(value)} does not go with elastic.resize: in_place, whose learners have one process each"
            yield FieldError(f"resources.{name}", show(value), problem, "nothing, or resize: restart")


def _rest(raw: Mapping[str, Any], least: int, most: int) -> Iterator[FieldError]:
    resources = raw.get("resources")
    learners = resources.get("learners") if isinstance(resources, Mapping) else None
    if _counts(learners) and not least <= learners <= most:  # type: ignore[operator]
        problem = f"{show(learners)} is outside of elastic, which allows {least} to {most}"
        yield FieldError("resources.learners", show(learners), problem, "a number between, or nothing")
    if not raw.get("checkpoints"):
        problem = "is missing: at each change of its size, an elastic job goes on from a checkpoint"
        yield FieldError("checkpoints", show(None), problem, "for example {every: 60s}")


def _counts(*values: object) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)
