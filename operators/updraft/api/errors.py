"""Answer failures with `{"error": {"message", "fields"}}` and the right status; never repeat values of a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from updraft.exceptions import DataError, LimitError, NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft.manifest import ManifestError
from updraft.schemas import PAGES_PREFIX, ErrorAnswer, ErrorBody, FieldError

log = logging.getLogger(__name__)

STATUSES: Sequence[tuple[type[UpdraftError], int]] = (  # the first matching row counts
    (ManifestError, 422),
    (DataError, 422),
    (NotFoundError, 404),
    (LimitError, 413),
    (RefusedError, 409),
    (UnavailableError, 503),
)


SHOWN_ERRORS = 20


def answer(status: int, message: str, fields: Sequence[FieldError] = ()) -> JSONResponse:
    body = ErrorAnswer(error=ErrorBody(message=message, fields=tuple(fields)))
    return JSONResponse(body.model_dump(mode="json"), status)


def manifest_fields(exc: ManifestError) -> list[FieldError]:
    return [FieldError(field=field.path, message=field.text) for field in exc.fields]


def status_of(exc: UpdraftError) -> int:
    return next((status for kind, status in STATUSES if isinstance(exc, kind)), 500)


def install(app: FastAPI) -> None:
    @app.exception_handler(UpdraftError)
    async def _ours(_request: Request, exc: UpdraftError) -> JSONResponse:
        status = status_of(exc)
        if status >= 500:
            log.warning("%s", exc)
        return answer(status, str(exc), manifest_fields(exc) if isinstance(exc, ManifestError) else ())

    @app.exception_handler(RequestValidationError)
    async def _request(_request: Request, exc: RequestValidationError) -> JSONResponse:
        shown = exc.errors()[:SHOWN_ERRORS]
        fields = [FieldError(field=".".join(map(str, error["loc"]))[:200], message=error["msg"]) for error in shown]
        return answer(422, "the request is not valid: " + "; ".join(f"{f.field}: {f.message}" for f in fields), fields)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, exc: HTTPException) -> Response:
        login_url = request.app.state.login_url
        if exc.status_code == 401 and login_url is not None and request.url.path.startswith(PAGES_PREFIX):
            return RedirectResponse(login_url(request.url.path), 303)
        response = answer(exc.status_code, str(exc.detail))
        response.headers.update(exc.headers or {})
        return response

    @app.exception_handler(Exception)
    async def _defect(request: Request, exc: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
        return answer(500, "the platform made a mistake; its log in Airflow's api-server says more")
