"""A cluster that was started a moment ago forbids everything to everybody; that is waited for and ends no job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from unit.kubernetes import api_server

from updraft.exceptions import RefusedError, UnavailableError
from updraft.kubernetes import calls
from updraft.kubernetes.clients import cluster_api
from updraft.kubernetes.errors import ForbiddenError
from updraft.kubernetes.readiness import still_starting


class Starting(api_server.Cluster):
    """Forbids what is not ready, and says of itself what a test wants."""

    told: tuple[int, ...] = ()  # to /readyz, one after the other; the last one from then on
    reviews: bool = True  # whether everybody may ask what they may do
    pods: tuple[int, ...] = (403,)

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, dict[str, Any]]:
        if path == "/readyz":
            self.requests.append(f"{method} {path}")
            status, *later = self.told
            self.told = tuple(later) or self.told
            return status, {"message": "[+]ping ok"}
        if path.endswith("/selfsubjectaccessreviews") and not self.reviews:
            return 403, {"message": "forbidden"}
        if path.endswith("/pods"):
            status, *later = self.pods
            self.pods = tuple(later) or self.pods
            self.requests.append(f"{method} {path}")
            return status, {"message": 'pods is forbidden: User "updraft" cannot list resource "pods"'}
        return super().answer(method, path, token, body)


@contextmanager
def cluster(
    told: tuple[int, ...], *, reviews: bool = True, pods: tuple[int, ...] = (403,)
) -> Iterator[tuple[Any, Any]]:
    made = Starting()
    made.told, made.reviews, made.pods = told, reviews, pods
    with api_server.serving(made):
        configuration = Configuration(host=made.url, api_key={"authorization": "Bearer good"})
        configuration.retries = False
        yield made, cluster_api(ApiClient(configuration))


@pytest.mark.parametrize(
    ("told", "reviews", "starting"),
    [
        (200, True, False),
        (500, True, True),  # rules are read, informers or hooks are not through
        (403, False, True),  # no rule has been read
        (403, True, False),  # a site that tells nobody, but has read its rules
        (404, True, False),
    ],
)
def test_what_a_cluster_says_of_itself(told: int, reviews: bool, starting: bool) -> None:
    with cluster((told,), reviews=reviews) as (_, core):
        assert still_starting(core.api_client) is starting


def test_a_cluster_that_does_not_answer_is_not_ready() -> None:
    with cluster((200,)) as (_, core):
        pass
    assert still_starting(core.api_client)


def list_pods(core: Any) -> Any:
    return calls.call("list pods", core.list_namespaced_pod, "ns", sleep=lambda _: None, _preload_content=False)


def test_what_is_forbidden_while_it_starts_is_asked_again() -> None:
    with cluster((403, 500, 500), reviews=False, pods=(403, 403, 403, 200)) as (made, core):
        assert list_pods(core).status == 200
    assert made.requests.count("GET /api/v1/namespaces/ns/pods") == 4


def test_a_start_without_an_end_is_waited_for_elsewhere() -> None:
    with (
        cluster((500,)) as (made, core),
        pytest.raises(UnavailableError, match=r"did not list pods: it is starting, and refuses everybody \(403\)"),
    ):
        list_pods(core)
    assert made.requests.count("GET /api/v1/namespaces/ns/pods") == 6


def test_what_a_ready_cluster_forbids_is_refused_at_once() -> None:
    with cluster((200,)) as (made, core), pytest.raises(RefusedError, match='User "updraft" cannot list'):
        list_pods(core)
    assert made.requests == ["GET /api/v1/namespaces/ns/pods", "GET /readyz"]


def test_an_answer_that_the_caller_expects_needs_no_second_question() -> None:
    with cluster((500,)) as (made, core):
        answer = calls.call("list pods", core.list_namespaced_pod, "ns", ok=(ForbiddenError,), _preload_content=False)
    assert answer is None
    assert made.requests == ["GET /api/v1/namespaces/ns/pods"]
