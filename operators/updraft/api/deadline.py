"""Limit the time for each part's answer to `SECONDS`: if it is late, a route answers 503 with the part's name. A few
routes give more time.

The libraries that a part's client imports on first use are imported before the time starts: on a busy machine this
alone takes seconds, which is not the part's fault.

A late call continues in its daemon thread until its own library gives up. At most `PARALLEL` such calls per part run;
if all of them hang, further callers are refused at once.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from updraft.exceptions import UnavailableError
from updraft.schemas import PART_TITLES

SECONDS = 5.0
PARALLEL = 16
CLIENTS: Mapping[str, Sequence[str]] = {
    "ledger": ("updraft.ledger",),
    "storage": ("botocore.session", "updraft.storage"),
    "mlflow": ("httpx", "mlflow.store.tracking.rest_store", "updraft.tracking"),
    "cluster": (
        "airflow.providers.cncf.kubernetes.hooks.kubernetes",
        "airflow.providers.cncf.kubernetes.operators.pod",  # /planned builds pods with it; cheap after the hook
        "kubernetes.client",
        "updraft.kubernetes.secrets",
    ),
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
        except BaseException as exc:  # noqa: BLE001 - raised again in the waiting thread
            self.error = exc
        finally:
            slot.release()
            self.done.set()


class ClientImports:
    """The imports of the parts' client libraries, each made once and by one thread at a time.

    Modules of MLflow import each other in a circle: two threads that import them at once find half-initialised modules.
    """

    def __init__(self, clients: Mapping[str, Sequence[str]]) -> None:
        self._clients = clients
        self._importing = {part: threading.Lock() for part in clients}
        self._imported: set[str] = set()

    def of(self, part: str) -> None:
        """Import the client libraries of a part. Raises UnavailableError if one is not installed."""
        if part in self._imported:
            return
        with self._importing[part]:
            try:
                for name in self._clients[part]:
                    importlib.import_module(name)
            except ImportError as exc:
                raise UnavailableError(
                    f"{PART_TITLES[part]} cannot be asked: its client is not installed here ({exc.name})"
                ) from exc
            self._imported.add(part)


PROCESS_IMPORTS = ClientImports(CLIENTS)


class Deadline:
    """Calls of each part, limited in time and number."""

    def __init__(
        self, seconds: float = SECONDS, parallel: int = PARALLEL, imports: ClientImports = PROCESS_IMPORTS
    ) -> None:
        self.seconds, self._imports = seconds, imports
        self._slots = {part: threading.Semaphore(parallel) for part in PART_TITLES}

    def call(self, part: str, work: Callable[[], T], *, seconds: float | None = None) -> T:
        """Return the result of `work`, or its exception; UnavailableError when the part does not answer in time."""
        patience_seconds = self.seconds if seconds is None else seconds
        self._imports.of(part)
        slot = self._slots[part]
        if not slot.acquire(blocking=False):
            raise UnavailableError(f"{PART_TITLES[part]} does not answer; earlier requests to it are still waiting")
        call = _Call(work)
        threading.Thread(target=call.run, args=(slot,), name=f"updraft-{part}", daemon=True).start()
        if not call.done.wait(patience_seconds):
            raise UnavailableError(f"{PART_TITLES[part]} did not answer within {patience_seconds:g} s")
        if call.error is not None:
            raise call.error
        return call.result[0]


def import_client(part: str) -> None:
    """Import the client libraries of a part. In a process with many threads, clients are imported by this function
    and by `Deadline` only."""
    PROCESS_IMPORTS.of(part)
