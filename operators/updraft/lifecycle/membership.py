"""Describe which learners belong to an attempt of a role, as numbered generations. Pure.

An attempt of a fixed-size job has one generation. Each change of the members creates the next generation. Generation
numbers only grow, and a learner's number is never given to another learner of the same attempt. So a late observation
of an earlier generation cannot be taken for a member of a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Member:
    """A learner of an attempt.

    Args:
        learner: Its number within the attempt, from 1.
        since: The generation in which it joined.
        until: The first generation to which it does not belong any more; None while it belongs.
    """

    learner: int
    since: int = 1
    until: int | None = None

    @property
    def belongs(self) -> bool:
        """Return whether it has its part in the attempt's work."""
        return self.until is None


@dataclass(frozen=True)
class Membership:
    """The members of one attempt in one generation.

    Args:
        generation: From 1; each change of the members adds one.
        desired: How many learners the attempt should have.
        members: All learners that this attempt ever had, by number; a learner that left stays, with `until`.

    Raises:
        ValueError: The members contradict each other.
    """

    generation: int
    desired: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        numbers = [member.learner for member in self.members]
        if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 1):
            raise ValueError(f"members {numbers}: the numbers must be positive, ascending and different")
        if self.generation < 1 or self.desired < 1 or not self.learners:
            raise ValueError(
                f"generation {self.generation}, desired {self.desired}, {len(self.learners)} learners belong: "
                "each must be at least 1"
            )
        for member in self.members:
            last = self.generation if member.until is None else member.until
            if not 1 <= member.since <= last <= self.generation or member.since == member.until:
                raise ValueError(f"learner {member.learner}: belongs from {member.since} to {member.until}")

    @classmethod
    def first(cls, learners: int) -> Membership:
        """Return generation 1 with learners 1 to `learners`."""
        return cls(1, learners, tuple(Member(n) for n in range(1, learners + 1)))

    @property
    def learners(self) -> tuple[int, ...]:
        """Return the numbers of the current members, ascending."""
        return tuple(member.learner for member in self.members if member.belongs)

    @property
    def ever(self) -> tuple[int, ...]:
        """Return the numbers of all learners that the attempt ever had: whose logs, metrics and checkpoints there
        are."""
        return tuple(member.learner for member in self.members)

    @property
    def joined_later(self) -> tuple[int, ...]:
        """Return the numbers of the current members that joined after the attempt's start."""
        return tuple(member.learner for member in self.members if member.belongs and member.since > 1)

    @property
    def size(self) -> int:
        """Return how many belong: the world size of the collective."""
        return len(self.learners)

    def rank(self, learner: int) -> int:
        """Return the learner's rank, from 0. Raises ValueError if it is no current member."""
        return self.learners.index(learner)

    def missing(self, present: Iterable[int]) -> tuple[int, ...]:
        """Return the learners that belong and are not among those present."""
        known = set(present)
        return tuple(n for n in self.learners if n not in known)

    def resized(self, desired: int, leaving: Sequence[int] = ()) -> Membership:
        """Return the next generation without the learners that leave, and with `desired` learners: new numbers join, or
        the highest numbers leave too. Returns this generation if that changes nobody. Raises ValueError if one of
        `leaving` does not belong, or nobody would be left."""
        if strangers := set(leaving) - set(self.learners):
            raise ValueError(f"learners {sorted(strangers)} do not belong to generation {self.generation}")
        staying = [n for n in self.learners if n not in leaving]
        leaving = [*leaving, *staying[desired:]]
        number, last = self.generation + 1, self.members[-1].learner
        joining = tuple(Member(last + k, number) for k in range(1, desired - len(staying) + 1))
        if not leaving and not joining:
            return self if desired == self.desired else replace(self, desired=desired)
        kept = tuple(replace(m, until=number) if m.learner in leaving else m for m in self.members)
        return Membership(number, desired, (*kept, *joining))

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        members = [[member.learner, member.since, member.until] for member in self.members]
        return {"generation": self.generation, "desired": self.desired, "members": members}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Membership:
        """Read what `to_json` wrote. Raises ValueError."""
        return cls(document["generation"], document["desired"], tuple(Member(*each) for each in document["members"]))
