"""What the fault lab can be asked for: the bodies of `POST /faults`. `faultlab` carries them out.

{"kind": "evict", "namespace", "pod", "message"?, "grace_seconds"?}   the pod fails with reason Evicted
{"kind": "kill_container", "namespace", "pod", "container"?, "signal"?}   the program gets a signal, SIGKILL by default
{"kind": "oom", "namespace", "pod", "container"?}                     killed as by its memory limit
{"kind": "freeze_container" | "thaw_container", "namespace", "pod", "container"?}   SIGSTOP, SIGCONT to all of it
{"kind": "lose_node", "node"?, "delete_after_seconds"?, "gone_after_seconds"?, "timeout_seconds"?, "replace"?}
{"kind": "find_node", "node"?}                                        the lost node answers again
{"kind": "cordon" | "uncordon", "node"?}                              nodes take no new pods
{"kind": "small_disks", "bytes"}                                      new pods get disks of that size; null ends it
{"kind": "disk_full", "namespace", "pod", "left_bytes"?}              writes to the pod's volumes fail with ENOSPC
{"kind": "disk_free", "namespace", "pod"}                             there is room again
{"kind": "pull_fails", "count", "for_seconds"?, "message"?}           the next `count` pods cannot pull their images
{"kind": "api_errors", "status": 429|4xx|5xx, "count"?, "for_seconds"?, "method"?, "path"?, "executed"?, ...}
                          the next requests (of that method, with that text in their path) fail
{"kind": "cut", "for_seconds", "how"?}                                API clients are cut off; "close" or "hang"
{"kind": "drop_watches"}                                              every open watch breaks off
{"kind": "lag", "seconds"}                                            every answer comes so much later; 0 ends it
"""

from __future__ import annotations

import signal
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from updraft_localnode.errors import StatusCause, bad_request, invalid


class _Fault(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _OfPod(_Fault):
    namespace: str
    pod: str


class Evict(_OfPod):
    kind: Literal["evict"]
    message: str = "The node was low on resource: memory."
    grace_seconds: float = Field(0, ge=0)


class _OfContainer(_OfPod):
    container: str | None = None  # the program


class KillContainer(_OfContainer):
    kind: Literal["kill_container"]
    signal: str = "SIGKILL"

    @field_validator("signal")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in signal.Signals.__members__:
            raise ValueError(f"{name!r} is no signal; write for example SIGKILL, SIGTERM or SIGSEGV")
        return name


class Oom(_OfContainer):
    kind: Literal["oom"]


class FreezeContainer(_OfContainer):
    kind: Literal["freeze_container"]


class ThawContainer(_OfContainer):
    kind: Literal["thaw_container"]


class LoseNode(_Fault):
    kind: Literal["lose_node"]
    node: str | None = None
    delete_after_seconds: float | None = Field(5.0, ge=0)  # None: never
    gone_after_seconds: float | None = Field(1.0, ge=0)  # None: its pods stay Terminating
    timeout_seconds: float = Field(3.0, ge=0, le=600)
    replace: bool = True


class FindNode(_Fault):
    kind: Literal["find_node"]
    node: str | None = None


class Cordon(_Fault):
    kind: Literal["cordon", "uncordon"]
    node: str | None = None


class SmallDisks(_Fault):
    kind: Literal["small_disks"]
    bytes: int | None = Field(ge=1 << 20, le=1 << 40)


class DiskFull(_OfPod):
    kind: Literal["disk_full"]
    left_bytes: int = Field(0, ge=0)


class DiskFree(_OfPod):
    kind: Literal["disk_free"]


class PullFails(_Fault):
    kind: Literal["pull_fails"]
    count: int = Field(ge=0)
    for_seconds: float = Field(5.0, ge=0)
    message: str = (
        'failed to pull and unpack image "{image}": failed to resolve reference "{image}": failed to do request: '
        "dial tcp 127.0.0.1:443: i/o timeout"
    )


class ApiErrors(_Fault):
    kind: Literal["api_errors"]
    status: int = Field(ge=400, le=599)
    count: int | None = Field(None, ge=0)
    for_seconds: float | None = Field(None, ge=0)
    retry_after_seconds: int = Field(1, ge=0)
    method: str | None = None
    path: str = ""
    executed: bool = False

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.count is None and self.for_seconds is None:
            raise ValueError("give count (so many requests fail), for_seconds (all fail for so long), or both")
        return self


class Cut(_Fault):
    kind: Literal["cut"]
    for_seconds: float = Field(gt=0, le=86400)
    how: Literal["close", "hang"] = "close"


class DropWatches(_Fault):
    kind: Literal["drop_watches"]


class Lag(_Fault):
    kind: Literal["lag"]
    seconds: float = Field(ge=0, le=600)


AnyFault = (
    Evict
    | KillContainer
    | Oom
    | FreezeContainer
    | ThawContainer
    | LoseNode
    | FindNode
    | Cordon
    | SmallDisks
    | DiskFull
    | DiskFree
    | PullFails
    | Cut
    | ApiErrors
    | DropWatches
    | Lag
)
_ADAPTER: TypeAdapter[AnyFault] = TypeAdapter(Annotated[AnyFault, Field(discriminator="kind")])


def parse_fault(body: object) -> AnyFault:
    """Parse a fault. Raises StatusError 400 or 422."""
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object with a kind")
    try:
        return _ADAPTER.validate_python(body)
    except ValidationError as exc:
        causes = [
            StatusCause("FieldValueInvalid", e["msg"], ".".join(map(str, e["loc"][1:])) or "kind") for e in exc.errors()
        ]
        raise invalid("Fault", str(body.get("kind", "")), causes) from exc
