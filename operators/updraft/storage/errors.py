"""Errors of the learner package's store and trees, as errors of the platform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from updraft.exceptions import DataError, LimitError, NotFoundError, UnavailableError, UpdraftError
from updraft_learner.store import StorageError
from updraft_learner.trees import TreeError


@contextmanager
def platform_errors() -> Iterator[None]:
    """For the platform's own bucket: what is wrong there is not the user's fault."""
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
def source_errors(what: str, secret_name: str | None) -> Iterator[None]:
    """For a bucket that the user named: what is wrong there is for the user to correct."""
    try:
        yield
    except StorageError as exc:
        if exc.kind == "unreachable":
            raise UnavailableError(f"{what}: {exc}") from exc
        if exc.kind == "denied":
            used = (
                f"secret {secret_name!r} was used"
                if secret_name
                else "no secret was named, the platform's own was used"
            )
            raise DataError(f"{what}: {exc}; {used}") from exc
        raise DataError(f"{what}: {exc}") from exc


@contextmanager
def tree_errors(what: str) -> Iterator[None]:
    """For a folder or an archive of the user."""
    try:
        yield
    except TreeError as exc:
        # Trees know one kind of error; the sentences about limits all say so.
        kind = LimitError if "the limit is" in str(exc) or "the limit of" in str(exc) else DataError
        raise kind(f"{what}: {exc}") from exc
