"""Write the request to the pod that prepares a job's code and data, and parse what the pod stored, with limits.

The platform writes the request; the pod's sidecar writes the trees. The report inside comes from a program that reads
tenants' bytes. It is used only as a result about that tenant's own data, and as text for users.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from updraft.exceptions import UnavailableError, UpdraftError
from updraft.storage.errors import error_of, platform_errors
from updraft_data.drift import Profile
from updraft_data.result import ValidationResult
from updraft_learner.contract import Keys
from updraft_learner.prepare.documents import OUTCOME_LIMIT_BYTES, PrepareRequest
from updraft_learner.prepare.errors import SourceError
from updraft_learner.store import ObjectStore

MESSAGE_CHARACTERS = 2_000
SHA256 = r"^[0-9a-f]{64}$"


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True)


class PrepareProblem(_Read):
    """The reason why a source could not be prepared, or data not be judged."""

    kind: Literal["data", "limit", "refused", "unavailable"]
    message: str

    def error(self) -> UpdraftError:
        """Return the problem as an exception to raise."""
        return error_of(SourceError(self.kind, self.message[:MESSAGE_CHARACTERS]))


class Result(_Read):
    """The result of one suite."""

    success: bool
    evaluated: int = Field(ge=0)
    failed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    statistics: dict[str, int | str] = {}
    duration_seconds: float = 0.0
    profile: Profile | None = None

    def verdict(self) -> ValidationResult:
        """Return the same as the ledger keeps it; what has failures is no success, whatever the report says."""
        return ValidationResult(
            success=self.success and not self.failed,
            evaluated=self.evaluated,
            failed=tuple(text[:MESSAGE_CHARACTERS] for text in self.failed),
            warnings=tuple(text[:MESSAGE_CHARACTERS] for text in self.warnings),
            statistics=dict(self.statistics),
            duration_seconds=self.duration_seconds,
            profile=None if self.profile is None else self.profile.model_dump(mode="json"),
        )


class Judgement(_Read):
    """The result of one source's suite, or the reason why there is none."""

    tree: str = Field(pattern=SHA256)
    result: Result | None = None
    error: PrepareProblem | None = None


class Report(_Read):
    """The report of the pod's program."""

    judged: dict[str, Judgement] = {}


class Provenance(_Read):
    """The origin of a source's files; which fields are set depends on the source's kind."""

    endpoint: str | None = Field(None, max_length=1_000)
    fetched: int | None = None
    unchanged: int | None = None
    archive_sha256: str | None = Field(None, pattern=SHA256)
    repository: str | None = Field(None, max_length=2_000)
    commit: str | None = Field(None, pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")


class Made(_Read):
    """The tree that was made of one source."""

    tree: str = Field(pattern=SHA256)
    provenance: Provenance = Provenance()


class Prepared(_Read):
    """What one attempt of the role `prepare` stored."""

    sources: dict[str, Made] = {}
    report: Report | None = None
    error: PrepareProblem | None = None


def put_request(tenant: str, job_id: str, attempt: int, request: PrepareRequest, *, store: ObjectStore) -> None:
    """Write the request before the attempt's pod exists. A second call changes nothing."""
    with platform_errors():
        key = Keys(tenant).prepare_request(job_id, attempt)
        store.put_bytes(key, request.to_json().encode())


def read_prepared(tenant: str, job_id: str, attempt: int, *, store: ObjectStore) -> Prepared | None:
    """Return what the attempt left; None when it left nothing.

    Raises UnavailableError, UpdraftError for what is no such document.
    """
    with platform_errors():
        text = store.get_bytes(Keys(tenant).prepared(job_id, attempt), OUTCOME_LIMIT_BYTES)
    if text is None:
        return None
    try:
        return Prepared.model_validate_json(text)
    except ValidationError as exc:
        wrong = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors()[:5])
        raise UpdraftError(f"what attempt {attempt} of prepare left cannot be read ({wrong}); submit again") from None


def reason_of(tenant: str, job_id: str, attempt: int, *, store: ObjectStore) -> str | None:
    """Return the reason that the attempt itself gave for its failure, or None if there is none that can be read."""
    try:
        found = read_prepared(tenant, job_id, attempt, store=store)
    except UnavailableError:
        raise
    except UpdraftError:
        return None
    return None if found is None or found.error is None else str(found.error.error())
