"""Define the errors of the loopback endpoint, in the form that MLflow's clients convert to their own exceptions."""

from __future__ import annotations

import errno


class EndpointError(Exception):
    """A request was refused; this is the answer."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message)
        self.code, self.status = code, status

    @classmethod
    def unauthenticated(cls, message: str) -> EndpointError:
        return cls("UNAUTHENTICATED", message, 401)

    @classmethod
    def permission(cls, message: str) -> EndpointError:
        return cls("PERMISSION_DENIED", message, 403)

    @classmethod
    def invalid(cls, message: str) -> EndpointError:
        return cls("INVALID_PARAMETER_VALUE", message, 400)

    @classmethod
    def missing(cls, message: str) -> EndpointError:
        return cls("RESOURCE_DOES_NOT_EXIST", message, 404)

    @classmethod
    def away(cls, message: str) -> EndpointError:
        """Return an error after which clients retry by themselves."""
        return cls("TEMPORARILY_UNAVAILABLE", f"{message}; what was logged is kept and sent later", 503)

    @classmethod
    def disk(cls, exc: OSError) -> EndpointError:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the pod's disk is full" if full else f"the sidecar cannot write to disk ({exc.strerror})"
        return cls("RESOURCE_EXHAUSTED" if full else "INTERNAL_ERROR", reason, 507)
