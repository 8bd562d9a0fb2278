"""What a kind of fault is: its name, what it does to a running platform, and which ends of a job are right then.

The kinds themselves are in the modules beside this one; `run` injects them, `checks` reads their rules.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import psutil
from benchmarks.stack import BenchmarkError

from faults import witness
from faults.jobs import LIVES, Program, Shape, draw_shape
from faults.lab import PROGRAMS, Lab, RefusedError, is_over
from updraft.exceptions import UpdraftError
from updraft.lifecycle.workflow import TASKS as ALL_TASKS
from updraft.lifecycle.workflow import WATCH_TASK
from updraft.stack.files import NAMESPACE

LOOK_SECONDS = 0.1
FIND_SECONDS = 60.0
POD_IS_OVER = (404, 409, 501)  # gone; ended; ended and without its disk
FAST_LOOK_SECONDS = 0.02  # some states last for less than a tenth of a second
STATES = ("PENDING", "QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "RECOVERING", "STORING", "HALTED")
TASKS = tuple(name for name in ALL_TASKS if name != WATCH_TASK)
TASK = "task:"
TOGETHER = "together"  # both faults of a pair come at the same moment
AIMS = (*STATES, *(f"{TASK}{name}" for name in TASKS))
PROCESS_RUNS = ("PROCESSING",)
POD_LIVES = ("DEPLOYING", "DOWNLOADING", "PROCESSING", "RECOVERING", "STORING", "task:evaluate", "task:export_model")
BEFORE_THE_END = ("PENDING", "QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "RECOVERING")
ORDER = ("PENDING", "QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED")
OUTAGE_SECONDS = 40.0  # how long what is stopped, cut or failing stays so, before `scale`


@dataclass(frozen=True)
class Rule:
    """Which ends of a job are right, and what it may lose."""

    only: frozenset[str] | None = None  # these instead of the program's own end
    also: frozenset[str] = frozenset()  # these besides
    untouched: bool = False  # no learner is started a second time
    store_away: bool = False  # so that a launch may find nothing to start a program with; it is no start of a learner
    tail_may_be_lost: bool = False  # the last lines and points of a pod that vanished with its disk
    one_attempt: bool = False  # its learners are replaced while the others train
    airflow_may_differ: bool = False  # a person has painted it
    run_may_be_gone: bool = False

    def ends(self, shape: Shape) -> frozenset[str]:
        natural = frozenset({"COMPLETED" if shape.ends_well else "FAILED"})
        return (natural if self.only is None else self.only) | self.also


def merged(rules: Iterable[Rule]) -> Rule:
    """Return what may happen to a job that several faults hit."""
    found = tuple(rules)
    only = [rule.only for rule in found if rule.only is not None]
    return Rule(
        only=frozenset.intersection(*only) if only else None,
        also=frozenset().union(*(rule.also for rule in found)),
        untouched=all(rule.untouched for rule in found),
        store_away=any(rule.store_away for rule in found),
        one_attempt=all(rule.one_attempt for rule in found),
        tail_may_be_lost=any(rule.tail_may_be_lost for rule in found),
        airflow_may_differ=any(rule.airflow_may_differ for rule in found),
        run_may_be_gone=any(rule.run_may_be_gone for rule in found),
    )


@dataclass(frozen=True)
class Moment:
    """When a fault comes: at a step of the target's program, while a task runs, or some time after a state began."""

    step: int | None = None
    state: str = "PROCESSING"
    delay_seconds: float = 0.0
    task: str | None = None
    exact: bool = False  # in this state, not in a later one

    def text(self) -> str:
        if self.task is not None:
            return f"while {self.task} runs"
        if self.step is not None:
            return f"step {self.step}"
        return f"{self.delay_seconds:.1f} s after {self.state}"


@dataclass(frozen=True)
class Subject:
    """A job of a run."""

    id: str
    shape: Shape


@dataclass
class Scene:
    """What a fault is given, and what it leaves for its end and for the record (`notes`, JSON values)."""

    lab: Lab
    subjects: tuple[Subject, ...]
    target: Subject
    rng: Random
    notes: dict[str, Any] = field(default_factory=dict)
    held: Any = None
    running: frozenset[str] = frozenset()  # tasks of the target, by the last look of a fault that is aimed at one
    accepted: threading.Event = field(default_factory=threading.Event)  # the target's submission was answered

    @property
    def outage_seconds(self) -> float:
        return OUTAGE_SECONDS * self.lab.scale

    def step(self) -> int:
        return witness.newest_step(self.witness_of(self.target))

    def witness_of(self, subject: Subject) -> Path:
        return self.lab.witness / subject.id


def nothing(_scene: Scene) -> None:
    """Do nothing: the end of a fault that needs none."""


def usual_shape(rng: Random, steps: int) -> Shape:
    return draw_shape(rng, steps=steps)


def good_shape(rng: Random, steps: int) -> Shape:
    """Draw a job whose program does not fail by itself."""
    return draw_shape(rng, steps=steps, may_fail=False)


def some_step(rng: Random, shape: Shape) -> Moment:
    """Draw a moment while the program runs, from the first step to the last but some; before it fails by itself."""
    last = shape.fail_at or shape.steps
    return Moment(step=max(1, round(last * rng.uniform(0.02, 0.93))))


def later_step(rng: Random, shape: Shape) -> Moment:
    """Draw a moment at which there are a few checkpoints."""
    last = shape.fail_at or shape.steps
    return Moment(step=round(last * rng.uniform(0.45, 0.85)))


