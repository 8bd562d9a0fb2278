"""The JSON of the records that the ledger keeps whole in one column, written and read in one place."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from updraft.exceptions import RefusedError
from updraft.ledger import bounds
from updraft.recovery.policy import PlannedRelaunch
from updraft.recovery.resume import ResumePlan

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (PlannedRelaunch, ResumePlan)}


def written(field: str, record: object | None) -> dict[str, Any] | None:
    """Return a frozen record as JSON. Raises LimitError for one that is too large to be kept whole."""
    if record is None:
        return None
    document: dict[str, Any] = bounds.document(field, _ADAPTERS[type(record)].dump_python(record, mode="json"))
    return document


def read(kind: type[T], document: object | None) -> T | None:
    """Return the record that `written` made JSON of; keys that it does not know are left out.

    Raises RefusedError for JSON that is no such record.
    """
    if document is None:
        return None
    try:
        record: T = _ADAPTERS[kind].validate_python(document)
    except ValidationError as exc:
        raise RefusedError(f"ledger: a stored {kind.__name__} cannot be read: {exc.errors()[0]['msg']}") from None
    return record
