"""`resources.mpi`: which containers run the launcher, and how."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.controller.processes import processes_in, started
from updraft.manifest import ManifestError, parse
from updraft.settings import Settings


def manifest(**resources: Any) -> Any:
    fields = {"name": "a", "framework": {"name": "pytorch"}, "command": "mpirun python x.py"}
    return parse({**fields, "resources": {"learners": 2, **resources}})


@pytest.mark.parametrize(
    ("resources", "slots"),
    [({"mpi": True}, 1), ({"mpi": True, "processes_per_learner": 4}, 4), ({"mpi": False}, None), ({}, None)],
)
def test_each_learner_has_its_slots(resources: dict[str, Any], slots: int | None) -> None:
    made = manifest(**resources)
    assert processes_in(made, "train") == slots
    assert processes_in(made, "evaluate") is None
    settings = Settings(ledger_url="sqlite://", s3_endpoint="x", mlflow_uri="x", credentials_file="x")
    line = started(settings, made, "train", made.command)
    assert ("--mpi 'mpirun python x.py' &" in line) == bool(resources.get("mpi"))
    assert (f"--processes {slots} " in line) == (slots is not None)
    assert "--mpi" not in started(settings, made, "evaluate", "true")


def test_mpi_is_yes_or_no() -> None:
    with pytest.raises(ManifestError, match=r"resources\.mpi"):
        manifest(mpi="yes")
