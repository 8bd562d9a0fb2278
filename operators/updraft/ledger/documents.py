"""Convert the records that the ledger stores whole in one JSON column."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from updraft.exceptions import RefusedError
from updraft.ledger import bounds
from updraft.recovery.evidence import AttemptEvidence

T = TypeVar("T")
SHOWN_FAILURES = 20
_adapters: dict[Any, TypeAdapter[Any]] = {}


def written(field: str, record: T | None, kind: type[T] | None = None) -> object:
    """Return a record as JSON, or None for None. Raises LimitError for one that is too large to be kept whole.

    `kind`: of a record whose class does not say it, such as a dict.
    """
    if record is None:
        return None
    return bounds.document(field, _adapter(kind or type(record)).dump_python(record, mode="json"))


def evidence(record: AttemptEvidence) -> dict[str, Any]:
    """Return the evidence of an attempt as JSON. A record that is too large loses its pods and shortens its texts: its
    exit codes and markers must never be lost, nor be the reason that an attempt cannot be closed."""
    whole: dict[str, Any] = bounds.plain(as_json(record))
    if len(json.dumps(whole)) <= bounds.EVIDENCE_BYTES:
        return whole
    short = replace(record, pods=(), failures=record.failures[:SHOWN_FAILURES])
    shortened: dict[str, Any] = bounds.plain(as_json(short), limit_chars=bounds.PROSE_CHARS)
    return shortened


def as_json(record: object) -> dict[str, Any]:
    """Return a frozen record as JSON, without the fields that have their default."""
    document: dict[str, Any] = _adapter(type(record)).dump_python(record, mode="json", exclude_defaults=True)
    return document


def read(kind: type[T], document: object | None) -> T | None:
    """Return the record that `written` made JSON of; keys that it does not know are left out.

    Raises RefusedError for JSON that is no such record.
    """
    if document is None:
        return None
    try:
        record: T = _adapter(kind).validate_python(document)
    except ValidationError as exc:
        raise RefusedError(
            f"ledger: a stored {getattr(kind, '__name__', kind)} cannot be read: {exc.errors()[0]['msg']}"
        ) from None
    return record


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
