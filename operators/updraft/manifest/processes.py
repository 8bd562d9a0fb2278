"""Define how many processes a learner has, and the size of its shared memory; check both against its resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from updraft.manifest.errors import VALUE, FieldError, show, wrong
from updraft.manifest.sizes import SIZES
from updraft.manifest.units import parse_memory

if TYPE_CHECKING:
    from updraft.manifest.model import Resources

GPUS = "gpus"
MOST_PROCESSES = 256


def check_processes(value: object) -> int | Literal["gpus"] | None:
    """Return the value of `processes_per_learner`. Raises PydanticCustomError for all but `gpus` and whole numbers."""
    if value is None:
        return None
    if value == GPUS:
        return "gpus"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PROCESSES:
        return value
    allowed = f"gpus, or a whole number from 1 to {MOST_PROCESSES}"
    raise wrong(f"{VALUE} is no number of processes", allowed, GPUS, value=value)


Processes = Annotated[
    int | Literal["gpus"] | None,
    PlainValidator(check_processes),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": GPUS},
                {"type": "integer", "minimum": 1, "maximum": MOST_PROCESSES},
                {"type": "null"},
            ]
        }
    ),
]


def processes_of(resources: Resources) -> int | None:
    """Return the processes of each learner; None if the command is run once, without a launcher. Not for a job with a
    strategy, whose program starts them."""
    named = resources.processes_per_learner
    return resources.gpus if isinstance(named, str) else named


def processes_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield what is wrong between the processes, the shared memory and the other resources of the raw manifest."""
    given = raw.get("resources")
    if not isinstance(given, Mapping):
        return
    name = given.get("size")
    size = SIZES.get(name) if isinstance(name, str) else None
    resources = {**(size.resources() if size else {}), **given}
    yield from _processes(resources)
    yield from _shared_memory(resources)


def _processes(resources: Mapping[str, Any]) -> Iterator[FieldError]:
    path, value, gpus = "resources.processes_per_learner", resources.get("processes_per_learner"), resources.get("gpus")
    gpus = 0 if gpus is None else gpus
    if not isinstance(gpus, int):
        return
    if value == GPUS and gpus == 0:
        yield FieldError(path, GPUS, "is one process for each GPU, but gpus is 0", "gpus of at least 1, or a number")
    elif isinstance(value, int) and not isinstance(value, bool) and 0 < gpus < value:
        problem = f"{show(value)} processes cannot have a GPU each, because gpus is {gpus}"
        yield FieldError(path, show(value), problem, f"gpus, or at most {gpus}", GPUS)


def _shared_memory(resources: Mapping[str, Any]) -> Iterator[FieldError]:
    try:
        shm, memory = parse_memory(resources["shm"]), parse_memory(resources.get("memory", "2GiB"))
    except (KeyError, PydanticCustomError):  # the model reports a malformed value
        return
    if shm > memory:
        text = show(resources["shm"])
        problem = f"{text} is more than memory, which is {show(resources.get('memory', '2GiB'))} and holds it"
        yield FieldError("resources.shm", text, problem, "at most the memory, or more memory")
