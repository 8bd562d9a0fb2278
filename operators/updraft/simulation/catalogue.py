"""Name the policies, for the command line and the reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from updraft.simulation.engine import Policy
from updraft.simulation.policies import Afs, ElasticTiresias, FfDL, Fifo, Tiresias
from updraft.simulation.sized import GeneticSearch, MostThroughput, Updraft


@dataclass(frozen=True)
class Named:
    """A policy with what it does in a few words. `drops` makes the one that turns jobs away for which there is no room;
    None: it cannot."""

    about: str
    make: Callable[[float | None], Policy]
    drops: Callable[[float | None], Policy] | None = None


POLICIES: Mapping[str, Named] = {
    "fifo": Named("fixed sizes, in order of arrival", lambda period: Fifo(period)),
    "ffdl": Named("fixed sizes, jobs that have room pass", lambda period: FfDL(period)),
    "tiresias": Named("fixed sizes, least served first", lambda period: Tiresias(period or 60.0)),
    "elastic-tiresias": Named(
        "least served first, resized when many or none wait", lambda period: ElasticTiresias(period or 60.0)
    ),
    "afs": Named("devices by relative gain, shorter jobs first", lambda period: Afs(period)),
    "devices": Named(
        "devices by dynamic program, fixed batch",
        lambda period: MostThroughput(batch=False, period=period),
        lambda period: MostThroughput(batch=False, drop=True, period=period),
    ),
    "devices+batch": Named(
        "devices and batch by dynamic program",
        lambda period: MostThroughput(batch=True, period=period),
        lambda period: MostThroughput(batch=True, drop=True, period=period),
    ),
    "genetic": Named("devices and batch by genetic search", lambda period: GeneticSearch(period=period or 60.0)),
    "updraft": Named(
        "devices and batch by goodput and the price of a resize",
        lambda period: Updraft(period=period),
        lambda period: Updraft(drop=True, period=period),
    ),
}
