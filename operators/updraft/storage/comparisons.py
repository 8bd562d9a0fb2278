"""Write the request to the pod that compares two models, and parse what it stored, with limits."""

from __future__ import annotations

from pydantic import ValidationError

from updraft.exceptions import DataError
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.storage.errors import platform_errors
from updraft_data.gate import CompareRequest, Comparison
from updraft_learner.contract import COMPARISON_FILE, GATE_REPORT_FILE, Keys
from updraft_learner.store import ObjectStore

COMPARISON_LIMIT_BYTES = 1024**2
REPORT_LIMIT_BYTES = 16 * 1024**2


def has_results(tenant: str, job_id: str, *, store: ObjectStore) -> bool:
    """Return whether the results of the job's training are stored."""
    with platform_errors():
        return any(True for _ in store.list(f"{Keys(tenant).results(job_id, TRAIN_ROLE, 1)}/"))


def put_request(
    tenant: str, job_id: str, role: str, attempt: int, request: CompareRequest, *, store: ObjectStore
) -> None:
    """Write the request before the attempt's pod exists. A second call changes nothing."""
    with platform_errors():
        key = Keys(tenant).compare_request(job_id, role, attempt)
        store.put_bytes(key, request.model_dump_json().encode())


def read(tenant: str, job_id: str, role: str, *, store: ObjectStore) -> Comparison:
    """Return what the role's pod found. Raises DataError for what is no such document, UnavailableError."""
    with platform_errors():
        key = f"{Keys(tenant).results(job_id, role, 1)}/{COMPARISON_FILE}"
        text = store.get_bytes(key, COMPARISON_LIMIT_BYTES)
    if text is None:
        raise DataError(f"{role}: its pod left no {COMPARISON_FILE}; submit the job again")
    try:
        return Comparison.model_validate_json(text)
    except ValidationError as exc:
        wrong = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors()[:5])
        raise DataError(f"{role}: {COMPARISON_FILE} cannot be read ({wrong}); submit the job again") from None


def report(tenant: str, job_id: str, role: str, *, store: ObjectStore) -> str | None:
    """Return the page that the role's pod wrote; None if there is none."""
    with platform_errors():
        text = store.get_bytes(f"{Keys(tenant).results(job_id, role, 1)}/{GATE_REPORT_FILE}", REPORT_LIMIT_BYTES)
    return None if text is None else text.decode(errors="replace")
