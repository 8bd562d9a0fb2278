"""Provide one authenticated HTTP session with Airflow's api-server: tokens, timeouts, retries, and errors as
exceptions.

Only requests that may be repeated are retried, and only if nothing or only a gateway (502, 503, 504) answered. Used by
`Client`; the only route it knows by name is the log-in's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from updraft.client.config import Connection
from updraft.exceptions import LimitError, NotFoundError, RefusedError, UnavailableError, UpdraftError

TIMEOUT = httpx.Timeout(30.0, connect=5.0, pool=30.0)
SAFE_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})  # our PUTs are named by digest or replace the whole
GATEWAY_STATUSES = frozenset({502, 503, 504})
ATTEMPTS = 4
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Body = bytes | Callable[[], Iterator[bytes]]


class ConflictError(RefusedError):
    """The object to create already exists."""


class InvalidRequestError(RefusedError):
    """The server refused the content. `fields` lists what is wrong, as pairs (field, message)."""

    def __init__(self, message: str, fields: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields
        for _, text in fields:  # shown in tracebacks; the command line prints the fields itself
            self.add_note(text)


class Session:
    """A session with one api-server as one user. Several threads may use it."""

    def __init__(
        self,
        connection: Connection,
        *,
        transport: httpx.BaseTransport | None = None,
        retry_wait_seconds: float = 0.25,
    ) -> None:
        self.connection = connection
        self._http = httpx.Client(
            base_url=connection.airflow_url,
            timeout=TIMEOUT,
            transport=transport,
            follow_redirects=False,
            trust_env=httpx.URL(connection.airflow_url).host not in LOOPBACK,  # no proxy reaches our loopback
        )
        self._token: str | None = None
        self._lock = Lock()
        self._wait = wait_exponential_jitter(
            multiplier=retry_wait_seconds, max=4 * retry_wait_seconds + 1e-9, jitter=retry_wait_seconds
        )

    def close(self) -> None:
        self._http.close()

    def json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: Body | None = None,
        content_length: int | None = None,
        timeout_seconds: float | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Return the decoded answer, which is a JSON object; an empty one for an answer without a body.

        Raises the exceptions of `raise_for`.

        `repeatable`: a POST that changes nothing, so that it may be sent again when no answer came.
        """
        timeout = TIMEOUT if timeout_seconds is None else httpx.Timeout(timeout_seconds, connect=TIMEOUT.connect)
        attempts = ATTEMPTS if repeatable or method in SAFE_METHODS else 1
        response = self._send(
            method, path, attempts, params=params, body=body, content=content, length=content_length, timeout=timeout
        )
        if not response.content:
            return {}
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UnavailableError(
                f"{self.connection.airflow_url} answered {method} {path} with something that is no JSON object; is it "
                "Airflow?"
            )
        return answer

    @contextmanager
    def download(self, path: str, params: Mapping[str, Any]) -> Iterator[httpx.Response]:
        """Open a streamed answer of success; the caller reads it within the context."""
        for fresh in (False, True):
            request = self._http.build_request("GET", path, params=_present(params), headers=self._headers(fresh))
            with self._wrap("GET", path):
                response = self._http.send(request, stream=True)
            try:
                if token_refused(response) and not fresh:
                    continue
                if response.is_error:
                    response.read()
                    raise_for(response, self.connection.airflow_url)
                with self._wrap("GET", path):
                    yield response
                return
            finally:
                response.close()

    def _send(
        self,
        method: str,
        path: str,
        attempts: int,
        *,
        params: Mapping[str, Any] | None,
        body: Any,
        content: Body | None,
        length: int | None,
        timeout: httpx.Timeout,
    ) -> httpx.Response:
        announced = {} if length is None else {"Content-Length": str(length)}

        def once(fresh: bool) -> httpx.Response:
            with self._wrap(method, path):
                return self._http.request(
                    method,
                    path,
                    params=_present(params or {}),
                    json=body,
                    content=content() if callable(content) else content,
                    headers={**self._headers(fresh), **announced},
                    timeout=timeout,
                )

        def attempt() -> httpx.Response:
            response = once(False)
            if token_refused(response):
                response = once(True)
            if response.is_error:
                raise_for(response, self.connection.airflow_url)
            return response

        return self._retrying(attempts)(attempt)

    def _retrying(self, attempts: int) -> Retrying:
        return Retrying(
            stop=stop_after_attempt(attempts),
            wait=self._wait,
            retry=retry_if_exception_type(_TransientError),
            reraise=True,
        )

    @contextmanager
    def _wrap(self, method: str, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as exc:
            raise _TransientError(
                f"Airflow at {self.connection.airflow_url} did not answer {method} {path} "
                f"({type(exc).__name__}); is it up? `updraft status` shows the parts"
            ) from exc

    def _headers(self, fresh: bool) -> dict[str, str]:
        with self._lock:
            if self._token is None or fresh:
                self._token = self._log_in()
            return {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}

    def _log_in(self) -> str:
        if self.connection.token_file is not None:
            return self.connection.token()

        def ask() -> httpx.Response:
            with self._wrap("POST", "/auth/token"):
                response = self._http.post(
                    "/auth/token",
                    json={"username": self.connection.username, "password": self.connection.password},
                )
            if response.status_code in GATEWAY_STATUSES:
                raise_for(response, self.connection.airflow_url)
            return response

        response = self._retrying(ATTEMPTS)(ask)  # a log-in may be repeated
        if response.status_code in (400, 401, 403):
            raise RefusedError(
                f"Airflow at {self.connection.airflow_url} refused the log-in of user {self.connection.username!r}; "
                "the password is wrong or was changed; `updraft login` asks for it, `updraft up` writes its home's"
            )
        try:
            token = response.json()["access_token"]
        except (ValueError, KeyError, TypeError):
            token = None
        if response.is_error or not isinstance(token, str):
            raise UnavailableError(
                f"{self.connection.airflow_url}/auth/token gave {response.status_code} and no token; is it Airflow 3?"
            )
        return token


class _TransientError(UnavailableError):
    """Nothing answered, or only a gateway."""


def _present(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def token_refused(response: httpx.Response) -> bool:
    """Return whether the answer refuses the token. Airflow answers 401 to no token or an expired one, but 403 to one
    that another key has signed."""
    if response.status_code == 403:
        response.read()
        return "Invalid JWT token" in response.text
    return response.status_code == 401


def raise_for(response: httpx.Response, airflow_url: str) -> None:
    """Turn an answer of failure into one of our exceptions, with the server's own message."""
    message, fields, ours = _message(response)
    status = response.status_code
    if token_refused(response):
        raise RefusedError(
            f"Airflow at {airflow_url} does not accept the token; it has expired or is another platform's: renew it in "
            "the token file"
        )
    if status == 403:
        raise RefusedError(f"this user may not do that: {message}")
    if status == 404:
        raise NotFoundError(message)
    if status == 409:
        raise ConflictError(message)
    if status == 413:
        raise LimitError(message)
    if status in (400, 422):
        raise InvalidRequestError(message, fields)
    if status in GATEWAY_STATUSES:
        # The platform's own routes have already waited for the part that they name.
        raise UnavailableError(message) if ours else _TransientError(message)
    if status >= 500:
        raise UnavailableError(f"Airflow at {airflow_url} failed ({status}): {message}")
    raise UpdraftError(f"Airflow at {airflow_url} answered {status}: {message}")


def _message(response: httpx.Response) -> tuple[str, tuple[tuple[str, str], ...], bool]:
    """Return the message and the wrong fields of the platform's error body or of Airflow's `detail`, and whether the
    body is the platform's."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        error = body.get("error")
        if isinstance(error, dict):
            fields = tuple(
                (str(f.get("field", "")), str(f.get("message", "")))
                for f in error.get("fields") or ()
                if isinstance(f, dict)
            )
            return str(error.get("message", "")), fields, True
        detail = body.get("detail")
        if isinstance(detail, dict):
            return str(detail.get("reason") or detail.get("message") or detail)[:2000], (), False
        if isinstance(detail, list):
            parts = [
                (".".join(map(str, d.get("loc", ()))), str(d.get("msg", ""))) for d in detail if isinstance(d, dict)
            ]
            return "; ".join(f"{where}: {what}" for where, what in parts)[:2000], tuple(parts), False
        if detail:
            return str(detail)[:2000], (), False
    return f"{response.request.method} {response.request.url.path} gave {response.status_code}", (), False
