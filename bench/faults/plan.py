"""Which runs there are: pure. Run i of a kind has seed SEED + i; some more runs combine the kind with another one.

Called by `cli`. The order is round by round over all kinds, so that a run that is stopped has seen each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from faults.jobs import LIVES, RECIPES, Program
from faults.kinds.base import TASK, TOGETHER, Kind

NARROW_IN_A_ROW = 4
PAIRS_OF_RUNS = 5  # for so many single runs of a kind there is one of a pair with it


@dataclass(frozen=True)
class PlannedStrike:
    """One fault of a run: its kind, the state or task of the target at which it comes, what the target runs, and which
    job of the run that is."""

    kind: str
    aim: str = ""
    program: Program = "chain"
    subject: int = 0


@dataclass(frozen=True)
class Planned:
    """A run: one kind, or two at one target, or a packed run with targets and strikes of its own."""

    kinds: tuple[str, ...]
    seed: int
    aim: str = ""
    program: Program = "chain"
    packed: tuple[PlannedStrike, ...] = ()

    @property
    def kind(self) -> str:
        return "+".join(self.kinds)

    @property
    def name(self) -> str:
        """Return a name for folders: a packed run has many kinds."""
        return "packed" if self.packed else self.kind

    @property
    def strikes(self) -> tuple[PlannedStrike, ...]:
        return self.packed or tuple(PlannedStrike(kind, self.aim, self.program) for kind in self.kinds)


def plan(
    kinds: Mapping[str, Kind], chosen: Sequence[str], *, runs: int, seed: int, pairs: bool = True
) -> list[Planned]:
    """Plan the runs. `chosen`: names, or pairs such as `learner_kill+s3_kill`; none means all.

    Raises ValueError that lists what there is.
    """
    names = list(chosen) or list(kinds)
    for name in names:
        for part in name.split("+"):
            if part not in kinds:
                raise ValueError(f"{part!r} is no kind of fault; there are {', '.join(kinds)}")
    found = []
    for number in range(runs):
        found += [Planned(tuple(name.split("+")), seed + number) for name in names]
        if pairs and not chosen and number % PAIRS_OF_RUNS == 0:
            found += [pair_with(kinds, name, seed + number) for name in names]
    return list(dict.fromkeys(found))


def paired(kinds: Mapping[str, Kind], *, runs: int, seed: int) -> list[Planned]:
    """Plan rounds in which each kind comes once: those that meet the whole platform two to a run, drawn by the seed.

    It proves more in half of the time: such a run takes as long as one with a single fault.
    """
    narrow = [kind.name for kind in kinds.values() if kind.scope == "job"]
    found = []
    for number in range(seed, seed + runs):
        wide = [kind for kind in kinds.values() if kind.scope == "stack"]
        Random(f"paired:{number}").shuffle(wide)
        wide.sort(key=lambda kind: kind.special)  # so that two of them meet only when nothing else is left
        while wide:
            first = wide.pop()
            free = [kind for kind in wide if not (kind.special and first.special)]
            second = free[0] if free else None
            if second is not None:
                wide.remove(second)
            found.append(Planned((first.name,) if second is None else (first.name, second.name), number))
        found += [Planned((name,), number) for name in narrow]
    return found


def pair_with(kinds: Mapping[str, Kind], name: str, seed: int) -> Planned:
    """Return the kind and another one that it can meet: only one of them may ask for a job or an end of its own."""
    first = kinds[name]
    rng = Random(f"pair:{name}:{seed}")
    others = [k for k in kinds.values() if k.name != name and not (k.special and first.special)]
    return Planned((name, rng.choice(others).name), seed)


def selection(kinds: Mapping[str, Kind], seed: int) -> list[str]:
    """Return all kinds in an order of the seed's own, for as long as time is: some that meet one job, then one of the
    rest."""
    rng = Random(f"selection:{seed}")
    narrow = [kind.name for kind in kinds.values() if kind.scope == "job"]
    wide = [kind.name for kind in kinds.values() if kind.scope == "stack"]
    rng.shuffle(narrow)
    rng.shuffle(wide)
    found = []
    while narrow or wide:
        found += [*narrow[:NARROW_IN_A_ROW], *wide[:1]]
        narrow, wide = narrow[NARROW_IN_A_ROW:], wide[1:]
    return found


def rotation(kinds: Mapping[str, Kind], seed: int) -> list[Planned]:
    """Return what is done in a short time, one time with small jobs, the next with jobs of the whole life cycle."""
    if seed % 2:
        return plan(kinds, selection(kinds, seed), runs=1, seed=seed)
    return cover(kinds, {}, runs=len(kinds), seed=seed)


@dataclass(frozen=True)
class Cell:
    """What is to be tried: a kind at one moment of a job's life, or a learner's loss together with a platform's."""

    kinds: tuple[str, ...]
    aim: str

    @property
    def kind(self) -> str:
        return "+".join(self.kinds)


def cells(kinds: Mapping[str, Kind], chosen: Sequence[str] = ()) -> list[Cell]:
    """Return all of them; `chosen` leaves those that have one of these kinds in them."""
    found = [Cell((kind.name,), aim) for kind in kinds.values() for aim in kind.aims]
    learners = [k for k in kinds.values() if k.side == "learner"]
    platform = [k for k in kinds.values() if k.side == "platform"]
    found += [
        Cell((one.name, other.name), TOGETHER)
        for one in learners
        for other in platform
        if not (one.special and other.special)
    ]
    return [cell for cell in found if not chosen or set(cell.kinds) & set(chosen)]


def cover(
    kinds: Mapping[str, Kind], tried: Mapping[tuple[str, str], int], *, runs: int, seed: int, chosen: Sequence[str] = ()
) -> list[Planned]:
    """Return the cells that were tried least, one run of each; of equals one of each kind first, in the seed's own
    order.

    `tried` counts runs by kind and aim, so what follows is decided by the results and the seed alone.
    """
    rng = Random(f"cover:{seed}")
    drawn = {cell: rng.random() for cell in cells(kinds, chosen)}
    by_kind: Counter[str] = Counter()
    for (name, _), count in tried.items():
        by_kind.update(dict.fromkeys(name.split("+"), count))
    counts = {cell: tried.get((cell.kind, cell.aim), 0) for cell in drawn}
    found: list[Planned] = []
    for number in range(min(runs, len(drawn))):
        cell = min(drawn, key=lambda c: (counts[c], min(by_kind[name] for name in c.kinds), drawn[c]))
        times = counts[cell]
        by_kind.update(cell.kinds)
        fitting = programs(kinds, cell)
        found.append(Planned(cell.kinds, seed + times, cell.aim, fitting[(number + times) % len(fitting)]))
        del drawn[cell]
    return found


def programs(kinds: Mapping[str, Kind], cell: Cell) -> list[Program]:
    """Return what the target may run: some tasks belong to jobs that export only."""
    late = cell.aim in {f"{TASK}{name}" for name in ("export_model", "register_model", "promote")}
    fitting = [name for name in LIVES if all(name in kinds[kind].programs for kind in cell.kinds)]
    return [name for name in fitting if RECIPES[name].exports or not late]


def is_stack_wide(kinds: Mapping[str, Kind], planned: Planned) -> bool:
    """Return whether it needs the platform for itself."""
    return (
        bool(planned.packed) or planned.aim == "QUEUED" or any(kinds[name].scope == "stack" for name in planned.kinds)
    )
