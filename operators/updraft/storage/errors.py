"""Convert errors of the learner package's store and trees to errors of the platform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from updraft.exceptions import DataError, LimitError, NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft_learner.prepare.errors import Kind, SourceError
from updraft_learner.store import StorageError


@contextmanager
def platform_errors() -> Iterator[None]:
    """Turn storage errors of the platform's own bucket into UnavailableError and its like: they are not the user's
    fault."""
    try:
        yield
    except StorageError as exc:
        if exc.kind == "missing":
            raise NotFoundError(str(exc)) from exc
        if exc.kind == "unreachable":
            raise UnavailableError(str(exc)) from exc
        if exc.kind == "too large":
            raise LimitError(str(exc)) from exc
        raise UpdraftError(f"The platform's object store: {exc}") from exc


@contextmanager
def source_errors() -> Iterator[None]:
    """Turn storage errors of code and data that the user named into what `updraft_learner.prepare` says of them."""
    try:
        yield
    except SourceError as exc:
        raise error_of(exc) from exc


def error_of(error: SourceError) -> UpdraftError:
    """Return the platform's error of that kind, with the same message."""
    kinds: dict[Kind, type[UpdraftError]] = {
        "data": DataError,
        "limit": LimitError,
        "refused": RefusedError,
        "unavailable": UnavailableError,
    }
    return kinds[error.kind](str(error))
