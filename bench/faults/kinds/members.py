"""Faults of a job whose learners join and leave while the others train: one of them, their coordinator, a resize."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from random import Random

import psutil
from benchmarks.stack import BenchmarkError

from faults.jobs import MEMBERS_STEPS, Shape
from faults.kinds.base import FIND_SECONDS, LOOK_SECONDS, Kind, Moment, Rule, Scene, TooLateError, fault_of_pod
from faults.lab import is_over
from faults.parts import send
from updraft.exceptions import RefusedError
from updraft_learner import contract

MOST_MEMBERS = 3


def _members(scene: Scene) -> dict[int, psutil.Process]:
    """Return the running programs of the target's learners. Raises TooLateError when there is only one left."""
    deadline = time.monotonic() + FIND_SECONDS
    while not is_over(scene.lab, scene.target.id):
        found = {}
        for process in scene.lab.programs(scene.target.id):
            with suppress(psutil.NoSuchProcess):  # a learner that leaves
                found[_learner(process)] = process
        if len(found) > 1:
            return found
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_SECONDS)
    raise TooLateError(f"fewer than two learners of {scene.target.id} run")


def _learner(process: psutil.Process) -> int:
    return int(process.environ()["LEARNER_ID"])


def _victim(scene: Scene) -> psutil.Process:
    """Draw a learner: in half of the cases the one with the lowest number, which often leads."""
    found = _members(scene)
    chosen = min(found) if scene.rng.random() < 0.5 else scene.rng.choice(sorted(found))
    scene.notes |= {"learner": chosen, "step": scene.step()}
    return found[chosen]


def _kill(scene: Scene) -> None:
    send(_victim(scene), signal.SIGKILL)


def _freeze(scene: Scene) -> None:
    scene.held = _victim(scene)
    send(scene.held, signal.SIGSTOP)


def _thaw(scene: Scene) -> None:
    if scene.held is not None:
        send(scene.held, signal.SIGCONT)


def _evict(scene: Scene) -> None:
    learner = _learner(_victim(scene))
    pods = scene.lab.objects("pods", scene.target.id)
    named = [pod["metadata"] for pod in pods if pod["metadata"]["labels"].get(contract.LABEL_LEARNER) == str(learner)]
    if not named:
        raise TooLateError(f"learner {learner} of {scene.target.id} has no pod")
    fault_of_pod(scene, str(named[-1]["name"]), "evict")


def _kill_coordinator(scene: Scene) -> None:
    found = scene.lab.coordinators(scene.target.id)
    if not found:
        raise TooLateError(f"no coordinator of {scene.target.id} runs")
    for process in found:
        send(process, signal.SIGKILL)


def _kill_both(scene: Scene) -> None:
    victim = _victim(scene)
    _kill_coordinator(scene)
    send(victim, signal.SIGKILL)


def _scale(scene: Scene, least: int = 1) -> None:
    """Ask for another number of learners, as a user does: again while a resize is under way."""
    present = len(_members(scene))
    wanted = scene.rng.choice([n for n in range(least, MOST_MEMBERS + 1) if n != present])
    scene.notes["learners"] = wanted
    deadline = time.monotonic() + FIND_SECONDS
    while not is_over(scene.lab, scene.target.id):
        try:
            scene.lab.client.scale(scene.target.id, wanted)
        except RefusedError as exc:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the job was not scaled: {exc}") from exc
            time.sleep(LOOK_SECONDS)
            continue
        return
    raise TooLateError(f"{scene.target.id} ended before it was scaled")


def _scale_and_kill(scene: Scene) -> None:
    _scale(scene, least=2)  # two stay, so one is left after the kill
    time.sleep(scene.rng.uniform(0, 8))  # before, while and after a newcomer starts
    send(_victim(scene), signal.SIGKILL)


def _shape(rng: Random, steps: int) -> Shape:
    return Shape(program="members", learners=2, steps=MEMBERS_STEPS)


def _moment(rng: Random, shape: Shape) -> Moment:
    return Moment(step=round(shape.steps * rng.uniform(0.05, 0.6)))


def _kind(name: str, text: str, inject: object, *, tail_may_be_lost: bool = False, **more: object) -> Kind:
    """Return a kind of which one attempt of the training is right, whatever happens to its learners."""
    assert callable(inject)
    return Kind(
        name, text, "job", inject, shape=_shape, moment=_moment, special=True, side="members", aims=(),
        rule=lambda _shape: Rule(one_attempt=True, tail_may_be_lost=tail_may_be_lost), **more,  # type: ignore[arg-type]
    )  # fmt: skip


KINDS = (
    _kind("member_kill", "A learner of a training that is resized in place gets SIGKILL", _kill),
    _kind("member_freeze", "Such a learner is stopped (SIGSTOP), and goes on later", _freeze, heal=_thaw, lasts=True),
    _kind("member_evict", "The node evicts such a learner's pod", _evict, tail_may_be_lost=True),
    _kind("coordinator_kill", "The coordinator of such a training gets SIGKILL", _kill_coordinator),
    _kind("member_and_coordinator_kill", "Coordinator and learner get SIGKILL at the same time", _kill_both),
    _kind("scale", "A user asks for another number of learners", _scale),
    _kind("scale_and_member_kill", "The same, and a learner gets SIGKILL within 8 s", _scale_and_kill),
)
