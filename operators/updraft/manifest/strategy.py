"""Say how many learners a job with `strategy: shared_memory` has in its pod, and check the fields beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from updraft.manifest.errors import FieldError, show
from updraft.manifest.processes import GPUS
from updraft.manifest.sizes import SIZES

if TYPE_CHECKING:
    from updraft.manifest.model import Manifest

SHARED_MEMORY = "shared_memory"
_PROCESSES = "resources.processes_per_learner"


def shared_learners(manifest: Manifest) -> int | None:
    """Return how many learners share the memory of the job's pod: `processes_per_learner`, or one for each whole CPU
    core. None if the job has no such strategy."""
    if manifest.strategy is None:
        return None
    named = manifest.resources.processes_per_learner
    return named if isinstance(named, int) else max(1, int(manifest.resources.cpus))


def strategy_text(manifest: Manifest) -> str | None:
    """Return the strategy for people, as "3 learners share the memory of one pod"; None without one."""
    learners = shared_learners(manifest)
    if learners is None:
        return None
    return f"{learners} learners share the memory of one pod" if learners > 1 else "one learner, with shared memory"


def strategy_warnings(manifest: Manifest) -> tuple[str, ...]:
    """Return what the submitter is told of a job that is accepted."""
    learners, cpus = shared_learners(manifest), manifest.resources.cpus
    if learners is None or learners <= math.ceil(cpus):
        return ()
    return (f"{_PROCESSES}: {learners} learners share {cpus:g} CPU cores, so they take turns; more cpus are faster",)


def strategy_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the fields of the raw manifest that its strategy does not go with."""
    if raw.get("strategy") != SHARED_MEMORY:
        return
    given = raw.get("resources")
    resources: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    name = resources.get("size")
    size = SIZES.get(name) if isinstance(name, str) else None
    resources = {**(size.resources() if size else {}), **resources}
    why = "with strategy: shared_memory"
    if raw.get("elastic") is not None:
        problem = f"is given, but {why} the number of learners is fixed"
        yield FieldError("elastic", None, problem, "no elastic, or no strategy")
    if _count(learners := resources.get("learners")) > 1:
        problem = f"{show(learners)} pods share no memory; {why} all learners are in one pod"
        example = f"processes_per_learner: {learners}"
        yield FieldError("resources.learners", show(learners), problem, f"1, and {_PROCESSES} for more", example)
    if _count(gpus := resources.get("gpus")) > 0:
        problem = f"{show(gpus)} would be idle: {why} parameters are on the CPU"
        yield FieldError("resources.gpus", show(gpus), problem, "0")
    if resources.get("processes_per_learner") == GPUS:
        problem = f"{GPUS} is one process for each GPU, and {why} there is none"
        yield FieldError(_PROCESSES, GPUS, problem, "a whole number, or nothing for one for each CPU core")
    if resources.get("mpi") is True:
        problem = f"is given, but {why} the program starts its learners"
        yield FieldError("resources.mpi", "true", problem, "no mpi, or no strategy")


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
