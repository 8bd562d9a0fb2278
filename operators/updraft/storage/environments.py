"""Write the request to the pod that builds a job's packages, and parse what the pod stored, with limits."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from updraft.exceptions import UnavailableError, UpdraftError
from updraft.storage.errors import platform_errors
from updraft.storage.prepared import SHA256, PrepareProblem
from updraft_learner.contract import Keys
from updraft_learner.environment.documents import DOCUMENT_LIMIT_BYTES, LOCK_LIMIT_BYTES, EnvironmentRequest
from updraft_learner.store import ObjectStore


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True)


class BuiltEnvironment(_Read):
    """The packages of a job: their tree, the key that equal environments share, and the lock."""

    tree: str = Field(pattern=SHA256)
    key: str = Field(pattern=SHA256)
    lock: str = Field(max_length=LOCK_LIMIT_BYTES)
    reused: bool = False


class BuildAnswer(_Read):
    """What one attempt of the role `build` stored."""

    built: BuiltEnvironment | None = None
    error: PrepareProblem | None = None


def put_request(tenant: str, job_id: str, attempt: int, request: EnvironmentRequest, *, store: ObjectStore) -> None:
    """Write the request before the attempt's pod exists. A second call changes nothing."""
    with platform_errors():
        store.put_bytes(Keys(tenant).environment_request(job_id, attempt), request.to_json().encode())


def read_built(tenant: str, job_id: str, attempt: int, *, store: ObjectStore) -> BuildAnswer | None:
    """Return what the attempt left; None when it left nothing.

    Raises UnavailableError, UpdraftError for what is no such document.
    """
    with platform_errors():
        text = store.get_bytes(Keys(tenant).environment_built(job_id, attempt), DOCUMENT_LIMIT_BYTES)
    if text is None:
        return None
    try:
        return BuildAnswer.model_validate_json(text)
    except ValidationError as exc:
        wrong = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors()[:5])
        raise UpdraftError(f"what attempt {attempt} of build left cannot be read ({wrong}); submit again") from None


class Resolved(_Read):
    """What was built last for a request."""

    built: BuiltEnvironment
    at: datetime


def put_resolved(tenant: str, digest: str, resolved: Resolved, *, store: ObjectStore) -> None:
    """Remember what was built for the request with this digest."""
    with platform_errors():
        store.put_bytes(Keys(tenant).resolved(digest), resolved.model_dump_json().encode())


def find_resolved(tenant: str, digest: str, *, store: ObjectStore) -> Resolved | None:
    """Return what was built last for the request with this digest; None if it is not known, or no longer stored.

    Raises UnavailableError.
    """
    with platform_errors():
        text = store.get_bytes(Keys(tenant).resolved(digest), DOCUMENT_LIMIT_BYTES)
    try:
        found = None if text is None else Resolved.model_validate_json(text)
    except ValidationError:
        return None
    if found is None:
        return None
    with platform_errors():
        return found if store.size(Keys(tenant).tree(found.built.tree)) is not None else None


def reason_of(tenant: str, job_id: str, attempt: int, *, store: ObjectStore) -> str | None:
    """Return the reason that the attempt itself gave for its failure, or None if there is none that can be read."""
    try:
        found = read_built(tenant, job_id, attempt, store=store)
    except UnavailableError:
        raise
    except UpdraftError:
        return None
    return None if found is None or found.error is None else str(found.error.error())
