"""The lab's jobs: what they are asked to do, as manifests, and what their true result is. Pure; called by `run` and
`checks`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

PROGRAM = Path(__file__).parent / "program"
IMAGE = "updraft/sidecar:0.1"  # the only image with Python that every stack has built
CHECKPOINT_SECONDS = 2.0
STEP_SECONDS = 0.2
STEPS = 100
MEMORY_MIB = 192
EXIT_ON_PURPOSE = 3

Fails = Literal["", "once", "always"]


@dataclass(frozen=True)
class Shape:
    """What one job does, apart from what is done to it."""

    learners: int = 1
    steps: int = STEPS
    step_seconds: float = STEP_SECONDS
    evaluate: bool = False
    fails: Fails = ""
    fail_at: int = 0
    app_attempts: int = 0
    no_progress_seconds: int | None = None  # restarted when its steps stand still for so long

    @property
    def ends_well(self) -> bool:
        """Whether it completes when nothing is done to it."""
        return self.fails == "" or (self.fails == "once" and self.app_attempts > 0)

    @property
    def checkpoint_steps(self) -> int:
        """Steps between two checkpoints: what a lost learner may have to repeat."""
        return round(CHECKPOINT_SECONDS / self.step_seconds)

    def text(self) -> str:
        words = [f"{self.learners} learner{'s' if self.learners > 1 else ''}, {self.steps} steps"]
        words += ["evaluated"] if self.evaluate else []
        words += [f"fails {self.fails} at {self.fail_at}"] if self.fails else []
        return ", ".join(words)


def draw_shape(rng: Random, *, steps: int = STEPS, may_fail: bool = True) -> Shape:
    """One of the usual jobs: most complete, some have two learners, some are evaluated, some fail on purpose."""
    learners = 2 if rng.random() < 0.3 else 1
    length = round(steps * rng.uniform(0.6, 1.2))
    evaluate = rng.random() < 0.3
    fails: Fails = rng.choices(("", "once", "always"), (0.75, 0.1, 0.15))[0] if may_fail else ""
    return Shape(
        learners=learners,
        steps=length,
        evaluate=evaluate,
        fails=fails,
        fail_at=round(length * rng.uniform(0.3, 0.9)) if fails else 0,
        app_attempts=1 if fails == "once" else 0,
    )


def manifest(shape: Shape, name: str, witness: Path) -> dict[str, Any]:
    """What is submitted; `witness` is a folder that the program may write to and the platform does not know."""
    params: dict[str, Any] = {
        "steps": shape.steps,
        "step_seconds": shape.step_seconds,
        "checkpoint_seconds": CHECKPOINT_SECONDS,
    }
    if shape.fails:
        params |= {"fails": shape.fails, "fail_at": shape.fail_at}
    budget: dict[str, Any] = {}
    if shape.app_attempts:
        budget["app_attempts"] = shape.app_attempts
    if shape.no_progress_seconds:
        budget |= {"no_progress": f"{shape.no_progress_seconds}s", "on_no_progress": "restart"}
    return {
        "name": name,
        "image": IMAGE,
        "code": str(PROGRAM),
        "command": "exec python -S chain.py",
        "params": params,
        "env": {"LAB_WITNESS": str(witness)},
        "resources": {"learners": shape.learners, "cpus": 0.2, "memory": f"{MEMORY_MIB}MiB"},
        "checkpoints": {"every": f"{CHECKPOINT_SECONDS:g}s", "keep": {"latest": 3}},
        **({"evaluate": {"command": "exec python -S judge.py"}} if shape.evaluate else {}),
        **({"budget": budget} if budget else {}),
    }


def chain(job_id: str, steps: int) -> str:
    """The digest that the program must have after so many steps: the one result in which each had effect once."""
    digest = hashlib.sha256(job_id.encode()).hexdigest()
    for step in range(1, steps + 1):
        digest = hashlib.sha256(f"{digest}:{step}".encode()).hexdigest()
    return digest
