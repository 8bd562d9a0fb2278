"""Make a call of the cluster's API: retry it if that may help, and raise one of our errors if it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import RetryCallState, Retrying, nap, retry_if_exception, stop_after_attempt, wait_random_exponential

from updraft.exceptions import QuotaError, RefusedError, UnavailableError
from updraft.kubernetes import errors
from updraft.kubernetes.readiness import still_starting
from updraft.kubernetes.throttling import asked_pause_seconds, throttled

if TYPE_CHECKING:
    from kubernetes.client.exceptions import ApiException

T = TypeVar("T")
TIMEOUT_SECONDS = 30
EXISTS = (errors.AlreadyExistsError,)
GONE = (errors.ObjectNotFoundError,)


def call(
    what: str,
    function: Callable[..., T],
    *args: Any,
    ok: tuple[type[errors.ApiError], ...] = (),
    sleep: Callable[[float], None] = nap.sleep,
    **kwargs: Any,
) -> T | None:
    """Make one request, with retries and back-off where they may help; return None for an error in `ok`.

    `function` gets `args` and `kwargs`; `sleep` waits between the attempts.

    Raises UnavailableError, QuotaError where a quota has no room for it, RefusedError.
    """
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    client = getattr(getattr(function, "__self__", None), "api_client", None)

    def asked() -> T:
        try:
            return function(*args, _request_timeout=TIMEOUT_SECONDS, **kwargs)
        except ApiException as exc:
            error = errors.error_of(exc)
            forbidden = isinstance(error, errors.ForbiddenError) and not isinstance(error, errors.QuotaExceededError)
            if forbidden and not isinstance(error, ok) and client is not None and still_starting(client):
                raise UnavailableError(
                    f"The cluster did not {what}: it is starting, and refuses everybody (403)"
                ) from exc
            raise error from exc

    def transient(exc: BaseException) -> bool:
        return isinstance(exc, errors.TransientError | HTTPError | UnavailableError)

    def pause_seconds(state: RetryCallState) -> float:
        failed = state.outcome.exception() if state.outcome is not None else None
        refused = failed.__cause__ if isinstance(failed, errors.ApiError) else failed
        return max(back_off(state), asked_pause_seconds(refused))

    back_off = wait_random_exponential(multiplier=0.5, max=10)
    try:
        for attempt in Retrying(
            retry=retry_if_exception(transient),
            stop=stop_after_attempt(6),
            wait=pause_seconds,
            sleep=sleep,
            reraise=True,
        ):
            with attempt:
                return asked()
        raise AssertionError("unreachable: the last failure is raised")
    except ok:
        return None
    except errors.UnauthorizedError as exc:  # for instance, an expired token: learners run without it
        raise UnavailableError(
            f"The cluster did not {what}: it does not accept the platform's token (401); put a valid one into the "
            "kubeconfig of the platform's connection"
        ) from exc
    except errors.TransientError as exc:
        raise UnavailableError(f"The cluster did not {what}: it answered {exc.status} six times") from exc
    except errors.QuotaExceededError as exc:
        raise QuotaError(f"The cluster refused to {what}: {exc}") from exc
    except errors.ApiError as exc:
        raise RefusedError(f"The cluster refused to {what}: {exc}") from exc
    except AttributeError as exc:
        if (handshake := failed_handshake(exc)) is None:
            raise
        raise UnavailableError(
            f"The cluster did not {what}: no safe connection could be made ({handshake.reason}); correct the address "
            "and the certificate-authority-data in the kubeconfig of the platform's connection"
        ) from exc
    except HTTPError as exc:
        if throttled(exc):
            raise UnavailableError(f"The cluster did not {what}: it has too many requests to answer (429)") from exc
        server = f" at {client.configuration.host}" if client is not None else ""
        raise UnavailableError(
            f"The cluster did not {what}: nothing answers{server} ({type(exc).__name__}); start it, or correct the "
            "server's address in the kubeconfig of the platform's connection"
        ) from exc


def failed_handshake(exc: AttributeError) -> ApiException | None:
    """Return the ApiException with status 0 that the client means where TLS failed, and trips over; None for anything
    else."""
    from kubernetes.client.exceptions import ApiException

    meant = exc.__context__
    return meant if isinstance(meant, ApiException) and meant.status == 0 else None
