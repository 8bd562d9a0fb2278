"""Define the request to the pod that builds an environment, and its answer, as JSON in the object store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

LIMIT_FILES = 200_000
DOCUMENT_LIMIT_BYTES = 16 << 20  # of the request, the report and the answer: the lock text is the largest part
LOCK_LIMIT_BYTES = 4 << 20
KNOWN = 10_000  # environments of a tenant that a pod is told of
LOG_IN = ("username", "password", "token")  # keys of an index's secret


def log_in_variable(number: int, key: str) -> str:
    """Name the variable of the build that holds a value of the secret of the index of that number, from 0."""
    return f"UPDRAFT_INDEX_{number}_{key.upper()}"


@dataclass(frozen=True)
class EnvironmentRequest:
    """The request to one pod.

    Args:
        image: The image of the job, as the manifest or the platform names it.
        python: The version that its Python must have.
        requirements: As the manifest lists them; with `file` none.
        file: The file of requirements, below the code's folder.
        indexes: Addresses, without log-in; the last one is the default index.
        seconds: For resolving and installing together.
    """

    image: str
    indexes: tuple[str, ...]
    python: str | None = None
    requirements: tuple[str, ...] = ()
    file: str | None = None
    seconds: int = 1800
    limit_bytes: int = 10 << 30

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> EnvironmentRequest:
        raw = json.loads(text)
        return cls(**{**raw, "indexes": tuple(raw["indexes"]), "requirements": tuple(raw["requirements"])})


def answer(built: Mapping[str, Any] | None = None, error: Mapping[str, str] | None = None) -> bytes:
    """Return the document at `Keys.environment_built`: {tree, key, lock, reused} of what was built, or what went
    wrong; both are None where the build was interrupted."""
    return json.dumps({"built": built, "error": error}, sort_keys=True).encode()
