"""Find the versions of a model that were its champion, from the changes that the ledger keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ChampionChange:
    """The champion became `version`.

    Args:
        over: The version that held the alias before; None if no version did.
        back: Whether the change restored an earlier champion.
    """

    version: str
    over: str | None = None
    back: bool = False


def champions(changes: Iterable[ChampionChange]) -> tuple[str, ...]:
    """Return the line of champions after all changes, oldest first: the last one holds the alias.

    A roll-back ends the line at the version that it restored, so the versions after it can no longer be restored
    without being named. A person may have moved the alias in MLflow: then `over` is not the last of the line, and is
    added to it.

        champions([ChampionChange("1"), ChampionChange("2", "1"), ChampionChange("1", "2", back=True)])  # ("1",)
    """
    line: tuple[str, ...] = ()
    for change in changes:
        if change.over is not None:
            line = _ending_with(line, change.over)
        line = _ending_with(line, change.version) if change.back else (*_without(line, change.version), change.version)
    return line


def previous_champion(changes: Iterable[ChampionChange], current: str | None) -> str | None:
    """Return the version that a roll-back restores; None if there is none. `current` holds the alias now."""
    line = champions(changes)
    if current is not None:
        line = _ending_with(line, current)
    return line[-2] if len(line) > 1 else None


def _ending_with(line: tuple[str, ...], version: str) -> tuple[str, ...]:
    return line[: line.index(version) + 1] if version in line else (*line, version)


def _without(line: tuple[str, ...], version: str) -> tuple[str, ...]:
    return tuple(each for each in line if each != version)
