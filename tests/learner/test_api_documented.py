"""What a program may use is in the how-to: every public name, every variable, every exit code it may choose."""

from __future__ import annotations

from pathlib import Path

import updraft_learner
from updraft_learner.contract import learner_environment

GUIDE = (Path(__file__).parents[2] / "docs" / "howto" / "write-a-program.md").read_text(encoding="utf-8")


def test_every_public_name_is_documented() -> None:
    missing = [name for name in updraft_learner.__all__ if f"`{name}" not in GUIDE]
    assert missing == []


def test_every_variable_of_the_contract_is_documented() -> None:
    environment = learner_environment(
        job_id="j",
        role="train",
        attempt=1,
        learner=1,
        learners=1,
        gpus=0,
        run_id="r",
        experiment_id="0",
        master_addr="127.0.0.1",
        master_port=29500,
        command="true",
        checkpoint_seconds=60,
    )
    assert [name for name in environment if f"`{name}`" not in GUIDE] == []
