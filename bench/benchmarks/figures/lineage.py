"""Measure what events of lineage cost: jobs on a platform that sends them, and on one that does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.figures.orchestration import BUDGET, Life, Run, in_turn, orchestration_pairs
from benchmarks.options import Options
from benchmarks.results import Comparison, Measured, Value
from benchmarks.stack import BenchmarkError

NAME, TITLE = "lineage", "Orchestration with events of lineage"

NOTES = (
    "Jobs and empty DAGs as in the figure *Orchestration of a whole life cycle*, on two platforms in turn. One was "
    "started with `OPENLINEAGE_URL`, the address of a receiver on this machine that answers at once; its empty DAG "
    "sends events too.",
)


class Receiver(ThreadingHTTPServer):
    """Counts the events that it is sent."""

    count = 0


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.count += 1
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def receiver() -> Iterator[Receiver]:
    server = Receiver(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def measure(options: Options) -> Measured:
    rounds = options.pairs(6, 2) // 2
    plain: tuple[list[Life], list[Run]] = ([], [])
    sending: tuple[list[Life], list[Run]] = ([], [])
    with receiver() as server:
        address = {"OPENLINEAGE_URL": f"http://127.0.0.1:{server.server_address[1]}"}
        for _ in range(2):
            for found, variables in ((plain, {}), (sending, address)):
                lives, empties = in_turn(rounds, variables)
                found[0].extend(lives)
                found[1].extend(empties)
        events = server.count
    if not events:
        raise BenchmarkError("the platform sent no event")
    both = zip(sending[0], plain[0], strict=True)
    return Measured(
        settings={"rounds": 2 * rounds},
        comparisons=(
            Comparison(
                name="Orchestration of a job, both with lineage",
                unit="s",
                a="a job less its work",
                b="an empty DAG",
                pairs=orchestration_pairs(*sending),
                budget=BUDGET,
            ),
            Comparison(
                name="Orchestration of a job, both without",
                unit="s",
                a="a job less its work",
                b="an empty DAG",
                pairs=orchestration_pairs(*plain),
            ),
            Comparison(
                name="What the events cost a job",
                unit="s",
                a="with lineage",
                b="without",
                pairs=tuple((with_.orchestration_seconds, without.orchestration_seconds) for with_, without in both),
            ),
        ),
        values=(Value(name="Events that were sent", unit="", samples=(float(events),)),),
        notes=NOTES,
    )
