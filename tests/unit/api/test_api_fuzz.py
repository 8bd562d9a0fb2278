"""Every route is asked at random: each answer comes within 2 s of CPU and 100 MB, and none is a defect (500)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from bounds import bounded
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.api.api_fakes import MANIFEST, Platform, guards, make_platform
from unit.api.test_api_requests import run

from updraft.api.app import create_app, document
from updraft.api.deadline import CLIENTS, import_client
from updraft.lifecycle import State
from updraft.manifest import json_schema
from updraft_learner.trees import Tree, TreeError, TreeFile

EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,  # the same requests on every machine
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
TEXTS = (
    st.text(max_size=40)
    | st.sampled_from(["\0", "..", "../..", "%", "\ud7ff", "x" * 6_000, "1" * 6_000, "-1", "1e400", "null", "a/b", "'"])
    | st.sampled_from(["digits-1", "default", "results", "model", "checkpoint:step-1", "train", "0" * 64, *State])
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**63, 10**400])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=25,
)
# Small things, many times: what is quadratic shows itself.
MANY = st.builds(lambda item, times: [item] * times, JSON, st.sampled_from([10, 1_000, 30_000]))
NAMES = st.builds(
    lambda stem, item, times: {f"{stem}{n}": item for n in range(times)},
    st.text("ab", max_size=60),
    SCALARS,
    st.sampled_from([10, 1_000, 5_000]),
)
COMMANDS = st.builds(
    lambda stem, quoted, times: quoted + f"${{params.{stem}1}} ${{params.{stem}" * times + quoted,
    st.text("ab", max_size=60),
    st.sampled_from(["", "'", '"', "\\"]),
    st.sampled_from([1, 500, 5_000]),
)
FIELDS = tuple(json_schema()["properties"])
MANIFESTS = st.dictionaries(
    st.sampled_from([*FIELDS, "data_stores", "evaluation_metrics", "x"]), JSON | MANY | NAMES | COMMANDS, max_size=6
).map(lambda changes: {**MANIFEST, **changes})


# Short parts, so that files and folders of the same name are drawn too; such trees are left out.
PARTS = st.text("ab.-0é\U0001f600 ", min_size=1, max_size=3).filter(lambda part: part not in (".", ".."))
TREE_FILES = st.builds(
    TreeFile,
    st.lists(PARTS, min_size=1, max_size=6).map("/".join) | st.just("a/" * 99 + "f"),
    st.sampled_from(["0" * 64, "f" * 64]) | st.integers(0, 2**256 - 1).map("{:064x}".format),
    st.integers(0, 100),
    st.sampled_from([0o644, 0o755]),
)


def without_conflicts(files: list[TreeFile]) -> Tree:
    kept: list[TreeFile] = []
    for file in files:
        with suppress(TreeError):
            kept = list(Tree((*kept, file)).files)
    return Tree(tuple(kept))


TREES = st.lists(TREE_FILES, max_size=20).map(without_conflicts)


@dataclass(frozen=True)
class Fuzzed:
    """One application for all examples."""

    operations: Sequence[tuple[str, str, dict[str, Any]]]
    clients: dict[str, TestClient]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Fuzzed:
    made = make_platform(Path(tmp_path_factory.mktemp("fuzz")))
    run(made)
    made.tracking.runs["r"] = {"loss": [(1, 1.0, 0.5)]}
    made.ledger.jobs.set_run("digits-1", "r", "1")
    for part in CLIENTS:  # once per process, and not a request's cost
        import_client(part)
    return Fuzzed(operations(made), {user: made.client(user) for user in ("ada", "reader")})


def operations(platform: Platform) -> list[tuple[str, str, dict[str, Any]]]:
    described = document(create_app(platform.parts, guards(), lambda _c, _t: True))
    found = [(m.upper(), path, route) for path, routes in described["paths"].items() for m, route in routes.items()]
    return [*found, ("GET", "/jobs", {}), ("GET", "/jobs/{job_id}", {})]


def text_of(body: object) -> bytes:
    return json.dumps(body).encode(errors="surrogatepass")


@EXAMPLES
@given(data=st.data())
def test_no_request_is_a_defect(fuzzed: Fuzzed, data: st.DataObject) -> None:
    method, path, route = data.draw(st.sampled_from(fuzzed.operations))
    filled = path
    for name in ("job_id", "path", "name", "sha256"):
        if f"{{{name}}}" in filled:
            value = data.draw(TEXTS | st.just("digits-1")).encode(errors="replace")
            filled = filled.replace(f"{{{name}}}", quote(value, safe=""))
    query = {p["name"]: data.draw(SCALARS) for p in route.get("parameters", ()) if p["in"] == "query"}
    chosen = {name: str(value).encode(errors="replace") for name, value in query.items() if data.draw(st.booleans())}
    body = data.draw(st.binary(max_size=200) | JSON.map(text_of) | MANY.map(text_of) | NAMES.map(text_of))
    client = fuzzed.clients[data.draw(st.sampled_from(["ada", "reader"]))]
    with bounded():
        answer = client.request(
            method, f"/updraft{filled}", params=chosen, content=body, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code < 500, (method, filled[:200], chosen, body[:200], answer.text[:500])
    assert len(answer.content) < 1_000_000


@EXAMPLES
@given(tree=TREES, repeated=st.sampled_from([1, 1_000]))
def test_every_valid_tree_is_judged_quickly(fuzzed: Fuzzed, tree: Tree, repeated: int) -> None:
    files = [replace(file, path=f"{n}/{file.path}") for n in range(repeated) for file in tree.files]
    tree, client = Tree(tuple(files)), fuzzed.clients["ada"]
    body, headers = tree.to_json(), {"Content-Type": "application/json"}
    with bounded():
        asked = client.post("/updraft/api/v1/trees/missing", content=body, headers=headers)
    assert asked.json() == {"missing": sorted({file.sha256 for file in tree.files})}
    with bounded():
        put = client.put(f"/updraft/api/v1/trees/{tree.sha256}", content=body, headers=headers)
    assert (put.status_code, "are not stored" in put.text) == ((422, True) if files else (200, False)), put.text[:500]


@EXAMPLES
@given(manifest=MANIFESTS)
def test_every_manifest_is_judged_quickly(fuzzed: Fuzzed, manifest: dict[str, Any]) -> None:
    body, client = text_of(manifest), fuzzed.clients["reader"]
    with bounded():
        answer = client.post("/updraft/api/v1/validate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 413, 422), answer.text[:500]
    assert len(answer.content) < 100_000


@EXAMPLES
@given(manifest=MANIFESTS)
def test_every_manifest_is_planned_quickly(fuzzed: Fuzzed, manifest: dict[str, Any]) -> None:
    body, client = text_of({"manifest": manifest}), fuzzed.clients["ada"]
    with bounded():
        answer = client.post("/updraft/api/v1/planned", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 404, 413, 422), answer.text[:500]


@EXAMPLES
@given(changes=MANIFESTS)
def test_every_change_is_judged_quickly(fuzzed: Fuzzed, changes: dict[str, Any]) -> None:
    body, client = text_of({"changes": changes}), fuzzed.clients["ada"]
    with bounded():
        answer = client.post(
            "/updraft/api/v1/jobs/digits-1/resume", content=body, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code in (409, 413, 422), answer.text[:500]
