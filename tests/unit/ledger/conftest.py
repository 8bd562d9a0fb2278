from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from updraft.ledger import Job, Ledger, NewJob, upgrade

Now = Callable[[], datetime]
NewLedger = Callable[[Now], Ledger]


class Clock:
    """Virtual time: stands still until told."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ledger") / "empty.db"
    upgrade(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture
def ledger_url(tmp_path: Path, empty_ledger: bytes) -> str:
    path = tmp_path / "ledger.db"
    path.write_bytes(empty_ledger)
    return f"sqlite:///{path}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    book = Ledger(ledger_url, clock=clock)
    yield book
    book.close()


@pytest.fixture
def submit(ledger: Ledger) -> Callable[..., Job]:
    def submit(job_id: str = "job-1", tenant: str = "default", name: str = "digits") -> Job:
        return ledger.record_job(NewJob(job_id, tenant, name, "train_model", job_id, {"name": name}, "ada"))

    return submit


@pytest.fixture(scope="session")
def new_ledger(tmp_path_factory: pytest.TempPathFactory, empty_ledger: bytes) -> Iterator[NewLedger]:
    """An empty ledger at each call: for tests that hypothesis runs many times."""
    folder, made = tmp_path_factory.mktemp("many"), list[Ledger]()

    def new_ledger(clock: Now) -> Ledger:
        path = folder / f"{len(made)}.db"
        path.write_bytes(empty_ledger)
        made.append(Ledger(f"sqlite:///{path}", clock=clock))
        return made[-1]

    yield new_ledger
    for book in made:
        book.close()
