"""Define the request to the pod that prepares code and data, and its answer, as JSON in the object store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# Environment variables of the program, by the keys of the manifest's code_secret, which belongs to the tenant.
CREDENTIALS = {key: f"UPDRAFT_CODE_{key.upper()}" for key in ("token", "username", "password")}
CODE = "code"  # the source name of the code
LIMIT_FILES = 200_000
REPORT_LIMIT_BYTES = 4 << 20  # of the program's report: 2,000 expectations with a sentence each
REQUEST_LIMIT_BYTES = 4 << 20
OUTCOME_LIMIT_BYTES = REPORT_LIMIT_BYTES + (1 << 20)


def data_name(number: int) -> str:
    """Name of the manifest's n-th data set, from 0; a folder in the pod is called so too."""
    return f"data-{number}"


@dataclass(frozen=True)
class SourceRequest:
    """One source to prepare. Only the fields of its kind are set, as in the manifest's `Source`."""

    name: str
    source: str  # as the manifest has it, for messages
    kind: Literal["s3", "git", "tree"]
    limit_bytes: int
    bucket: str = ""
    key: str = ""
    url: str = ""
    ref: str = ""
    subfolder: str = ""
    tree: str = ""  # of kind `tree`: a tree that is in the content store
    secret: str | None = None
    unpack: bool = False  # whether a source of one file is an archive
    stream: bool = False  # only listed: learners read the objects themselves
    suite: dict[str, Any] | None = None
    format: str = "auto"
    judged: tuple[str, ...] = ()  # trees for which the suite's result is known

    def made(self) -> bool:
        """Return whether the program makes its files, and not the copy."""
        return self.kind == "git" or self.unpack


@dataclass(frozen=True)
class PrepareRequest:
    """The request to one pod."""

    sources: tuple[SourceRequest, ...]
    protocols: tuple[str, ...] = ("https",)  # that git may use to fetch
    memory_bytes: int = 1 << 30  # for the process that judges one source
    seconds: int = 1800  # for the same process
    limit_files: int = LIMIT_FILES

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> PrepareRequest:
        raw = json.loads(text)
        sources = tuple(SourceRequest(**{**item, "judged": tuple(item["judged"])}) for item in raw.pop("sources"))
        return cls(**{**raw, "sources": sources, "protocols": tuple(raw["protocols"])})


@dataclass(frozen=True)
class Copied:
    """The result of copying one source: its tree in the store, and its origin."""

    tree: str | None = None  # None: the program fetches it
    archive: str | None = None  # name of the file below DATA_DIR/<name>.archive
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PrepareWork:
    """The input of the program, written by the copy; also kept for storing the rest after the program's end."""

    request: PrepareRequest
    copied: Mapping[str, Copied]
    said: tuple[str, ...] = ()  # for users; the program prints it, because users see only its log

    def to_json(self) -> str:
        copied = {name: asdict(one) for name, one in self.copied.items()}
        return json.dumps({"request": json.loads(self.request.to_json()), "copied": copied, "said": self.said})

    @classmethod
    def from_json(cls, text: str | bytes) -> PrepareWork:
        raw = json.loads(text)
        request = PrepareRequest.from_json(json.dumps(raw["request"]))
        return cls(request, {n: Copied(**one) for n, one in raw["copied"].items()}, tuple(raw["said"]))


def outcome(
    sources: Mapping[str, Mapping[str, Any]] | None = None,
    report: Mapping[str, Any] | None = None,
    error: Mapping[str, str] | None = None,
) -> bytes:
    """Return the document at `Keys.prepared`: trees by source's name, what the program reported, what went wrong."""
    document = {"sources": sources or {}, "report": report, "error": error}
    return json.dumps(document, sort_keys=True).encode()
