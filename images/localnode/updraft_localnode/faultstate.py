"""Hold the faults that affect requests and image pulls now: errors, delay, a cut, failing pulls.

They end with the process. Faults of pods and nodes last longer, see `faultlab`. Used by `server` and `kubelet`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from updraft_localnode.errors import Json, StatusError
from updraft_localnode.faults import ApiErrors, Cut, PullFails


@dataclass
class FaultState:
    """The current faults. Times are seconds of `clock`."""

    clock: Callable[[], float] = time.monotonic
    lag_seconds: float = 0.0
    watch_epoch: int = 0  # a watch that began in an earlier epoch is broken off
    _errors: ApiErrors | None = None
    _errors_left: float = 0.0  # infinite if only the time limits the errors
    _errors_until: float = 0.0
    _cut: Cut | None = None
    _cut_until: float = 0.0
    _pulls: PullFails | None = None
    _pulls_left: int = 0
    _failing_pulls: dict[str, float] = field(default_factory=dict)  # pod's uid -> when its pulls work again

    # --- Errors ---------------------------------------------------------------------------------------
    def set_errors(self, fault: ApiErrors) -> None:
        self._errors = fault
        self._errors_left = float("inf") if fault.count is None else fault.count
        self._errors_until = float("inf") if fault.for_seconds is None else self.clock() + fault.for_seconds

    def take_error(self, method: str, path: str) -> ApiErrors | None:
        """Return the error that this request has to get, if any; it is counted."""
        fault = self._errors
        if fault is None or self._errors_left <= 0 or self.clock() >= self._errors_until:
            return None
        if fault.path not in path or fault.method not in (None, method):
            return None
        self._errors_left -= 1
        return fault

    # --- A cut ----------------------------------------------------------------------------------------
    def set_cut(self, fault: Cut) -> None:
        self._cut, self._cut_until = fault, self.clock() + fault.for_seconds

    @property
    def cut(self) -> str | None:
        """Return how API clients are cut off now: close, hang, or not at all."""
        return self._cut.how if self._cut is not None and self.clock() < self._cut_until else None

    @property
    def cut_seconds_left(self) -> float:
        return max(self._cut_until - self.clock(), 0.0)

    # --- Images ---------------------------------------------------------------------------------------
    def set_pulls(self, fault: PullFails) -> None:
        self._pulls, self._pulls_left = fault, fault.count

    def pull_problem(self, pod_uid: str, image: str) -> str | None:
        """Return why a pod's image cannot be pulled now. Pulls fail for the first `count` pods that ask, from their
        first question on."""
        fault = self._pulls
        if fault is None:
            return None
        if pod_uid not in self._failing_pulls and self._pulls_left > 0:
            self._pulls_left -= 1
            self._failing_pulls[pod_uid] = self.clock() + fault.for_seconds
        failing = self.clock() < self._failing_pulls.get(pod_uid, 0.0)
        return fault.message.replace("{image}", image) if failing else None

    # --- All ------------------------------------------------------------------------------------------
    def to_json(self) -> Json:
        now = self.clock()
        errors, left = self._errors, self._errors_left
        on = errors is not None and left > 0 and now < self._errors_until
        seconds = self._errors_until - now
        return {
            "lag_seconds": self.lag_seconds,
            "api_errors_left": int(left) if on and left != float("inf") else 0,
            "api_errors": {
                **errors.model_dump(exclude={"kind"}),
                "count": None if left == float("inf") else int(left),
                "for_seconds": None if seconds == float("inf") else round(seconds, 1),
            }
            if on and errors is not None
            else None,
            "cut": None if self.cut is None else {"how": self.cut, "for_seconds": round(self.cut_seconds_left, 1)},
            "pull_fails": {
                "count": self._pulls_left,
                "pods": [uid for uid, until in self._failing_pulls.items() if now < until],
            },
        }

    def clear(self) -> None:
        self.lag_seconds, self._errors, self._cut, self._pulls = 0.0, None, None, None
        self._pulls_left = 0
        self._failing_pulls.clear()


def error_of(fault: ApiErrors) -> StatusError:
    if fault.status == 429:
        message = "The apiserver is busy; try again later (fault lab)"
        return StatusError(429, "TooManyRequests", message, retry_after_seconds=fault.retry_after_seconds)
    return StatusError(fault.status, "InternalError", f"status {fault.status} was asked for (fault lab)")
