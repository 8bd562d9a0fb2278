"""Status 409 says two things: that something exists already, and that two wrote at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from updraft.exceptions import UnavailableError
from updraft.kubernetes import calls


def refusal(reason: str) -> ApiException:
    error = ApiException(status=409, reason="Conflict")
    error.body = json.dumps({"reason": reason, "message": "Operation cannot be fulfilled on resourcequotas"})
    return error


def create(answers: list[Any]) -> Any:
    def asked(**_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return calls.call("create pod p", asked, ok=calls.EXISTS, sleep=lambda _: None)


def test_what_exists_is_there() -> None:
    assert create([refusal("AlreadyExists")]) is None


def test_a_pod_whose_quota_was_being_written_is_created_again_and_not_taken_for_there() -> None:
    assert create([refusal("Conflict"), refusal("Conflict"), "made"]) == "made"


def test_conflicts_without_an_end_are_waited_for() -> None:
    with pytest.raises(UnavailableError, match="409"):
        create([refusal("Conflict") for _ in range(10)])
