"""Faults of one job's learners: their processes, pods, checkpoints and image."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from faults.jobs import LIVES, Shape
from faults.kinds.base import (
    POD_LIVES,
    PROCESS_RUNS,
    Kind,
    Moment,
    Rule,
    Scene,
    TooLateError,
    any_time,
    fault_of_pod,
    good_shape,
    later_step,
    living_pod,
    program_of,
)
from faults.parts import send
from updraft_learner import contract

SETTLE_SECONDS = 4.0  # for uploads that are under way
NO_PROGRESS_SECONDS = 10
DAMAGED_BYTES = 64
ONE_LEARNER = tuple(program for program in LIVES if program != "ddp")


def _kill(scene: Scene) -> None:
    process = program_of(scene)
    scene.notes["step"] = scene.step()
    send(process, signal.SIGKILL)


def _eat_memory(scene: Scene) -> None:
    if not send(program_of(scene), signal.SIGUSR1):
        raise TooLateError(f"the program of {scene.target.id} ended before it could be told")


def _freeze(scene: Scene) -> None:
    scene.held = program_of(scene)
    send(scene.held, signal.SIGSTOP)
    scene.notes["step"] = scene.step()


def _thaw(scene: Scene) -> None:
    if scene.held is not None:
        send(scene.held, signal.SIGCONT)


def _kill_sidecar(scene: Scene) -> None:
    found = scene.lab.sidecars(scene.target.id)
    if not found:
        raise TooLateError(f"no sidecar of {scene.target.id} runs")
    send(scene.rng.choice(sorted(found, key=lambda process: process.pid)), signal.SIGKILL)


def _evict(scene: Scene) -> None:
    scene.notes["pod"] = living_pod(scene)
    fault_of_pod(scene, scene.notes["pod"], "evict")


def _delete(scene: Scene) -> None:
    scene.notes["pod"] = living_pod(scene)
    scene.notes["grace_seconds"] = scene.rng.choice((0, 5))
    scene.lab.delete_pod(scene.notes["pod"], scene.notes["grace_seconds"])


def _newest_checkpoint(scene: Scene) -> Path:
    """Return the folder of the newest whole checkpoint in the store."""
    folder = scene.lab.stored(scene.target.id) / "checkpoints"
    found = []
    for marker in folder.glob(f"*/{contract.CHECKPOINT_MARKER}"):
        try:
            found.append((int(json.loads(marker.read_text())["step"]), marker.parent))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    if not found:
        raise TooLateError(f"{scene.target.id} has no stored checkpoint")
    return max(found)[1]


def _damage(scene: Scene, truncate: bool) -> None:
    """Hold the program while its last checkpoint is damaged, so that no newer one takes its place, then kill it."""
    process = program_of(scene)
    others = [p for p in scene.lab.programs(scene.target.id) if p.pid != process.pid]
    for held in (process, *others):
        send(held, signal.SIGSTOP)
    time.sleep(SETTLE_SECONDS)
    newest = _newest_checkpoint(scene)
    scene.notes |= {"damaged": newest.name, "step": scene.step()}
    files = [path for path in newest.rglob("*") if path.is_file() and path.name != contract.CHECKPOINT_MARKER]
    path = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    place = scene.rng.randrange(len(content) - DAMAGED_BYTES)
    if truncate:
        del content[place:]
    else:
        content[place : place + DAMAGED_BYTES] = bytes(b ^ 0xFF for b in content[place : place + DAMAGED_BYTES])
    path.write_bytes(content)
    for held in others:
        send(held, signal.SIGCONT)
    send(process, signal.SIGKILL)


def _corrupt(scene: Scene) -> None:
    _damage(scene, truncate=False)


def _truncate(scene: Scene) -> None:
    _damage(scene, truncate=True)


def _one_learner(rng: Random, steps: int) -> Shape:
    return Shape(steps=round(steps * rng.uniform(0.6, 1.2)))


def _watched(rng: Random, steps: int) -> Shape:
    shape = good_shape(rng, steps)
    return replace(shape, no_progress_seconds=NO_PROGRESS_SECONDS)


def _maybe_forgiven(rng: Random, steps: int) -> Shape:
    """Draw a job. A learner that takes too much memory is the program's own failure: its budget decides."""
    return replace(good_shape(rng, steps), app_attempts=rng.choice((0, 1)))


