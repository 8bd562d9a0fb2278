"""Limit the size of what is written: refuse names that are too long, and shorten prose and evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, overload

from updraft.exceptions import LimitError, RefusedError
from updraft.lifecycle import Evidence, Verdict

PROSE_CHARS = 2_000
EVIDENCE_BYTES = 64 * 1024
DOCUMENT_BYTES = 1024 * 1024


def identifier(field: str, value: str, limit_chars: int) -> str:
    """Return a valid identifier. Raises RefusedError if it is empty, too long, or has characters that are not
    allowed."""
    if not value or len(value) > limit_chars or not value.isprintable():
        shown = value if len(value) <= 60 else f"{value[:60]}…"
        raise RefusedError(f"{field}: {shown!r} must be 1 to {limit_chars} printable characters")
    return value


def message(text: str) -> str:
    """Return a reason for people, shortened to PROSE_CHARS and without characters that a database refuses."""
    clean = text.replace("\x00", "").encode("utf-8", "replace").decode()
    return clean if len(clean) <= PROSE_CHARS else clean[: PROSE_CHARS - 1] + "…"


@overload
def document(field: str, value: Mapping[str, Any]) -> dict[str, Any]: ...


@overload
def document(field: str, value: object) -> object: ...


def document(field: str, value: object) -> object:
    """Return a JSON document that must be kept whole. Raises LimitError above DOCUMENT_BYTES."""
    plain_value = plain(value)
    size_bytes = len(json.dumps(plain_value))
    if size_bytes > DOCUMENT_BYTES:
        raise LimitError(f"{field}: {size_bytes} bytes of JSON, but the ledger keeps at most {DOCUMENT_BYTES}")
    return plain_value


def evidence(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return evidence as JSON. A document that is too large is shortened, not refused: evidence must never be the
    reason that a verdict is lost."""
    whole: dict[str, Any] = plain(dict(value or {}))
    if len(json.dumps(whole)) <= EVIDENCE_BYTES:
        return whole
    short: dict[str, Any] = plain(whole, limit_chars=PROSE_CHARS)
    text = json.dumps(short)
    if len(text) <= EVIDENCE_BYTES:
        return short
    return {"shortened": True, "bytes": len(text), "beginning": text[: EVIDENCE_BYTES // 4]}


def verdict(given: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON that `Verdict.from_json` reads. Evidence beside its known fields goes to `details`."""
    raw: dict[str, Any] = plain(_evidence_fields(given.evidence))
    known = {name: raw.pop(name) for name in [*raw] if name in Evidence.__dataclass_fields__}
    details = evidence({**raw, **(known.pop("details", None) or {})})
    return {"state": given.state.value, "reason": message(given.reason), "evidence": {**known, "details": details}}


def _evidence_fields(given: Any) -> Mapping[str, Any]:
    return asdict(given) if isinstance(given, Evidence) else dict(given)


@overload
def plain(value: Mapping[str, Any], limit_chars: int | None = None) -> dict[str, Any]: ...


@overload
def plain(value: object, limit_chars: int | None = None) -> object: ...


def plain(value: object, limit_chars: int | None = None) -> object:
    """Return the value as JSON has it: string keys, no NUL, and NaN and infinities as text, because no database takes
    them as numbers."""
    if isinstance(value, Mapping):
        return {str(plain(str(key))): plain(item, limit_chars) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, limit_chars) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value).replace("\x00", "")
    return text if limit_chars is None or len(text) <= limit_chars else text[: limit_chars - 1] + "…"
