"""What the fault lab can be asked for: the bodies of `POST /faults`. `faultlab` carries them out.

{"kind": "evict", "namespace", "pod", "message"?, "grace_seconds"?}   the pod fails with reason Evicted
{"kind": "kill_container", "namespace", "pod", "container"?, "signal"?}   the program gets a signal, SIGKILL by default
{"kind": "oom", "namespace", "pod", "container"?}                     killed as by its memory limit
{"kind": "freeze_container" | "thaw_container", "namespace", "pod", "container"?}   SIGSTOP, SIGCONT to all of it
{"kind": "lose_node", "node"?, "delete_after_seconds"?, "gone_after_seconds"?, "timeout_seconds"?, "replace"?}
{"kind": "find_node", "node"?}                                        the lost node answers again
{"kind": "cordon" | "uncordon", "node"?}                              nodes take no new pods
{"kind": "api_errors", "status": 429|4xx|5xx, "count", "retry_after_seconds"?, "method"?, "path"?}
                          the next `count` requests (of that method, with that text in their path) fail
{"kind": "drop_watches"}                                              every open watch breaks off
{"kind": "lag", "seconds"}                                            every answer comes so much later; 0 ends it
"""

from __future__ import annotations

import signal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from updraft.localnode.errors import Cause, bad_request, invalid


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


AnyFault = (
    Evict
    | KillContainer
    | Oom
    | FreezeContainer
    | ThawContainer
    | LoseNode
    | FindNode
    | Cordon
    | ApiErrors
    | DropWatches
    | Lag
)
_ADAPTER: TypeAdapter[AnyFault] = TypeAdapter(Annotated[AnyFault, Field(discriminator="kind")])


def parse_fault(body: object) -> AnyFault:
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
