"""Refusals of the API server, told apart by their status and the reason of the Status, as a cluster writes them."""

from __future__ import annotations

import json

import pytest
from kubernetes.client.exceptions import ApiException

from updraft.kubernetes import errors


def refusal(status: int, **told: str) -> ApiException:
    exc = ApiException(status=status, reason="HTTP's words")
    exc.body = json.dumps({"kind": "Status", "code": status, **told}) if told else "<html>a proxy</html>"
    return exc


@pytest.mark.parametrize(
    ("status", "told", "kind"),
    [
        (401, {"reason": "Unauthorized"}, errors.UnauthorizedError),
        (403, {"reason": "Forbidden", "message": "pods is forbidden"}, errors.ForbiddenError),
        (
            403,
            {"reason": "Forbidden", "message": 'pods "p" is forbidden: exceeded quota: q'},
            errors.QuotaExceededError,
        ),
        (403, {"message": 'pods "p" is forbidden: status unknown for quota: q'}, errors.QuotaExceededError),
        (404, {"reason": "NotFound"}, errors.ObjectNotFoundError),
        (405, {}, errors.ClientError),
        (408, {}, errors.UnavailableServerError),
        (409, {"reason": "AlreadyExists"}, errors.AlreadyExistsError),
        (409, {"reason": "Conflict"}, errors.WriteConflictError),
        (409, {}, errors.AlreadyExistsError),
        (422, {"reason": "Invalid"}, errors.ClientError),
        (429, {}, errors.TooManyRequestsError),
        (500, {}, errors.UnavailableServerError),
        (503, {}, errors.UnavailableServerError),
        (0, {}, errors.ApiError),
    ],
)
def test_each_refusal_has_its_class(status: int, told: dict[str, str], kind: type[errors.ApiError]) -> None:
    error = errors.error_of(refusal(status, **told))
    assert type(error) is kind
    assert str(error) == f"{status} {told.get('message', 'HTTP' + chr(39) + 's words')}"


def test_what_may_succeed_later_is_no_error_of_the_request() -> None:
    for status, reason in ((408, ""), (409, "Conflict"), (429, ""), (500, ""), (502, ""), (503, ""), (504, "")):
        error = errors.error_of(refusal(status, reason=reason))
        assert isinstance(error, errors.TransientError)
        assert not isinstance(error, errors.ClientError)
