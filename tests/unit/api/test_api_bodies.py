"""Bodies of requests: read after the caller is known, and bounded in size, shape and time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest
from bounds import MEGABYTES, bounded
from fastapi import Request
from fastapi.routing import APIRoute
from pages import REPOSITORY
from starlette.exceptions import HTTPException
from unit.api.api_fakes import MANIFEST, Platform, guards

from updraft.api.access import tenant_policy
from updraft.api.app import create_app
from updraft.api.bodies import TREE_BYTES, JsonBody
from updraft.api.deadline import CLIENTS, import_client
from updraft.tenants import Tenancy
from updraft_learner.trees import DEFAULT_LIMIT_FILES

API = "/updraft/api/v1"
API_PAGE = REPOSITORY / "docs" / "reference" / "api.md"
JSON = {"Content-Type": "application/json"}
WITH_BODY = (
    ("POST", "/validate"),
    ("POST", "/possible"),
    ("POST", "/planned"),
    ("POST", "/jobs/digits-1/resume"),
    ("POST", "/jobs/digits-1/priority"),
    ("POST", "/jobs/digits-1/scale"),
    ("POST", "/series/digits/roll-back"),
    ("PUT", "/secrets/hub"),
    ("POST", "/trees/missing"),
    ("PUT", f"/trees/{'0' * 64}"),
    ("PUT", f"/blobs/{'0' * 64}"),
)


def test_every_route_with_a_body_is_known_to_these_tests(platform: Platform) -> None:
    app = create_app(platform.parts, guards(), lambda _c, _t: True)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert [
        route.path for route in routes if route.body_field is not None
    ] == []  # FastAPI reads none before the guards
    documented = [route for route in routes if "requestBody" in (route.openapi_extra or {})]
    assert len(documented) + 1 == len(WITH_BODY)  # a blob has no JSON


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
def test_without_a_token_nothing_is_read(platform: Platform, method: str, path: str) -> None:
    read = []

    def content() -> Iterator[bytes]:
        for number in range(50):
            read.append(number)
            yield b"{" * 100_000

    app = create_app(platform.parts, guards(), tenant_policy(lambda: Tenancy.of("default")))

    async def ask() -> int:
        async def chunks() -> AsyncIterator[bytes]:
            for chunk in content():
                yield chunk

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.request(method, f"/api/v1{path}", content=chunks(), headers=JSON)).status_code

    assert anyio.run(ask) == 401
    assert read == []


@pytest.mark.parametrize(("method", "path"), WITH_BODY[1:])
def test_without_the_right_to_write_nothing_is_read(platform: Platform, method: str, path: str) -> None:
    answer = platform.client("reader").request(method, API + path, content=b"{not JSON", headers=JSON)
    assert answer.status_code == 403


@pytest.mark.parametrize(("method", "path"), WITH_BODY[:-1])
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_cut_off(platform: Platform, method: str, path: str, announced: bool) -> None:
    platform.job()
    sent = []

    def content() -> Iterator[bytes]:
        for number in range(40):
            sent.append(number)
            yield b" " * 1_000_000

    headers = {**JSON, "Content-Length": "40000000"} if announced else JSON
    with bounded(megabytes=200):  # the test's client joins what it sends
        answer = platform.client().request(method, API + path, content=content(), headers=headers)
    assert answer.status_code == 413
    assert "larger than the limit" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"[]", 422),
        (b"{", 422),
        (b'{"a": "\xff"}', 422),
        (b'{"a": ' + b"[" * 100_000, 422),
        (b'{"a":' * 100_000, 422),
        (b'{"a": [' + b"[]," * 300_000 + b"[]]}", 413),
        (b'{"a": ' + b"9" * 1_000_000 + b"}", 422),
        (b'{"a": 1e999, "b": NaN}', 200),
    ],
)
def test_what_is_no_manifest_is_refused_before_it_takes_memory(platform: Platform, content: bytes, status: int) -> None:
    client = platform.client()
    with bounded():
        answer = client.post(f"{API}/validate", content=content, headers=JSON)
    assert answer.status_code == status, answer.text[:300]
    assert status != 200 or not answer.json()["valid"]


def test_a_body_that_is_not_said_to_be_json_is_refused(platform: Platform) -> None:
    answer = platform.client().post(f"{API}/validate", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, "application/json" in answer.text) == (415, True)


def test_a_tree_of_wrong_files_is_one_error(platform: Platform) -> None:
    client = platform.client()
    with bounded():
        answer = client.post(f"{API}/trees/missing", json={"files": [{}] * 100_000})
    assert (answer.status_code, len(answer.text) < 500) == (422, True)


def tree_text(files: int, name: str) -> bytes:
    """The document of a tree, whose paths hold `name`."""
    entry = '{{"mode":420,"path":"data/{}{:06d}{}","sha256":"{:064x}","size":1}}'
    return f'{{"files":[{",".join(entry.format(n // 1_000, n, name, n) for n in range(files))}]}}'.encode()


@pytest.mark.parametrize(
    ("name", "first", "megabytes"),
    [
        ("-image.png", "-", MEGABYTES),
        ("/" + "a/" * 98 + "f", "-", 300),  # as docs/reference/api.md says
        ("/" + "d" * 200, "\U0001f600", 300),  # for which Python keeps all of the text with four bytes a character
        ("/" + "\U0001f600" * 50, "-", 300),
    ],
    ids=["usual", "deep", "long", "not ASCII"],
)
def test_the_largest_tree_is_within_its_bound(platform: Platform, name: str, first: str, megabytes: float) -> None:
    client = platform.client()
    text = tree_text(DEFAULT_LIMIT_FILES, name).replace(b"data/", f"data{first}/".encode(), 1)
    assert len(text) <= TREE_BYTES
    platform.store.put_bytes("default/blobs/" + "0" * 64, b"x")
    for method, route, status in (("POST", "missing", 200), ("PUT", "0" * 64, 422)):
        with bounded(megabytes=megabytes):
            answer = client.request(method, f"{API}/trees/{route}", content=text, headers=JSON)
        assert answer.status_code == status, answer.text[:300]
    assert "up to 300 MB" in " ".join(API_PAGE.read_text().split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (tree_text(DEFAULT_LIMIT_FILES + 10, ""), "more than 500010 values"),
        (b'{"files":[' + b'{"path":"a"},' * 150_000 + b"{}]}", "not a tree document"),
        (b'{"files":[' + b"[]," * 400_000 + b"1]}", "more than 500010 values"),
        (b'{"files":[' + b"1," * 400_000 + b"1]}", "not a tree document"),
    ],
    ids=["files", "halves", "lists", "numbers"],
)
def test_more_than_the_largest_tree_is_refused_within_the_bound(platform: Platform, text: bytes, message: str) -> None:
    client = platform.client()
    with bounded():
        answer = client.post(f"{API}/trees/missing", content=text, headers=JSON)
    assert (answer.status_code in (413, 422), message in answer.text) == (True, True), answer.text[:300]


def test_trees_of_one_user_wait_for_each_other(platform: Platform) -> None:
    """Before their bodies are read: each may take 300 MB."""
    app = create_app(platform.parts, guards(), tenant_policy(lambda: Tenancy.of("default")))
    text = tree_text(3, "")

    async def run() -> tuple[int, int, list[int]]:
        go_on, reading, ended = anyio.Event(), 0, list[int]()

        async def slow() -> AsyncIterator[bytes]:
            nonlocal reading
            reading += 1
            yield text[:9]
            await go_on.wait()
            yield text[9:]

        async def ask(client: httpx.AsyncClient, user: str, content: bytes | AsyncIterator[bytes]) -> int:
            headers = {**JSON, "Authorization": f"Bearer {user}"}
            return (await client.post("/api/v1/trees/missing", content=content, headers=headers)).status_code

        async def one(client: httpx.AsyncClient) -> None:
            ended.append(await ask(client, "mallory", slow()))

        async with (
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
            anyio.create_task_group() as group,
        ):
            for _ in range(20):
                group.start_soon(one, client)
            await anyio.wait_all_tasks_blocked()
            at_once = reading
            with anyio.fail_after(20):
                of_another = await ask(client, "ada", text)
            go_on.set()
        return at_once, of_another, ended

    assert anyio.run(run) == (1, 200, [200] * 20)


@pytest.mark.parametrize("path", ["a/" * 16_000 + "f", "a" * 32_000, "a/" * 500 + "f"])
def test_a_path_of_absurd_depth_is_refused_before_it_is_taken_apart(platform: Platform, path: str) -> None:
    """32 KB took 2.5 s and 244 MB, 64 KB four times as much."""
    client, files = platform.client(), [{"path": path, "sha256": "0" * 64, "size": 1, "mode": 0o644}]
    for method, route in (("POST", "missing"), ("PUT", "0" * 64)):
        with bounded(2, 20):
            answer = client.request(method, f"{API}/trees/{route}", json={"files": files})
        assert (answer.status_code, len(answer.text) < 1_000) == (422, True), answer.text[:300]


def test_the_viewers_request_of_gigabytes(platform: Platform) -> None:
    """20,000 parameters and 1,500 references to others grew the server to 15.6 GB."""
    names = {f"{'p' * 20}{n}": n for n in range(20_000)}
    command = " ".join(f"${{params.{'q' * 20}{n}}}" for n in range(1_500))
    client = platform.client("reader")
    for params in (names, dict(list(names.items())[:1_000])):
        with bounded():
            answer = client.post(f"{API}/validate", json={**MANIFEST, "params": params, "command": command})
        assert answer.status_code == 200
        assert not answer.json()["valid"]
        assert len(answer.text) < 50_000


@pytest.mark.parametrize(("number", "valid"), [(400, True), (2_000, False)])  # as many as are allowed, and beyond
def test_regular_expressions_are_not_compiled_in_the_server(platform: Platform, number: int, valid: bool) -> None:
    """One of these took half a second to compile, so that one request of a viewer held the server for minutes."""
    hostile = [f"(?i)a{n:04d}" + "[\x01-\U0010ffff]" * 98 for n in range(number)]
    data = [{"source": f"s3://datasets/{n}/", "as": f"d{n}", "expectations": {"expectations": []}} for n in range(2)]
    for at, regex in enumerate(hostile):
        kind = "expect_column_values_to_match_regex"
        data[at % 2]["expectations"]["expectations"].append(  # type: ignore[index]
            {"type": kind, "kwargs": {"column": "a", "regex": regex}}
        )
    client = platform.client("reader")
    manifest = json.dumps({**MANIFEST, "data": data}, ensure_ascii=False).replace("[\\u0001", "\\u005b\\u0001")
    with bounded():
        answer = client.post(f"{API}/validate", content=manifest.encode(), headers=JSON)
    assert (answer.status_code, answer.json()["valid"]) == (200, valid), answer.text[:500]
    if not valid:
        assert "at most 200000 in all" in answer.text
    platform.job()
    for part in CLIENTS:  # once per process, and not a request's cost
        import_client(part)
    for path, field in (("/possible", "manifest"), ("/planned", "manifest"), ("/jobs/digits-1/resume", "changes")):
        client, body = platform.client(), f'{{"{field}": {manifest}}}'.encode()
        with bounded():
            assert client.post(f"{API}{path}", content=body, headers=JSON).status_code in (200, 409, 422)


def test_a_body_that_comes_slowly_is_given_up() -> None:
    body = JsonBody(dict, limit_bytes=1000, limit_values=10, seconds=0.05)

    async def read() -> None:
        coming: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> dict[str, Any]:
            if not coming:
                await anyio.sleep_forever()
            return coming.pop()

        await body(Request({"type": "http", "method": "POST", "headers": []}, receive))

    with pytest.raises(HTTPException, match=r"did not come within 0\.05 s; send it again") as caught:
        anyio.run(read)
    assert caught.value.status_code == 408
