"""An attacker who writes suites or data runs nothing, fetches nothing, and takes no more than is allowed."""

from __future__ import annotations

import gzip
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from updraft.manifest import ManifestError, parse
from updraft_data.expectations import ALLOWED, KWARGS
from updraft_data.limited import validate_limited
from updraft_data.run import validate
from updraft_data.table import read_table
from updraft_data.work import do
from updraft_learner.pod import PodPaths
from updraft_learner.prepare.documents import Copied, PrepareRequest, PrepareWork, SourceRequest
from updraft_learner.prepare.errors import SourceError
from updraft_learner.prepare.select import select
from updraft_learner.trees import Tree, scan

GIB = 1024**3
CSV = "split,label\ntrain,1\ntrain,2\ntest,30\n,4\n"


def suite(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"expectations": [{"type": kind, "kwargs": kwargs}]}


def between(condition: Any) -> dict[str, Any]:
    return suite(
        "expect_column_values_to_be_between", column="label", min_value=0, max_value=9, row_condition=condition
    )


def folder_of(folder: Path, content: bytes, name: str = "t.csv") -> Tree:
    (folder / name).write_bytes(content)
    return scan(folder)[0]


@pytest.fixture
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attack") / "ran"


def commands(marker: Path) -> list[dict[str, Any]]:
    run = f"@pd.io.common.os.system('touch {marker}') == 0"
    return [
        between({"type": "pass_through", "pass_through_filter": run}),
        between(run) | {},
        {
            "expectations": [
                {
                    "type": "expect_table_row_count_to_equal",
                    "kwargs": {"value": 1, "row_condition": run, "condition_parser": "pandas"},
                }
            ]
        },
        between({"type": "and", "conditions": [{"type": "pass_through", "pass_through_filter": run}]}),
        suite("unexpected_rows_expectation", unexpected_rows_query=run),
        suite("expect_query_results_to_match_comparison", base_query=run, comparison_query=run),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_suite_runs_no_code(tmp_path: Path, marker: Path, number: int) -> None:
    attack = commands(marker)[number]
    with pytest.raises(SourceError, match=r"expectations\[0\]"):
        validate(tmp_path, folder_of(tmp_path, CSV.encode()), attack)
    assert not marker.exists()
    manifest = {
        "name": "a",
        "framework": {"name": "shell"},
        "command": "true",
        "data": [{"source": "s3://d/x/", "as": "training", "expectations": attack}],
    }
    with pytest.raises(ManifestError, match=r"data\[0\]\.expectations\.expectations\[0\]"):
        parse(manifest)


def test_a_condition_on_a_column_with_a_hostile_name_runs_no_code(tmp_path: Path, marker: Path) -> None:
    name = f"`@pd.io.common.os.system('touch {marker}')"
    table = pd.DataFrame({name: ["x", "y"], "label": [1, 30]})
    content = table.to_csv(index=False).encode()
    condition = {
        "type": "comparison", "column": {"name": name}, "operator": "==", "parameter": f"' or @pd.os.system('{marker}"
    }  # fmt: skip
    result = validate(tmp_path, folder_of(tmp_path, content), between(condition))
    assert result.success  # no row is selected, so that none is wrong
    assert not marker.exists()


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret", paths
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("target", ["http", "file:///etc/passwd"])
def test_a_json_schema_fetches_nothing(tmp_path: Path, asked: tuple[str, list[str]], key: str, target: str) -> None:
    address, paths = asked
    schema = {"type": "object", "properties": {"a": [{key: address if target == "http" else target}]}}
    attack = suite("expect_column_values_to_match_json_schema", column="label", json_schema=schema)
    with pytest.raises(SourceError, match="is not followed; write the schema out"):
        validate(tmp_path, folder_of(tmp_path, b'label\n"{}"\n'), attack)
    assert paths == []


def test_a_small_file_that_becomes_large_in_memory_is_refused(tmp_path: Path) -> None:
    content = gzip.compress(b"a,b,c,d\n" + b",,,\n" * 40_000_000)
    assert len(content) < 200_000
    tree = folder_of(tmp_path, content, "t.csv.gz")
    asked_for = suite("expect_table_row_count_to_equal", value=1)
    with pytest.raises(SourceError, match="UPDRAFT_VALIDATION_MEMORY_BYTES"):
        validate_limited(tmp_path, tree, asked_for, memory_bytes=GIB, seconds=300)


def kill_judges(over: threading.Event, most: int) -> None:
    """SIGKILL to the first `most` processes that judge for this one."""
    killed: set[int] = set()
    while len(killed) < most and not over.wait(0.02):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if child.pid not in killed and "updraft_data.limited" in child.cmdline():
                    child.kill()
                    killed.add(child.pid)


@pytest.mark.parametrize("kills", [1, 2])
def test_a_judging_process_that_is_killed_says_nothing_about_the_data(tmp_path: Path, kills: int) -> None:
    """The first one is replaced; after the second one the attempt is made again."""
    paths = PodPaths(tmp_path)
    folder = paths.data / "training"
    folder.mkdir(parents=True)
    tree = folder_of(folder, b"a\n1\n")
    (paths.data / "training.json").write_bytes(tree.to_json())
    asked_for = suite("expect_table_row_count_to_equal", value=1)
    source = SourceRequest("training", "tree", "tree", 10**6, tree=tree.sha256, suite=asked_for)
    work = PrepareWork(PrepareRequest((source,), memory_bytes=2 * GIB), {"training": Copied(tree.sha256)})
    over = threading.Event()
    killer = threading.Thread(target=kill_judges, args=(over, kills))
    killer.start()
    try:
        if kills == 1:
            assert do(work, paths, {}, print)["judged"]["training"]["result"]["success"]
        else:
            with pytest.raises(SourceError, match="was killed") as caught:
                do(work, paths, {}, print)
            assert caught.value.kind == "unavailable"
    finally:
        over.set()
        killer.join()


def test_a_regular_expression_that_never_ends_is_ended(tmp_path: Path) -> None:
    # The look-ahead keeps pandas from RE2, which has no such expressions and takes linear time.
    tree = folder_of(tmp_path, b"label\n" + b"a" * 60 + b"!\n")
    attack = suite("expect_column_values_to_match_regex", column="label", regex="^(?=a)(a+)+$")
    with pytest.raises(SourceError, match="was not judged within 20 s"):
        validate_limited(tmp_path, tree, attack, memory_bytes=4 * GIB, seconds=20)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.jsonl.gz", "t.npz", "t.parquet"])
def test_bytes_are_counted_while_a_file_is_unpacked(tmp_path: Path, name: str) -> None:
    if name == "t.npz":
        array = io.BytesIO()
        np.save(array, np.zeros(500_000))
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", array.getvalue())
    elif name == "t.parquet":
        pd.DataFrame({"x": np.random.default_rng(1).random(500_000)}).to_parquet(tmp_path / name)
    else:
        line = b'{"x": 1}\n' if "json" in name else b"1\n"
        (tmp_path / name).write_bytes(gzip.compress(line * 1_000_000))
    with pytest.raises(SourceError, match="when it is unpacked"):
        read_table(tmp_path, select(scan(tmp_path)[0]), limit_bytes=1_000_000)


@pytest.mark.parametrize(
    ("condition", "success"),
    [
        ({"type": "comparison", "column": {"name": "split"}, "operator": "==", "parameter": "train"}, True),
        ({"type": "comparison", "column": {"name": "split"}, "operator": "IN", "parameter": ["test", "x"]}, False),
        ({"type": "comparison", "column": {"name": "label"}, "operator": "<=", "parameter": 9}, True),
        ({"type": "nullity", "column": {"name": "split"}, "is_null": True}, True),
        ({"type": "nullity", "column": {"name": "split"}, "is_null": False}, False),
        (
            {
                "type": "and",
                "conditions": [
                    {"type": "nullity", "column": {"name": "split"}, "is_null": False},
                    {"type": "comparison", "column": {"name": "split"}, "operator": "!=", "parameter": "test"},
                ],
            },
            True,
        ),
        (
            {
                "type": "or",
                "conditions": [
                    {"type": "nullity", "column": {"name": "split"}, "is_null": True},
                    {"type": "comparison", "column": {"name": "split"}, "operator": "NOT_IN", "parameter": ["train"]},
                ],
            },
            False,
        ),
    ],
)
def test_typed_conditions_select_the_rows_that_are_judged(
    tmp_path: Path, condition: dict[str, Any], success: bool
) -> None:
    assert validate(tmp_path, folder_of(tmp_path, CSV.encode()), between(condition)).success is success


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"type": "nullity", "column": {"name": "nowhere"}, "is_null": True}, "no column 'nowhere'; there are split"),
        ({"type": "comparison", "column": {"name": "split"}, "operator": "<", "parameter": 3}, "cannot be compared"),
    ],
)
def test_a_condition_that_cannot_hold_is_named(tmp_path: Path, condition: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        validate(tmp_path, folder_of(tmp_path, CSV.encode()), between(condition))


def test_every_type_on_the_list_exists_with_the_kwargs_on_the_list() -> None:
    import great_expectations.expectations  # noqa: F401
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )

    registered = set(list_registered_expectation_implementations())
    for kind, words in ALLOWED.items():
        assert kind in registered
        names = {word.rstrip("?") for word in words.split()}
        assert names <= set(KWARGS)
        assert names - {"row_condition"} <= set(get_expectation_impl(kind).__fields__), kind


def test_the_page_of_expectations_lists_what_is_allowed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "expectations.md").read_text(encoding="utf-8")
    for kind, words in ALLOWED.items():
        assert f"| `{kind}` | {', '.join(f'`{word}`' for word in words.split())} |" in page
