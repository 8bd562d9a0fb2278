"""GET /health: the health of each part. The CLI asks for it before it submits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fastapi import APIRouter

from updraft.api.depends import PartsDep
from updraft.api.parts import Parts
from updraft.exceptions import UpdraftError
from updraft.schemas import Health, Limits, PartHealth

router = APIRouter(tags=["health"])


@router.get("/health", summary="Whether each part that a new job needs answers")
def health(parts: PartsDep) -> Health:
    checks: dict[str, Callable[[], str]] = {
        "ledger": parts.check_ledger,
        "storage": parts.store.check,
        "mlflow": parts.tracking.check,
        "cluster": parts.cluster.check,
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        found = list(pool.map(lambda item: _check(parts, *item), checks.items()))
    limits = Limits(code_bytes=parts.settings.code_limit_bytes, data_bytes=parts.settings.data_limit_bytes)
    return Health(ok=all(part.ok for part in found), parts=tuple(found), limits=limits)


def _check(parts: Parts, name: str, check: Callable[[], str]) -> PartHealth:
    try:
        return PartHealth(name=name, ok=True, detail=parts.deadline.call(name, check))
    except UpdraftError as exc:
        return PartHealth(name=name, ok=False, detail=str(exc))
