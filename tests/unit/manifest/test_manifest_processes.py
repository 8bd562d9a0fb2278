"""The fields about several processes in one learner, alone and against the other resources."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.manifest import ManifestError, parse
from updraft.manifest.processes import MOST_PROCESSES, processes_of

BASE = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py"}


def resources(**given: Any) -> Any:
    return parse({**BASE, "resources": given}).resources


def problem(**given: Any) -> str:
    with pytest.raises(ManifestError) as error:
        resources(**given)
    (field,) = error.value.fields
    return field.text


def test_without_the_field_the_command_is_run_once_without_a_launcher() -> None:
    assert processes_of(resources(gpus=2)) is None


@given(st.integers(1, 64), st.integers(1, MOST_PROCESSES))
def test_a_number_is_kept_if_each_process_has_a_gpu_and_gpus_is_one_for_each(gpus: int, processes: int) -> None:
    assert processes_of(resources(gpus=gpus, processes_per_learner="gpus")) == gpus
    assert processes_of(resources(processes_per_learner=processes)) == processes
    if processes <= gpus:
        assert processes_of(resources(gpus=gpus, processes_per_learner=processes)) == processes
    else:
        text = problem(gpus=gpus, processes_per_learner=processes)
        assert text.startswith(f"resources.processes_per_learner: {processes} processes cannot have a GPU each")


@pytest.mark.parametrize("value", [0, -1, MOST_PROCESSES + 1, True, 1.5, "two", "2", ["gpus"]])
def test_all_else_is_refused_with_what_is_allowed(value: object) -> None:
    text = problem(processes_per_learner=value)
    assert text.startswith("resources.processes_per_learner: ")
    assert "gpus, or a whole number from 1 to 256" in text


def test_gpus_without_gpus_is_refused() -> None:
    assert "but gpus is 0" in problem(processes_per_learner="gpus")
    assert processes_of(resources(size="k80-4", processes_per_learner="gpus")) == 4
    assert "because gpus is 4" in problem(size="k80-4", processes_per_learner=5)


def test_shared_memory_is_a_part_of_the_memory() -> None:
    assert resources(memory="4GiB", shm="4GiB").shm_bytes == 4 * 1024**3
    assert "'3GiB' is more than memory, which is '2GiB'" in problem(shm="3GiB")
    assert "'3GiB' is more than memory, which is '2GiB'" in problem(size="small", shm="3GiB")
    assert problem(shm="much").startswith("resources.shm: 'much' is not an amount of memory")