def _fails_once(rng: Random, steps: int) -> Shape:
    shape = good_shape(rng, steps)
    return replace(shape, fails="once", fail_at=round(shape.steps * rng.uniform(0.2, 0.9)), app_attempts=1)


def _memory_rule(shape: Shape) -> Rule:
    return Rule() if shape.app_attempts else Rule(only=frozenset({"FAILED"}))


def _long_before_its_end(rng: Random, shape: Shape) -> Moment:
    return Moment(step=max(1, round((shape.fail_at or shape.steps) * rng.uniform(0.02, 0.5))))


def _at_its_end(rng: Random, shape: Shape) -> Moment:
    return Moment(step=(shape.fail_at or shape.steps) - rng.randint(1, 5))


def _own_moment(_rng: Random, shape: Shape) -> Moment:
    return Moment(step=shape.fail_at)


def _nothing_more(scene: Scene) -> None:
    """Do nothing: the program fails by itself."""
    scene.notes["step"] = scene.step()


def _steps_after_a_while(rng: Random, shape: Shape) -> Moment:
    """Draw a moment at which there is a history of steps to judge by."""
    return Moment(step=round((shape.fail_at or shape.steps) * rng.uniform(0.3, 0.8)))


_KINDS = (
    Kind("learner_kill", "A learner's program gets SIGKILL", "job", _kill),
    Kind(
        "learner_oom",
        "A learner's program takes memory until its limit",
        "job",
        _eat_memory,
        shape=_maybe_forgiven,
        rule=_memory_rule,
        special=True,
        programs=("cnn", "ddp", "forest"),
    ),
    Kind(
        "learner_freeze",
        "A learner's program is stopped (SIGSTOP) for good; the manifest says `on_no_progress: restart`",
        "job",
        _freeze,
        release=_thaw,
        shape=_watched,
        moment=_steps_after_a_while,
        special=True,
    ),
    Kind(
        "sidecar_kill",
        "A learner's sidecar gets SIGKILL",
        "job",
        _kill_sidecar,
        moment=_long_before_its_end,
        rule=lambda _shape: Rule(untouched=True),
    ),
    Kind(
        "sidecar_kill_at_end",
        "A learner's sidecar gets SIGKILL so late that the program ends before it is back; then nobody stores the rest",
        "job",
        _kill_sidecar,
        moment=_at_its_end,
        rule=lambda _shape: Rule(tail_may_be_lost=True),
    ),
    Kind(
        "pod_evict",
        "The node evicts a learner's pod",
        "job",
        _evict,
        moment=any_time,
        aims=POD_LIVES,
        rule=lambda _shape: Rule(tail_may_be_lost=True),
    ),
    Kind(
        "pod_delete",
        "A user deletes a learner's pod",
        "job",
        _delete,
        moment=any_time,
        aims=POD_LIVES,
        rule=lambda _shape: Rule(tail_may_be_lost=True),
    ),
    Kind(
        "program_error_once",
        "The program exits with 3 in its first launch; its budget allows one failure",
        "job",
        _nothing_more,
        shape=_fails_once,
        moment=_own_moment,
        special=True,
    ),
    Kind(
        "checkpoint_corrupted",
        "64 bytes of the newest stored checkpoint are changed, then the learner is killed",
        "job",
        _corrupt,
        shape=_one_learner,
        moment=later_step,
        special=True,
        programs=ONE_LEARNER,
    ),
    Kind(
        "checkpoint_truncated",
        "The newest stored checkpoint is cut short, then the learner is killed",
        "job",
        _truncate,
        shape=_one_learner,
        moment=later_step,
        special=True,
        programs=ONE_LEARNER,
    ),
)
KINDS = tuple(
    replace(kind, side="learner", aims=kind.aims if kind.aims is POD_LIVES else PROCESS_RUNS) for kind in _KINDS
)
