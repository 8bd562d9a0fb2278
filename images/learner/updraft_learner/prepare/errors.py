"""Define the error for a job's wrong code or data: one class for the pod's containers, with a kind for the platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, cast, get_args

from updraft_learner.contract import ExitCode
from updraft_learner.store import StorageError
from updraft_learner.trees import TreeError, megabytes

Kind = Literal["data", "limit", "refused", "unavailable"]


class SourceError(Exception):
    """A sentence for the job's reason. `kind` tells what can be done: only `unavailable` is worth another try."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind

    @property
    def code(self) -> ExitCode:
        """Return what a container of the pod ends with."""
        return ExitCode.STORAGE if self.kind == "unavailable" else ExitCode.DATA

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "message": str(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> SourceError:
        """Return the error that `to_json` made `document` of; of kind `data` where that is not known."""
        kind = document.get("kind")
        return cls(cast(Kind, kind) if kind in get_args(Kind) else "data", str(document.get("message")))


def check_limit(source: str, size_bytes: int, limit_bytes: int) -> None:
    """Raise SourceError if the source is larger than its limit."""
    if size_bytes > limit_bytes:
        raise SourceError(
            "limit",
            f"{source}: has {megabytes(size_bytes)}, more than the limit of {megabytes(limit_bytes)}; "
            "use less data or ask for a higher limit",
        )


@contextmanager
def bucket_errors(what: str, secret_name: str | None) -> Iterator[None]:
    """Turn errors of a bucket that the user named into SourceError: the user has to correct them."""
    try:
        yield
    except StorageError as exc:
        if exc.kind == "unreachable":
            raise SourceError("unavailable", f"{what}: {exc}") from exc
        if exc.kind == "denied":
            used = (
                f"secret {secret_name!r} was used"
                if secret_name
                else "no secret was named, the platform's own was used"
            )
            raise SourceError("data", f"{what}: {exc}; {used}") from exc
        raise SourceError("data", f"{what}: {exc}") from exc


@contextmanager
def tree_errors(what: str) -> Iterator[None]:
    """Turn errors of a folder or an archive of the user into SourceError."""
    try:
        yield
    except TreeError as exc:
        # Trees have one class of errors; messages about limits all contain one of these words.
        limit = "the limit is" in str(exc) or "the limit of" in str(exc)
        raise SourceError("limit" if limit else "data", f"{what}: {exc}") from exc
