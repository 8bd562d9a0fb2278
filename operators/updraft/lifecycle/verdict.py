"""Define the verdict: the end of a job with its evidence, the same for Airflow, MLflow and the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from updraft.exceptions import UpdraftError
from updraft.lifecycle.states import TERMINAL, State


@dataclass(frozen=True)
class Evidence:
    """The evidence of the verdict, read after the job's end and never from a task's return value."""

    exit_codes: Mapping[str, int | None] = field(default_factory=dict)  # learner's number -> code; None: not seen
    completion_markers: tuple[str, ...] = ()  # numbers of the learners whose marker was found
    final_checkpoint: str | None = None  # name of the newest verified checkpoint
    model_version: str | None = None  # name/version in the registry
    code: str | None = None  # FfDL's error code, such as C201
    details: Mapping[str, Any] = field(default_factory=dict)  # other facts worth keeping; JSON values

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Evidence:
        """Make evidence of loose facts; those that are not fields become details."""
        known = {item.name for item in fields(cls)} - {"details"}
        named = {name: value for name, value in facts.items() if name in known}
        if "completion_markers" in named:
            named["completion_markers"] = tuple(named["completion_markers"])
        return cls(**named, details={name: value for name, value in facts.items() if name not in known})


@dataclass(frozen=True)
class Verdict:
    """A final state, with its reason and its evidence."""

    state: State
    reason: str
    evidence: Evidence = field(default_factory=Evidence)

    def __post_init__(self) -> None:
        if self.state not in TERMINAL:
            raise UpdraftError(f"{self.state} is not an end; a verdict is one of {', '.join(sorted(TERMINAL))}.")
        if not self.reason.strip():
            raise UpdraftError("A verdict needs a reason.")

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Parse a verdict. Raises UpdraftError if `text` is none. Fields of a later version are passed over."""
        try:
            raw = json.loads(text)
            known = {item.name for item in fields(Evidence)}
            evidence = {key: value for key, value in raw["evidence"].items() if key in known}
            if "completion_markers" in evidence:
                evidence["completion_markers"] = tuple(evidence["completion_markers"])
            return cls(State(raw["state"]), raw["reason"], Evidence(**evidence))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise UpdraftError(f"The stored verdict cannot be read ({type(exc).__name__}).") from exc