def any_time(rng: Random, shape: Shape) -> Moment:
    """Draw a moment from the queue to the end of the training."""
    early = rng.random() < 0.4
    if early:
        return Moment(state=rng.choice(("QUEUED", "DEPLOYING", "DOWNLOADING")), delay_seconds=rng.uniform(0, 1.5))
    return some_step(rng, shape)


def before_its_end(rng: Random, shape: Shape) -> Moment:
    """Draw a moment as `any_time` does, but well before the program's own end."""
    early = rng.random() < 0.4
    if early:
        return Moment(state=rng.choice(("QUEUED", "DEPLOYING", "DOWNLOADING")), delay_seconds=rng.uniform(0, 1.5))
    return Moment(step=max(1, round((shape.fail_at or shape.steps) * rng.uniform(0.02, 0.6))))


@dataclass(frozen=True)
class Kind:
    """One way to break something. A `job` kind meets one job at its moment, a `stack` kind whatever runs."""

    name: str
    text: str  # what is done, for the report
    scope: Literal["job", "stack"]
    inject: Callable[[Scene], None]
    heal: Callable[[Scene], None] = nothing
    lasts: bool = False  # `heal` comes after the scene's outage
    release: Callable[[Scene], None] = nothing  # for a process that only a node that was lost can end; see `run`
    shape: Callable[[Random, int], Shape] = usual_shape
    moment: Callable[[Random, Shape], Moment] = some_step
    rule: Callable[[Shape], Rule] = lambda shape: Rule()
    special: bool = False  # asks for a shape or an end of its own: at most one of them in a pair
    aims: tuple[str, ...] = AIMS  # states and tasks of the target at which it can come
    programs: tuple[Program, ...] = LIVES  # jobs of the whole life cycle that it can meet
    side: Literal["learner", "members", "platform", "person"] = "platform"


class TooLateError(BenchmarkError):
    """The job ended before its moment came: nothing was injected, nothing is proved."""


def wait_for(scene: Scene, moment: Moment, patience_seconds: float) -> None:
    """Wait for the moment. Raises TooLateError when the job ends first, or takes longer than the patience."""
    deadline = time.monotonic() + patience_seconds
    reached_at: float | None = None
    while True:
        state = _state(scene)
        if _reached(scene, moment, state):
            reached_at = reached_at or time.monotonic()
            if time.monotonic() - reached_at >= moment.delay_seconds:
                return
        if state in ("COMPLETED", "FAILED", "CANCELLED"):
            raise TooLateError(f"{scene.target.id} ended {state} before {moment.text()}")
        if time.monotonic() > deadline:
            raise TooLateError(f"{scene.target.id} did not come to {moment.text()} within {patience_seconds:.0f} s")
        time.sleep(LOOK_SECONDS if moment.step is not None or moment.task else FAST_LOOK_SECONDS)


def _reached(scene: Scene, moment: Moment, state: str) -> bool:
    if moment.step is not None:
        return scene.step() >= moment.step
    if moment.task is not None:
        try:
            scene.running = frozenset(scene.lab.running_tasks(scene.target.id))
        except UpdraftError:
            return False
        return moment.task in scene.running
    if moment.state == "PENDING":
        return scene.accepted.is_set()
    if moment.exact or moment.state not in ORDER:  # the latter come and go
        return state == moment.state
    return state in ORDER and ORDER.index(state) >= ORDER.index(moment.state)


def _state(scene: Scene) -> str:
    try:
        job = scene.lab.job(scene.target.id)
    except UpdraftError:
        return ""
    return "" if job is None else str(job.state)


def program_of(scene: Scene) -> psutil.Process:
    """Return the process of one of the target's learners. Raises TooLateError when none comes up."""
    deadline = time.monotonic() + FIND_SECONDS
    while True:
        found = [p for p in scene.lab.programs(scene.target.id) if _trains(p)]
        if found:
            return scene.rng.choice(sorted(found, key=lambda process: process.pid))
        if time.monotonic() > deadline or is_over(scene.lab, scene.target.id):
            raise TooLateError(f"no program of {scene.target.id} runs")
        time.sleep(LOOK_SECONDS)


def _trains(process: psutil.Process) -> bool:
    """Return whether the process is the training: no judge, and no helper that a shell has just started."""
    try:
        words = process.cmdline()
        return bool(PROGRAMS.intersection(words)) and "judge.py" not in words and "judge" not in words
    except psutil.Error:  # it has ended
        return False


def fault_of_pod(scene: Scene, pod: str, kind: str, **more: Any) -> None:
    """Apply a fault to the pod. Raises TooLateError when the pod is gone, or has ended."""
    try:
        scene.lab.fault(kind, namespace=NAMESPACE, pod=pod, **more)
    except RefusedError as exc:
        if exc.status not in POD_IS_OVER:
            raise
        raise TooLateError(f"{pod} ended before {kind}") from None


def living_pod(scene: Scene) -> str:
    """Name of a pod of the target that has not ended."""
    deadline = time.monotonic() + FIND_SECONDS
    while time.monotonic() < deadline and not is_over(scene.lab, scene.target.id):
        pods = [
            pod["metadata"]["name"]
            for pod in scene.lab.objects("pods", scene.target.id)
            if pod["status"].get("phase") in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")
        ]
        if pods:
            return str(scene.rng.choice(sorted(pods)))
        time.sleep(LOOK_SECONDS)
    raise TooLateError(f"no pod of {scene.target.id} lives")
