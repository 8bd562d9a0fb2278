"""Elastic trainings while packets are dropped: a learner that nobody reaches, and one that reaches the coordinator
alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

from learner.elastic_runs import HANG_SECONDS, SETTLE_SECONDS, Run
from learner.separate_node import HERE, SeparateNode, require

pytestmark = [pytest.mark.torch, pytest.mark.turn(0), pytest.mark.timeout(240)]
STEPS_SECONDS = 5.0  # what a loaded machine may add to a bound


@pytest.fixture
def node() -> Iterator[SeparateNode]:
    require()
    with SeparateNode() as made:
        yield made


@pytest.fixture
def run(node: SeparateNode, tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path, first=3, host=HERE) as made:
        yield made


def begin(run: Run, node: SeparateNode, first: str) -> None:
    """Let a, b and c train; c is on the other node, and `first` leads."""
    names = sorted("abc", key=lambda name: name != first)
    for number, name in enumerate(names):
        run.start(name, namespace=node.path if name == "c" else None)
        if number < 2:  # the third one is waited for no more: they begin
            run.wait(f"{name} waits", lambda name=name: name in run.status()["waiting"])  # type: ignore[misc]
    run.wait_for_group("a", "b", "c")
    assert run.status()["members"][0] == first


@pytest.mark.parametrize("first", ["a", pytest.param("c", marks=pytest.mark.large)])
def test_a_learner_whose_packets_are_dropped_is_left_behind_and_fenced(
    run: Run, node: SeparateNode, first: str
) -> None:
    begin(run, node, first)
    node.drop()
    assert run.wait_for_group("a", "b") < HANG_SECONDS + SETTLE_SECONDS + STEPS_SECONDS
    node.mend()
    run.wait("it is fenced", lambda: run.last("c").get("outcome") == "fenced", 60)
    assert run.outcomes() == {"a": "finished", "b": "finished", "c": "fenced"}
    run.audit()


@pytest.mark.parametrize("first", ["a", pytest.param("c", marks=pytest.mark.large)])
def test_a_learner_that_reaches_the_coordinator_alone_is_left_behind(run: Run, node: SeparateNode, first: str) -> None:
    """It reports as the others do, and generations with it do not form."""
    begin(run, node, first)
    node.drop(but_port=run.port)
    assert run.wait_for_group("a", "b") < 3 * HANG_SECONDS + SETTLE_SECONDS + 2 * STEPS_SECONDS
    run.wait("it is fenced", lambda: run.last("c").get("outcome") == "fenced")
    assert run.outcomes() == {"a": "finished", "b": "finished", "c": "fenced"}
    run.audit()


def test_a_newcomer_that_reaches_the_coordinator_alone_is_not_waited_for_again(run: Run, node: SeparateNode) -> None:
    for name in "abd":
        run.start(name)
    run.wait_for_group("a", "b", "d")
    node.drop(but_port=run.port)
    run.start("c", namespace=node.path)
    run.wait("it is fenced", lambda: run.last("c").get("outcome") == "fenced", 60)
    run.wait_for_group("a", "b", "d")
    assert run.outcomes() == {"a": "finished", "b": "finished", "c": "fenced", "d": "finished"}
    run.audit()
