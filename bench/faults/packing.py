"""Plans as much as fits into a run: targets with a fault of their own each, and faults of the stack in turn. Pure.

Called by `cli` with what was done so far. What has the fewest runs comes first, at the moments that were tried least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from faults.jobs import Program
from faults.kinds.base import TASK, Kind
from faults.plan import Cell, Planned, PlannedStrike, programs

TARGETS = 4  # jobs of the whole life cycle in a packed run
IN_TURN = 3  # faults of the whole stack in a packed run, one after the other
WIDE_OF_ROUND, NARROW_OF_ROUND = 8, 24  # runs of a round
ALONE = "QUEUED"  # another job takes all CPUs for it, so it is no moment of a packed run
BROUGHT_ABOUT = ("RECOVERING", "HALTED")


@dataclass
class Tally:
    """What was done, what this plan adds, and what comes next."""

    kinds: Mapping[str, Kind]
    runs: Counter[str]
    stale: set[str]
    tried: Counter[tuple[str, str]]
    used: set[tuple[str, str, int]]
    rng: Random
    first_seed: int
    goal: int

    def open(self, scope: str) -> list[str]:
        """Return the kinds that need runs: those without a recent one first, then by the number of runs."""
        names = [k.name for k in self.kinds.values() if k.scope == scope]
        wanted = [name for name in names if name in self.stale or self.runs[name] < self.goal]
        self.rng.shuffle(wanted)
        return sorted(wanted, key=lambda name: (name not in self.stale, self.runs[name]))

    def seed(self, kind: str, aim: str) -> int:
        """Return the first one that such a run has not had: a run that is done again replaces its result."""
        seed = self.first_seed
        while (kind, aim, seed) in self.used:
            seed += 1
        self.used.add((kind, aim, seed))
        return seed

    def aim(self, name: str, without: Collection[str], program: Program | None = None) -> tuple[str, Program] | None:
        """Return the moment that was tried least, and a program that comes to it; None where no moment is left."""
        fitting = [
            (aim, programs(self.kinds, Cell((name,), aim))) for aim in self.kinds[name].aims if aim not in without
        ]
        found = [(aim, fit) for aim, fit in fitting if fit and (program is None or program in fit)]
        if not found:
            return None
        self.rng.shuffle(found)
        aim, fit = min(found, key=lambda each: self.tried[name, each[0]])
        return aim, self.rng.choice(fit) if program is None else program

    def count(self, name: str, aim: str = "") -> None:
        self.runs[name] += 1
        self.stale.discard(name)
        if aim:
            self.tried[name, aim] += 1


def packed(tally: Tally, *, rounds: int | None = None) -> list[Planned]:
    """Plan rounds of cheap jobs that one fault meets each, side by side, and of packed runs, until each kind has its
    goal.

    A packed run has `TARGETS` jobs of the whole life cycle. Each is met by a fault of its own, and up to `IN_TURN`
    faults of the whole stack come one after the other, each at a moment of another target.
    """
    found: list[Planned] = []
    number = 0
    while rounds is None or number < rounds:
        number += 1
        made: list[Planned] = []
        for _ in range(NARROW_OF_ROUND):
            if names := tally.open("job"):
                made.append(Planned((names[0],), tally.seed(names[0], "")))
                tally.count(names[0])
        for _ in range(WIDE_OF_ROUND):
            if tally.open("stack"):
                made.append(_wide(tally))
        if not made:
            break
        found += made
    return found


def _wide(tally: Tally) -> Planned:
    """Plan a packed run, or one that needs the platform for itself if that moment was tried least."""
    kinds, names = tally.kinds, tally.open("stack")
    chosen = _not_too_special(kinds, names)
    for name in chosen:
        least = tally.aim(name, ())
        if least is not None and least[0] == ALONE:
            tally.count(name, ALONE)
            return Planned((name,), tally.seed(name, ALONE), *least)
    strikes: list[PlannedStrike] = []
    for name in chosen:
        found = tally.aim(name, {ALONE})
        if found is not None:
            strikes.append(PlannedStrike(name, *found, subject=len(strikes)))
            tally.count(name, found[0])
    strikes = [replace(strike, subject=number) for number, strike in enumerate(sorted(strikes, key=comes_late))]
    for subject in range(TARGETS):
        strikes += _of_target(tally, strikes, subject)
    names_of_run = tuple(strike.kind for strike in strikes)
    return Planned(names_of_run, tally.seed("+".join(names_of_run), ""), packed=tuple(strikes))


def _not_too_special(kinds: Mapping[str, Kind], names: Sequence[str]) -> list[str]:
    """Return the first ones, of which at most one asks for an end of its own."""
    found: list[str] = []
    for name in names:
        if not (kinds[name].special and any(kinds[other].special for other in found)):
            found.append(name)
    return found[:IN_TURN]


def _of_target(tally: Tally, strikes: Sequence[PlannedStrike], subject: int) -> list[PlannedStrike]:
    """Return the fault of one target alone. One that a fault of the stack is aimed at must come to that moment, so its
    own fault is none that may end the job, and comes at another moment."""
    taken = {strike.kind for strike in strikes}
    wide = next((strike for strike in strikes if strike.subject == subject), None)
    without = {ALONE} if wide is None else {ALONE, wide.aim, *BROUGHT_ABOUT}
    names = [k.name for k in tally.kinds.values() if k.scope == "job" and k.name not in taken]
    tally.rng.shuffle(names)
    for name in sorted(names, key=lambda name: (name not in tally.stale, tally.runs[name])):
        if wide is not None and tally.kinds[name].special:
            continue
        found = tally.aim(name, without, None if wide is None else wide.program)
        if found is not None:
            tally.count(name, found[0])
            return [PlannedStrike(name, *found, subject=subject)]
    return []


def comes_late(strike: PlannedStrike) -> bool:
    """Return whether its target takes so long to come to the moment that it may start while an earlier fault lasts."""
    late = ("evaluate", "export_model", "register_model", "promote", "release")
    return strike.aim == "STORING" or strike.aim in {f"{TASK}{name}" for name in late}
