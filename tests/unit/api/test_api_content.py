"""Uploads, downloads, secrets, manifests: what goes in and out in bulk, and what is refused."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import anyio
import httpx
import pytest
from starlette.exceptions import HTTPException
from unit.api.api_fakes import MANIFEST, Platform, guards

from updraft.api.access import tenant_policy
from updraft.api.app import create_app
from updraft.api.deadline import Deadline
from updraft.api.uploads import BodyReader
from updraft.schemas import UPLOAD_SECONDS
from updraft.tenants import Tenancy
from updraft_learner.contract import Keys
from updraft_learner.trees import Tree, TreeFile

API = "/updraft/api/v1"
KEYS = Keys("default")
T = TypeVar("T")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tree_of(**files: bytes) -> Tree:
    return Tree(tuple(TreeFile(name, digest(content), len(content)) for name, content in files.items()))


def body_of(tree: Tree) -> dict[str, object]:
    return dict(json.loads(tree.to_json()))


def test_a_tree_is_uploaded_blob_by_blob(platform: Platform) -> None:
    client, tree = platform.client(), tree_of(a=b"one", b=b"two")
    assert client.post(f"{API}/trees/missing", json=body_of(tree)).json() == {
        "missing": sorted([digest(b"one"), digest(b"two")])
    }
    assert client.put(f"{API}/trees/{tree.sha256}", json=body_of(tree)).status_code == 422
    stored = client.put(f"{API}/blobs/{digest(b'one')}", content=b"one")
    assert (stored.status_code, stored.json()) == (200, {"sha256": digest(b"one"), "size_bytes": 3})
    assert client.post(f"{API}/trees/missing", json=body_of(tree)).json() == {"missing": [digest(b"two")]}
    for _ in range(2):  # twice is harmless
        assert client.put(f"{API}/blobs/{digest(b'two')}", content=b"two").status_code == 200
        assert client.put(f"{API}/trees/{tree.sha256}", json=body_of(tree)).status_code == 200
    assert platform.store.get_bytes(KEYS.tree(tree.sha256)) == tree.to_json()


def test_a_store_that_holds_very_much_is_given_longer_to_say_what_it_lacks(platform: Platform) -> None:
    patience: list[float | None] = []

    class Recorded(Deadline):
        def call(self, part: str, work: Callable[[], T], *, seconds: float | None = None) -> T:
            patience.append(seconds)
            return super().call(part, work, seconds=seconds)

    platform.deadline = Recorded()
    client, tree = platform.client(), tree_of(a=b"one")
    client.put(f"{API}/blobs/{digest(b'one')}", content=b"one")
    assert client.post(f"{API}/trees/missing", json=body_of(tree)).json() == {"missing": []}
    assert client.put(f"{API}/trees/{tree.sha256}", json=body_of(tree)).status_code == 200
    assert patience == [UPLOAD_SECONDS] * 3  # the first is what the tenant has stored, for its quota


def test_a_blob_must_be_what_its_name_says(platform: Platform) -> None:
    answer = platform.client().put(f"{API}/blobs/{digest(b'one')}", content=b"two")
    assert answer.status_code == 422
    assert not list(platform.store.list(""))
    assert platform.client().put(f"{API}/blobs/../secret", content=b"x").status_code in (404, 405)
    assert platform.client().put(f"{API}/blobs/{'A' * 64}", content=b"x").status_code == 422


@pytest.mark.parametrize("announced", [True, False])
def test_a_blob_over_the_limit_is_refused_while_it_comes_in(platform: Platform, announced: bool) -> None:
    sent = []

    def chunks() -> Iterator[bytes]:
        for number in range(100):
            sent.append(number)
            yield b"x" * 100_000

    headers = {"Content-Length": "10000000"} if announced else {}
    answer = platform.client().put(f"{API}/blobs/{'0' * 64}", content=chunks(), headers=headers)
    assert answer.status_code == 413
    assert "limit" in answer.json()["error"]["message"]
    assert not list(platform.store.list(""))


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a\\b", ""])
def test_a_tree_with_an_unsafe_path_is_refused(platform: Platform, path: str) -> None:
    body = {"files": [{"path": path, "sha256": digest(b""), "size": 0, "mode": 0o644}]}
    assert platform.client().post(f"{API}/trees/missing", json=body).status_code == 422


def test_a_tree_over_the_limit_or_under_another_name_is_refused(platform: Platform) -> None:
    body = {"files": [{"path": "a", "sha256": digest(b""), "size": 1_000_001, "mode": 0o644}]}
    assert platform.client().post(f"{API}/trees/missing", json=body).status_code == 413
    assert platform.client().put(f"{API}/trees/{'0' * 64}", json=body_of(tree_of())).status_code == 422


def test_a_body_that_never_ends_is_cut_off(platform: Platform) -> None:
    content = (b"[" + b" " * 1_000_000 for _ in range(40))
    answer = platform.client().post(f"{API}/validate", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "larger than the limit" in answer.json()["error"]["message"]


def finished(platform: Platform) -> None:
    platform.job()
    for key, content in {
        f"{KEYS.results('digits-1', 'train', 1)}/metrics.csv": b"a,b",
        f"{KEYS.results('digits-1', 'evaluate', 1)}/report.html": b"<script>",
        f"{KEYS.results('digits-1', 'export', 1)}/export/model/model.onnx": b"onnx",
        f"{KEYS.checkpoint('digits-1', 'step-10')}/weights": b"w" * 700_000,
        f"{KEYS.checkpoint('digits-1', 'step-20')}/weights": b"half",
        f"{KEYS.results('digits-10', 'train', 1)}/other": b"another job",
    }.items():
        platform.store.put_bytes(key, content)
    platform.put_json(KEYS.checkpoint_marker("digits-1", "step-10"), {})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("results", ["evaluate/report.html", "learner-1/metrics.csv"]),
        ("model", ["model/model.onnx"]),
        ("checkpoint:step-10", ["MANIFEST.json", "weights"]),
    ],
)
def test_files_are_listed_by_kind(platform: Platform, kind: str, expected: list[str]) -> None:
    finished(platform)
    answer = platform.client().get(f"{API}/jobs/digits-1/files", params={"kind": kind}).json()
    assert sorted(entry["path"] for entry in answer["files"]) == expected


def test_files_are_listed_in_pages(platform: Platform) -> None:
    finished(platform)
    asked, paths, after = 0, [], ""
    while after is not None:
        answer = platform.client().get(f"{API}/jobs/digits-1/files", params={"after": after, "limit": 1}).json()
        paths += [entry["path"] for entry in answer["files"]]
        asked, after = asked + 1, answer["after"]
    assert (paths, asked) == (["evaluate/report.html", "learner-1/metrics.csv"], 2)


@pytest.mark.parametrize("kind", ["checkpoint:step-20", "checkpoint:", "checkpoint:..", "checkpoint:a/b", "logs"])
def test_a_kind_or_checkpoint_that_is_not_there_is_a_404(platform: Platform, kind: str) -> None:
    finished(platform)
    assert platform.client().get(f"{API}/jobs/digits-1/files", params={"kind": kind}).status_code == 404


def test_a_file_is_streamed_and_never_shown_as_a_page(platform: Platform) -> None:
    finished(platform)
    client = platform.client()
    weights = client.get(f"{API}/jobs/digits-1/file", params={"kind": "checkpoint:step-10", "path": "weights"})
    assert (weights.content, weights.headers["content-length"]) == (b"w" * 700_000, "700000")
    report = client.get(f"{API}/jobs/digits-1/file?path=evaluate/report.html")
    assert report.headers["content-type"] == "application/octet-stream"
    assert report.headers["content-disposition"].startswith("attachment")
    for path in ("nothing", "..%2F..%2Ftrees%2Fx", "%2Fetc%2Fpasswd"):
        assert client.get(f"{API}/jobs/digits-1/file?path={path}").status_code in (404, 409)


NASTY_NAMES = ["a b", "two\nlines", "50%?#&=+.bin", "back\\slash", "ünï/中文", "-rf", ".hidden", "a:b*", " ", "%2e%2e"]


@pytest.mark.parametrize("name", NASTY_NAMES)
def test_a_file_of_any_name_is_listed_and_streamed(platform: Platform, name: str) -> None:
    finished(platform)
    job = "digits-1"
    key = f"{KEYS.results(job, 'train', 1)}/{name}"
    platform.store.put_bytes(key, b"x")
    platform.store.put_bytes(f"{key}-longer", b"another")
    client = platform.client()
    path = next(e["path"] for e in client.get(f"{API}/jobs/{job}/files").json()["files"] if e["path"].endswith(name))
    assert client.get(f"{API}/jobs/{job}/file", params={"path": path}).content == b"x"


@pytest.mark.parametrize("path", ["", "a/./b", "a//b", "a%00b", "%2E%2E/x", "a/", "/a"])
def test_a_path_that_no_file_has_is_refused(platform: Platform, path: str) -> None:
    finished(platform)
    assert platform.client().get(f"{API}/jobs/digits-1/file?path={path}").status_code == 409


def test_secrets_go_in_and_only_names_come_out(platform: Platform, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client, value = platform.client(), "hunter2-hunter2"
    answers = [
        client.put(f"{API}/secrets/hub", json={"data": {"token": value}}),
        client.put(f"{API}/secrets/hub", json={"data": {f"bad key {value}": value}}),
        client.put(f"{API}/secrets/hub", json={"data": {"token": [value]}}),
        client.put(f"{API}/secrets/hub", json={"data": {}, "token": value}),
        client.put(f"{API}/secrets/hub", json={"data": {"token": value * 100_000}}),
        client.get(f"{API}/secrets"),
    ]
    assert [answer.status_code for answer in answers] == [204, 409, 422, 422, 413, 200]
    assert answers[-1].json() == {"secrets": ["hub"]}
    assert platform.cluster.secrets == {("default", "hub"): {"token": value}}
    assert value not in "".join(answer.text for answer in answers) + caplog.text
    assert client.delete(f"{API}/secrets/hub").status_code == 204
    assert client.delete(f"{API}/secrets/hub").status_code == 404


def test_validate_names_every_wrong_field(platform: Platform) -> None:
    client = platform.client()
    assert client.post(f"{API}/validate", json=MANIFEST).json() == {"valid": True, "errors": [], "warnings": []}
    wrong = {**MANIFEST, "comand": "x", "resources": {"memory": "16 Gigs", "learners": -1}}
    fields = {error["field"] for error in client.post(f"{API}/validate", json=wrong).json()["errors"]}
    assert {"comand", "resources.memory", "resources.learners"} <= fields


def test_validate_refuses_what_this_platform_does_not_offer(platform: Platform) -> None:
    manifest = {**MANIFEST, "tenant": "vision", "framework": {"name": "caffe"}}
    answer = platform.client().post(f"{API}/validate", json=manifest).json()
    assert {error["field"] for error in answer["errors"]} == {"tenant", "framework.name"}
    assert not answer["valid"]


def test_the_schema_is_published(platform: Platform) -> None:
    assert "command" in platform.client().get(f"{API}/manifest.schema.json").json()["properties"]


def test_slow_uploads_leave_the_other_routes_their_threads(platform: Platform) -> None:
    """More of them than the server has threads."""
    app = create_app(platform.parts, guards(), tenant_policy(lambda: Tenancy.of("default")))
    headers = {"Authorization": "Bearer ada"}

    async def run() -> int:
        go_on = anyio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"on"
            await go_on.wait()
            yield b"e"

        async def upload(client: httpx.AsyncClient) -> None:
            statuses.append((await client.put(f"/api/v1/blobs/{digest(b'one')}", content=slowly())).status_code)

        transport = httpx.ASGITransport(app)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
            anyio.create_task_group() as group,
        ):
            for _ in range(60):
                group.start_soon(upload, client)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(10):
                status = (await client.get("/api/v1/jobs")).status_code
            go_on.set()
        return status

    statuses: list[int] = []
    assert anyio.run(run) == 200
    assert statuses == [200] * 60


def test_an_upload_that_stops_is_given_up() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        await anyio.sleep_forever()
        yield b""

    async def run() -> None:
        await anyio.to_thread.run_sync(BodyReader(nothing(), idle_seconds=0.01).read, 1)

    with pytest.raises(HTTPException) as caught:
        anyio.run(run)
    assert caught.value.status_code == 408
