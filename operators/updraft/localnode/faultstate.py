"""What of the fault lab is in every request's way now: errors, delay, watches that break off. Used by `server`.

It ends with the process. What the lab has done to pods and nodes lasts, see `faultlab`.
"""

from __future__ import annotations

from dataclasses import dataclass

from updraft.localnode.errors import ApiError, Json
from updraft.localnode.faults import ApiErrors


@dataclass
class FaultState:
    lag_seconds: float = 0.0
    errors: ApiErrors | None = None
    errors_left: int = 0
    watch_epoch: int = 0  # a watch that began in an earlier epoch breaks off

    def set_errors(self, fault: ApiErrors) -> None:
        self.errors, self.errors_left = fault, fault.count

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

    def clear(self) -> None:
        self.lag_seconds, self.errors, self.errors_left = 0.0, None, 0
