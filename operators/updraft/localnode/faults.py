"""The fault lab: makes the local node misbehave on request (`POST /faults`, `GET /faults`).

{"kind": "evict", "namespace", "pod", "message"?, "grace_seconds"?}   the pod fails with reason Evicted
{"kind": "api_errors", "status": 429|4xx|5xx, "count", "retry_after_seconds"?, "method"?, "path"?}
                          the next `count` requests (of that method, with that text in their path) fail
{"kind": "drop_watches"}                                              every open watch breaks off
{"kind": "lag", "seconds"}                                            every answer comes so much later; 0 ends it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from updraft.localnode.errors import ApiError, Cause, Json, bad_request, invalid


class _Fault(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evict(_Fault):
    kind: Literal["evict"]
    namespace: str
    pod: str
    message: str = "The node was low on resource: memory."
    grace_seconds: float = Field(0, ge=0)


class ApiErrors(_Fault):
    kind: Literal["api_errors"]
    status: int = Field(ge=400, le=599)
    count: int = Field(ge=0)
    retry_after_seconds: int = Field(1, ge=0)
    method: str | None = None
    path: str = ""


class DropWatches(_Fault):
    kind: Literal["drop_watches"]


class Lag(_Fault):
    kind: Literal["lag"]
    seconds: float = Field(ge=0, le=600)


Fault = Annotated[Evict | ApiErrors | DropWatches | Lag, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Evict | ApiErrors | DropWatches | Lag] = TypeAdapter(Fault)


def parse_fault(body: object) -> Evict | ApiErrors | DropWatches | Lag:
    """Raises ApiError 400 or 422."""
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object with a kind")
    try:
        return _ADAPTER.validate_python(body)
    except ValidationError as exc:
        causes = [
            Cause("FieldValueInvalid", e["msg"], ".".join(map(str, e["loc"][1:])) or "kind") for e in exc.errors()
        ]
        raise invalid("Fault", str(body.get("kind", "")), causes) from exc


@dataclass
class FaultState:
    """What is switched on now."""

    lag_seconds: float = 0.0
    errors: ApiErrors | None = None
    errors_left: int = 0
    watch_epoch: int = 0  # a watch that began in an earlier epoch breaks off

    def apply(self, fault: ApiErrors | DropWatches | Lag) -> None:
        if isinstance(fault, Lag):
            self.lag_seconds = fault.seconds
        elif isinstance(fault, ApiErrors):
            self.errors, self.errors_left = fault, fault.count
        else:
            self.watch_epoch += 1

    def next_error(self, method: str, path: str) -> ApiError | None:
        """The error that this request has to get, if any."""
        fault = self.errors
        if fault is None or self.errors_left <= 0 or fault.path not in path or fault.method not in (None, method):
            return None
        self.errors_left -= 1
        if fault.status == 429:
            message = "The apiserver is busy; try again later (fault lab)"
            return ApiError(429, "TooManyRequests", message, retry_after_seconds=fault.retry_after_seconds)
        return ApiError(fault.status, "InternalError", f"status {fault.status} was asked for (fault lab)")

    def to_json(self) -> Json:
        return {"lag_seconds": self.lag_seconds, "api_errors_left": self.errors_left}
