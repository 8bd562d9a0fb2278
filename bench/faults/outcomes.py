"""The results of runs: one JSON line each, appended, so that a later run goes on where an earlier one stopped.

Written by `cli`, read by it and by `report`. Which platform a result is of is told by `code`: a digest of everything
that a stack is made of. Another commit of the documentation does not make a result old.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import machine
from benchmarks.machine import REPOSITORY
from pydantic import BaseModel, ConfigDict

from faults.kinds.base import STATES, TASK

FILE = REPOSITORY / "bench" / "results" / "faults.jsonl"
CLUSTER_FILE = FILE.with_name("faults_cluster.jsonl")  # of tests on a real cluster
EVERY = "any_process_kill"
# Commits of branches that were squashed, each with the commit that holds its changes now.
SQUASHED = {"63e88655995a": "25603dafc4da"}
MOST_OF_A_PAIR = 2
MISSES = 3  # runs that were aimed at a moment and did not meet it
PLATFORM = ("operators", "images", "dags", "plugins", "uv.lock")

Outcome = Literal["passed", "failed", "void"]  # void: the job was over before the fault could meet it


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LossRecord(Record):
    """A learner's process that was followed by another one."""

    repeated: int
    next_step_seconds: float | None  # from its last sign of life to the successor's first step
    caught_up_seconds: float | None  # to the first step that was new


class CurveRecord(Record):
    """Steps over seconds since the first fault, of one process of learner 1: its corners."""

    attempt: int
    points: tuple[tuple[float, int], ...]


class JobRecord(Record):
    id: str
    text: str
    hit: str  # its state when the first fault came
    state: str
    attempts: int  # launches of its training
    seconds: float | None  # from its submission to its end
    late_seconds: float | None = None  # from its first step to the ledger's PROCESSING
    checkpoint_steps: int
    losses: tuple[LossRecord, ...] = ()
    pause_seconds: float = 0.0  # longest time between two steps of one process, from the fault on
    curves: tuple[CurveRecord, ...] = ()


class StrikeRecord(Record):
    """One fault of a run, and what it met."""

    kind: str
    aim: str = ""  # the target's state or task at which it was to come
    program: str = "chain"  # what the target ran
    job: str = ""  # the target
    hit: str = ""  # the target's state when it came; empty: it did not come
    tasks: tuple[str, ...] = ()  # of the target's run, seen running when it came; of an aim at a task
    too_late: bool = False

    @property
    def meets_its_aim(self) -> bool:
        """Return whether it came at the state or the task that it was aimed at."""
        if self.aim.startswith(TASK):
            return self.aim.removeprefix(TASK) in self.tasks
        if self.aim not in STATES:
            return bool(self.hit) and not self.too_late
        return self.aim == ("PENDING" if self.hit == "not accepted" else self.hit)


class ViolationRecord(Record):
    kind: str
    job: str
    text: str


