"""No part of the platform is waited for longer than `SECONDS`: a route answers 503 with the part's name instead.

A call that is late goes on in its daemon thread until its own library gives up; at most `PARALLEL` of them per
part, and while all of them hang the next callers are refused at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from updraft.exceptions import UnavailableError

SECONDS = 5.0
PARALLEL = 16
TITLES: Mapping[str, str] = {
    "ledger": "The ledger",
    "storage": "The object store",
    "mlflow": "MLflow",
    "cluster": "The cluster",
}

T = TypeVar("T")


@dataclass
class _Call(Generic[T]):
    work: Callable[[], T]
    done: threading.Event = field(default_factory=threading.Event)
    result: list[T] = field(default_factory=list)
    error: BaseException | None = None

    def run(self, slot: threading.Semaphore) -> None:
        try:
            self.result.append(self.work())
        except BaseException as exc:  # noqa: BLE001 - raised again in the thread that waits
            self.error = exc
        finally:
            slot.release()
            self.done.set()


class Deadline:
    """Calls of each part, bounded in time and number."""

    def __init__(self, seconds: float = SECONDS, parallel: int = PARALLEL) -> None:
        self.seconds = seconds
        self._slots = {part: threading.Semaphore(parallel) for part in TITLES}

    def call(self, part: str, work: Callable[[], T]) -> T:
        """The result of `work`, or its exception; UnavailableError when the part does not answer in time."""
        slot = self._slots[part]
        if not slot.acquire(blocking=False):
            raise UnavailableError(f"{TITLES[part]} does not answer; earlier requests to it are still waiting")
        call = _Call(work)
        threading.Thread(target=call.run, args=(slot,), name=f"updraft-{part}", daemon=True).start()
        if not call.done.wait(self.seconds):
            raise UnavailableError(f"{TITLES[part]} did not answer within {self.seconds:g} s")
        if call.error is not None:
            raise call.error
        return call.result[0]
