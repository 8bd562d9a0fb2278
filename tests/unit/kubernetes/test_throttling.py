"""A cluster that has too much to do is left alone for as long as it asks for, and nothing is concluded from it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.client.exceptions import ApiException
from unit.kubernetes.async_server import client_of, serving
from urllib3.exceptions import MaxRetryError, ResponseError

from updraft.exceptions import QuotaError, RefusedError, UnavailableError
from updraft.kubernetes import calls
from updraft.kubernetes.throttling import asked_pause_seconds
from updraft.kubernetes.watch import PodWatch


def refusal(status: int, *, message: str = "", **headers: str) -> ApiException:
    error = ApiException(status=status, reason="refused")
    error.headers = {name.replace("_", "-"): value for name, value in headers.items()}
    error.body = json.dumps({"message": message})
    return error


@pytest.mark.parametrize(
    ("failed", "seconds"),
    [
        (refusal(429, Retry_After="7"), 7.0),
        (refusal(503, Retry_After="0.5"), 0.5),
        (refusal(429, Retry_After="86400"), 60.0),
        (refusal(429, Retry_After="-1"), 0.0),
        (refusal(429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), 0.0),
        (refusal(429), 0.0),
        (ApiException(status=500), 0.0),
        (ConnectionError("reset"), 0.0),
        (None, 0.0),
    ],
)
def test_the_pause_that_a_server_asks_for(failed: BaseException | None, seconds: float) -> None:
    assert asked_pause_seconds(failed) == seconds


def test_a_request_is_repeated_after_the_pause_that_was_asked_for() -> None:
    pauses: list[float] = []
    answers: list[Any] = [refusal(429, Retry_After="17"), refusal(500), "made"]

    def create(**_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert calls.call("create pod p", create, sleep=pauses.append) == "made"
    assert pauses[0] == 17
    assert 0 <= pauses[1] < 2


def test_a_client_that_was_sent_away_each_time_says_so() -> None:
    pool: Any = SimpleNamespace()

    def list_pods(**_: Any) -> Any:
        raise MaxRetryError(pool, "/pods", ResponseError("too many 429 error responses"))

    with pytest.raises(UnavailableError, match=r"did not list pods: it has too many requests to answer \(429\)"):
        calls.call("list pods", list_pods, sleep=lambda _: None)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ('pods "p" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1', QuotaError),
        ('pods "p" is forbidden: status unknown for quota: small, resources: pods', QuotaError),
        ('pods "p" is forbidden: failed quota: small: must specify limits.cpu', RefusedError),
        ('pods "p" is forbidden: violates PodSecurity "restricted:latest"', RefusedError),
    ],
)
def test_a_quota_without_room_is_told_from_what_is_forbidden(message: str, error: type[Exception]) -> None:
    def create(**_: Any) -> Any:
        raise refusal(403, message=message)

    with pytest.raises(RefusedError) as caught:
        calls.call("create pod p", create)
    assert type(caught.value) is error
    assert str(caught.value) == f"The cluster refused to create pod p: 403 {message}"


def test_a_watch_is_begun_again_after_the_pause_that_was_asked_for() -> None:
    pauses: list[float] = []

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "23"})

    async def run() -> None:
        twice = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                twice.set()
                await asyncio.Event().wait()

        async with serving({"/api/v1/namespaces/ns/pods": refuse}) as host:
            watch = PodWatch("c", "ns", connect=client_of(host), sleep=sleep)
            await watch.start()
            await asyncio.wait_for(twice.wait(), 20)
            await watch.stop()

    asyncio.run(run())
    assert pauses == [23.0, 23.0]
