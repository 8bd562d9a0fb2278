from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from folder_store import FolderStore
from outside import Outside
from unit.operators.conftest import empty_ledger, environment
from unit.triggers.trigger_helpers import JOB, Clock

from updraft.ledger import Ledger, NewJob
from updraft.services import Services, UsesServices
from updraft.settings import settings
from updraft.timing import RateLimiter

MANIFEST = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py"}

__all__ = ["empty_ledger", "environment"]


@pytest.fixture
def outside(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Outside:
    """What every trigger and operator of the test reaches."""
    made = Outside()
    monkeypatch.setattr(UsesServices, "make_services", staticmethod(lambda: made.services))
    return made


@pytest.fixture
def services(outside: Outside) -> Services:
    return outside.services


@pytest.fixture
def ledger(outside: Outside, environment: Path, empty_ledger: bytes) -> Iterator[Ledger]:
    (environment / "ledger.db").write_bytes(empty_ledger)
    book = Ledger(f"sqlite:///{environment}/ledger.db")
    outside.ledger = book
    book.jobs.record(NewJob(JOB, "default", "digits", "train_model", JOB, MANIFEST, "ada"))
    yield book
    book.close()


@pytest.fixture
def store(outside: Outside, environment: Path) -> FolderStore:
    outside.store = FolderStore(environment / "store")
    return outside.store


@pytest.fixture
def quick(outside: Outside, environment: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Short pauses, and a clock that the test's looks advance."""
    clock = Clock()
    outside.timing = replace(
        outside.timing,
        clock=clock,
        tick_seconds=0.005,
        admit_retry_seconds=0.01,
        requests_seconds=0.005,
        queue_turn_seconds=0.01,
        queue_away_seconds=0.01,
        log_end_seconds=5.0,
        log_retry_seconds=0.01,
        checkpoint_looks=RateLimiter(0.01, 1e9),
        training_end_looks=RateLimiter(0.01, 1e9),
    )
    # A look advances the clock by little, and each asks a real ledger: with the defaults a test takes half a minute.
    monkeypatch.setenv("UPDRAFT_DEPLOY_TIMEOUT_SECONDS", "300")
    monkeypatch.setenv("UPDRAFT_STORE_GRACE_SECONDS", "90")
    settings.cache_clear()
    return clock
