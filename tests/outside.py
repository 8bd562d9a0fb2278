"""`Services` of fakes, for tests of what guards jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from updraft.services import Services
from updraft.settings import settings
from updraft.timing import TIMING, Timing


class Instead:
    """An object of which some attributes are others; the rest are its own, to read and to call."""

    def __init__(self, of: Any, **others: Any) -> None:
        self.__dict__.update(others)
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class Outside:
    """What the code under test reaches outside of its process. A test sets what is used; the rest does not exist."""

    ledger: Any
    store: Any
    cluster: Any
    mlflow: Any
    run: Callable[[str], Any]  # MLflow's REST API for a run
    watch: Any  # the PodWatch of every namespace

    def __init__(self) -> None:
        self.nodes: Sequence[dict[str, Any]] | Exception = []
        self.timing: Timing = TIMING

    @property
    def services(self) -> Services:
        """With the settings of this moment."""
        return Services(
            settings=settings(),
            open_ledger=lambda: self.ledger,
            open_store=lambda: self.store,
            open_cluster=lambda: self.cluster,
            open_tracking=lambda: self.mlflow,
            open_run=lambda run_id, _seconds: self.run(run_id),
            watch_pods=self.watch_pods,
            list_nodes=lambda conn_id: self.list_nodes(conn_id),
            timing=self.timing,
        )

    def watch_pods(self, conn_id: str, namespace: str) -> AbstractAsyncContextManager[Any]:
        @asynccontextmanager
        async def watching() -> Any:
            yield self.watch

        return watching()

    async def list_nodes(self, conn_id: str) -> list[dict[str, Any]]:
        if isinstance(self.nodes, Exception):
            raise self.nodes
        return list(self.nodes)
