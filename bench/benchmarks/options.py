"""What the command line says to every figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    quick: bool = False
    rounds: int | None = None
    seconds: float | None = None
    empty_cache: bool = False

    def pairs(self, full: int, quick: int = 1) -> int:
        """Return the number of pairs of a comparison: the requested one, else the figure's own."""
        return self.rounds or (quick if self.quick else full)

    def span(self, full: float, quick: float) -> float:
        return self.seconds or (quick if self.quick else full)