class RunRecord(Record):
    """One run: `kind` is one fault's name, or several joined by `+`."""

    kind: str
    seed: int
    scale: float
    outcome: Outcome
    commit: str
    code: str
    changed: bool
    at: str  # UTC
    seconds: float
    moments: dict[str, str]  # kind -> when it came
    healed_seconds: dict[str, float] = {}  # kind -> seconds from the first fault to the end of this one
    jobs: tuple[JobRecord, ...] = ()
    violations: tuple[ViolationRecord, ...] = ()
    notes: dict[str, dict[str, Any]] = {}
    strikes: tuple[StrikeRecord, ...] = ()  # of runs since they are noted one by one
    aim: str = ""  # the target's state or task at which the fault was to come; of a packed run each strike has its own
    program: str = "chain"  # what the target ran
    position: int | None = None  # commits up to this one, to tell how old the run is
    place: str = ""  # the process that was killed, of a run of `every`
    bundle: str | None = None  # folder of what a failed run left, below `faults-failed`
    test: str = ""  # of tests/cluster: what broke a real cluster
    kubernetes: str = ""  # the version of that cluster

    @property
    def packed(self) -> bool:
        return len(self.strikes) > MOST_OF_A_PAIR

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds that this run counts for. In a packed run, a fault that came too late does not count."""
        if self.packed:
            return tuple(strike.kind for strike in self.strikes if not strike.too_late)
        return tuple(self.kind.split("+"))

    @property
    def command(self) -> str:
        """Return what does the same again; of a packed run what does each of its strikes alone."""
        return "; ".join(self.commands)

    @property
    def commands(self) -> tuple[str, ...]:
        if self.test:
            return (f'make test-cluster ARGS="-k {self.test.partition("[")[0]}"',)
        if self.place:
            return (f"make faults SEED={self.seed} AGAIN=1 ARGS=\"--every --place '{self.place}'\"",)
        if self.packed:
            return tuple(self._command(strike.kind, strike.aim, strike.program) for strike in self.strikes)
        return (self._command(self.kind, self.aim, self.program),)

    def _command(self, kind: str, aim: str, program: str) -> str:
        scale = "" if self.scale == 1 else f" SCALE={self.scale:g}"
        aimed = f" AIM={aim} PROGRAM={program}" if aim else ""
        return f"make faults KINDS={kind} SEED={self.seed} RUNS=1 AGAIN=1{aimed}{scale}"


@dataclass(frozen=True)
class Provenance:
    """The code that runs are of."""

    commit: str
    code: str
    changed: bool
    position: int | None

    @classmethod
    def of_checkout(cls) -> Provenance:
        commit, changed = machine.commit()
        return cls(commit, code_digest(), changed, position())

    def fields(self) -> dict[str, Any]:
        """Return the provenance as a RunRecord has it."""
        return asdict(self)


def append(path: Path, record: RunRecord) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")


def load(path: Path) -> list[RunRecord]:
    """Read the records in the order of the file; a line that a kill of the lab has torn is passed over. Commits are
    named as the present history has them."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = RunRecord.model_validate_json(line)
        except ValueError:
            continue
        found.append(record.model_copy(update={"commit": SQUASHED.get(record.commit, record.commit)}))
    return found


def done(records: Sequence[RunRecord], code: str, scale: float) -> set[tuple[str, int]]:
    """Return (kind, seed) of the runs that need not be done again."""
    return {
        (r.kind, r.seed) for r in records if r.code == code and r.scale == scale and r.outcome != "void" and not r.place
    }


def killed_places(records: Sequence[RunRecord], code: str) -> set[str]:
    """Return the processes that were killed one by one at this code."""
    return {r.place for r in records if r.code == code and r.place and r.outcome != "void"}


@dataclass
class Tries:
    """How often a kind was aimed at a moment, and how often it met it."""

    hits: int = 0
    misses: int = 0

    @property
    def counted(self) -> int:
        """Return the number of runs; some misses count as one, or a moment that cannot be met would be tried for
        ever."""
        return self.hits + self.misses // MISSES


def aims(records: Sequence[RunRecord]) -> dict[tuple[str, str], Tries]:
    """Count the tries by kind (of a pair both, joined by `+`) and moment; runs that came too late are misses."""
    found: dict[tuple[str, str], Tries] = {}
    for record in records:
        for (kind, aim), met in _aimed(record).items():
            tries = found.setdefault((kind, aim), Tries())
            tries.hits += met
            tries.misses += not met
    return found


def _aimed(record: RunRecord) -> dict[tuple[str, str], bool]:
    if record.packed:
        return {(strike.kind, strike.aim): strike.meets_its_aim for strike in record.strikes if strike.aim}
    if not record.aim:
        return {}
    if record.strikes:
        return {(record.kind, record.aim): all(strike.meets_its_aim for strike in record.strikes)}
    # Before strikes were noted: the state of the target, and a task was running by the lab's own look.
    state = record.jobs[0].hit if record.jobs else ""
    earlier = StrikeRecord(kind=record.kind, aim=record.aim, hit=state, tasks=(record.aim.removeprefix(TASK),))
    return {(record.kind, record.aim): earlier.meets_its_aim and bool(state)}


def tried(records: Sequence[RunRecord]) -> Counter[tuple[str, str]]:
    """Return how often each kind has met each moment that it was aimed at; `MISSES` runs that did not count as one."""
    return Counter({cell: tries.counted for cell, tries in aims(records).items()})


def position() -> int | None:
    """Return how many commits there are up to the present one; None where git does not say."""
    found = _git("rev-list", "--count", "HEAD").strip()
    return int(found) if found.isdigit() else None


def code_digest() -> str:
    """Return a digest of the platform's files as git knows them, with uncommitted changes."""
    trees = _git("rev-parse", *(f"HEAD:{name}" for name in PLATFORM))
    changes = _git("diff", "HEAD", "--", *PLATFORM)
    return hashlib.sha256(f"{trees}\n{changes}".encode()).hexdigest()[:12]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    return done.stdout
