"""The lab's jobs: what they are asked to do, as manifests, and what their true result is. Pure; called by `run` and
`checks`."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
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
LIFE_STEPS = 60
MEMBERS_STEPS = 240  # long enough for a new learner to join; a multiple of the steps of an epoch
MANY_FILES = 2000
LIFE_NO_PROGRESS_SECONDS = 45  # longer than PyTorch takes to start on a busy machine
BAD_DATA = 0.1  # share of the jobs of the whole life cycle whose data are refused
BLOCKER_STEPS, BLOCKER_CPUS = 60, 4.0

DATA = "s3://datasets/fault-lab/digits.csv"
SUITE, WRONG_SUITE = "digits.suite.json", "wrong.suite.json"

Fails = Literal["", "once", "always"]
Program = Literal["chain", "cnn", "ddp", "forest", "shell", "members"]
LIVES: tuple[Program, ...] = ("cnn", "ddp", "forest", "shell")  # jobs of the whole life cycle, as users run them


@dataclass(frozen=True)
class Recipe:
    """What a program needs: its command and that of its evaluation, its image, its memory."""

    command: str
    judge: str
    memory_mib: int
    cpus: float
    image: dict[str, Any]
    exports: bool = False


_PYTHON_JUDGE = "exec python judge.py"
_PYTORCH = {"framework": {"name": "pytorch", "version": "2.15"}}
RECIPES: dict[Program, Recipe] = {
    "chain": Recipe("exec python -S chain.py", "exec python -S judge.py", MEMORY_MIB, 0.2, {"image": IMAGE}),
    "cnn": Recipe("exec python cnn.py", _PYTHON_JUDGE, 1280, 0.5, _PYTORCH, exports=True),
    "ddp": Recipe("exec python cnn.py", _PYTHON_JUDGE, 1280, 0.5, _PYTORCH, exports=True),
    "forest": Recipe("exec python linear.py", _PYTHON_JUDGE, 1024, 0.5, {"framework": {"name": "sklearn"}}),
    # Learners join and leave while the others train.
    "members": Recipe("exec python members.py", _PYTHON_JUDGE, 768, 0.4, _PYTORCH),
    "shell": Recipe("exec sh count.sh", "exec sh count.sh judge", 256, 0.2, {"framework": {"name": "shell"}}),
}


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
    program: Program = "chain"
    bad_data: bool = False  # its suite does not hold: no learner may start
    much_code: bool = False  # thousands of files beside the program, so that staging takes some seconds
    new_data: bool = False  # nobody has asked for its suite before, so that a pod judges its data
    cpus: float | None = None  # of each learner; None: as the program needs

    @property
    def ends_well(self) -> bool:
        """Return whether it completes when nothing is done to it."""
        return not self.bad_data and (self.fails == "" or (self.fails == "once" and self.app_attempts > 0))

    @property
    def registers(self) -> bool:
        """Return whether it exports its model and registers it under a name of its own."""
        return RECIPES[self.program].exports

    @property
    def checkpoint_steps(self) -> int:
        """Return the steps between two checkpoints: what a lost learner may have to repeat."""
        return round(CHECKPOINT_SECONDS / self.step_seconds)

    def text(self) -> str:
        words: list[str] = [] if self.program == "chain" else [self.program]
        words += [f"{self.learners} learner{'s' if self.learners > 1 else ''}", f"{self.steps} steps"]
        words += ["evaluated"] if self.evaluate else []
        words += [f"fails {self.fails} at {self.fail_at}"] if self.fails else []
        words += ["bad data"] if self.bad_data else []
        return ", ".join(words)


def draw_shape(rng: Random, *, steps: int = STEPS, may_fail: bool = True) -> Shape:
    """Draw one of the usual jobs: most complete, some have two learners, some are evaluated, some fail on purpose."""
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


def as_life(rng: Random, shape: Shape, program: Program, *, may_fail: bool) -> Shape:
    """Return the same job as one of the whole life cycle: data and suite, evaluation, export and registration."""
    return replace(
        shape,
        program=program,
        learners=2 if program == "ddp" else 1,
        evaluate=True,
        no_progress_seconds=LIFE_NO_PROGRESS_SECONDS if shape.no_progress_seconds else None,
        bad_data=may_fail and rng.random() < BAD_DATA,
    )


def blocker() -> Shape:
    """Return a short job that takes all CPUs, so that the next one is queued."""
    return Shape(steps=BLOCKER_STEPS, cpus=BLOCKER_CPUS)


def model_name(job_id: str) -> str:
    """Return a model name of the job's own, so that each version that exists was made by this job."""
    return f"lab-{job_id}"


def much_code(folder: Path) -> Path:
    """Return the programs beside thousands of small files, made once in `folder`."""
    made = folder / "much-code"
    if not made.is_dir():
        aside = folder / "much-code.new"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(PROGRAM, aside, ignore=shutil.ignore_patterns("__pycache__"))
        (aside / "many").mkdir()
        for number in range(MANY_FILES):
            (aside / "many" / f"{number:04}.txt").write_text(f"file {number}\n")
        aside.rename(made)
    return made


def manifest(shape: Shape, job_id: str, witness: Path, code: Path = PROGRAM) -> dict[str, Any]:
    """Return what is submitted; `witness` is a folder that the program may write to and the platform does not know."""
    recipe = RECIPES[shape.program]
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
    made: dict[str, Any] = {
        "name": "fault-lab",
        **recipe.image,
        "code": str(code),
        "command": recipe.command,
        "params": params,
        "env": {"LAB_WITNESS": str(witness), "OMP_NUM_THREADS": "1"},
        "resources": {
            "learners": shape.learners,
            "cpus": shape.cpus or recipe.cpus,
            "memory": f"{recipe.memory_mib}MiB",
        },
        "checkpoints": {"every": f"{CHECKPOINT_SECONDS:g}s", "keep": {"latest": 3}},
    }
    if shape.program != "chain":
        suite = json.loads((PROGRAM / (WRONG_SUITE if shape.bad_data else SUITE)).read_text())
        if shape.new_data:
            suite["expectations"].append(own_expectation(job_id))
        made["data"] = [{"source": DATA, "as": "training", "expectations": suite}]
    if shape.program == "members":
        del made["resources"]["learners"]
        made["elastic"] = {"min_learners": 1, "max_learners": 3, "resize": "in_place"}
    if shape.evaluate:
        made["evaluate"] = {"command": recipe.judge}
    if shape.registers:
        rule = {"chain_is_right": ">= 1"}
        gate = {"metric": "accuracy", "threshold": 1, "require": ["validated_data", "verified_model"]}
        made["export"] = {"formats": ["torch"], "register_as": model_name(job_id), "promote_if": rule, "gate": gate}
        made["env"]["LAB_PREDICTIONS"] = "1"
    if budget:
        made["budget"] = budget
    return made


def own_expectation(job_id: str) -> dict[str, Any]:
    """Return an expectation that the data meet. Its bound differs for each job, so that no earlier verdict is found."""
    most = 10**9 + int(hashlib.sha256(job_id.encode()).hexdigest()[:8], 16)
    return {
        "type": "expect_table_row_count_to_be_between",
        "kwargs": {"min_value": 1, "max_value": most},
        "severity": "critical",
    }


def chain(job_id: str, steps: int) -> str:
    """Return the digest that the program must have after so many steps: the one result in which each had effect
    once."""
    digest = hashlib.sha256(job_id.encode()).hexdigest()
    for step in range(1, steps + 1):
        digest = hashlib.sha256(f"{digest}:{step}".encode()).hexdigest()
    return digest
