"""Archives, repositories and data with a suite go through a pod of their job, and the worker never reads them."""

from __future__ import annotations

import gzip
import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from system_helpers import Stack, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(900)]

TABLE = b"label,x\n1,0.5\n2,0.25\n"
SCRIPT = b'test -s "$DATA_DIR/table/t.csv" && cp "$DATA_DIR/table/t.csv" "$RESULT_DIR/"\n'


def suite(low: int, high: int) -> dict[str, Any]:
    kwargs = {"column": "label", "min_value": low, "max_value": high}
    return {"expectations": [{"type": "expect_column_values_to_be_between", "kwargs": kwargs}]}


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    return buffer.getvalue()


def job(name: str, code: str, **data: Any) -> dict[str, Any]:
    table = {"source": "s3://datasets/prepared/table/", "as": "table", "expectations": suite(0, 9), **data}
    return shell_job(name, "sh run.sh", code=code, data=[table])


def roles(detail: Any) -> set[str]:
    return {learner.role for learner in detail.learners}


@pytest.fixture(scope="module")
def sources(stack: Stack) -> None:
    stack.put_object("datasets", "prepared/table/t.csv", TABLE)
    stack.put_object("datasets", "prepared/code.zip", zipped({"run.sh": SCRIPT}))
    stack.put_object("datasets", "prepared/evil.zip", zipped({"../../run.sh": SCRIPT}))
    stack.put_object("datasets", "prepared/bomb/t.csv.gz", gzip.compress(b"label,x,y\n" + b",,\n" * 100_000_000, 1))


def test_an_archive_and_a_bucket_are_prepared_once(stack: Stack, sources: None) -> None:
    first = stack.end(stack.submit(job("zipped", "s3://datasets/prepared/code.zip")))
    assert first.state == "COMPLETED", pretty(first)
    assert roles(first) == {"prepare", "train"}
    said = [(t.state, t.reason) for t in stack.client.transitions(first.id).transitions]
    assert ("DOWNLOADING", "code and data are being prepared") in said
    log = stack.task_log(first, "stage_data")
    for line in ("unpacking", "1 to fetch, 0 unchanged", "Validating s3://datasets/prepared/table/"):
        assert line in log
    again = stack.end(stack.submit(job("zipped", "s3://datasets/prepared/code.zip")))
    assert again.state == "COMPLETED", pretty(again)
    assert roles(again) == {"train"}  # nothing has changed: no pod but the learner's


def test_a_commit_of_a_repository_is_fetched_in_the_pod(stack: Stack, sources: None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(SCRIPT)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "a commit"]):
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)
    sha = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
    detail = stack.end(stack.submit(job("fetched", f"git+file://{tmp_path}@{sha.stdout.strip()}")))
    assert detail.state == "COMPLETED", pretty(detail)
    assert "prepare" in roles(detail)


def test_data_that_does_not_meet_its_suite_ends_the_job_with_the_reasons(stack: Stack, sources: None) -> None:
    detail = stack.end(stack.submit(job("judged", "s3://datasets/prepared/code.zip", expectations=suite(2, 9))))
    assert detail.state == "FAILED"
    assert "the data does not meet 1 expectation(s)" in detail.reason
    assert "expect_column_values_to_be_between(column=label, 2..9): 1 of 2 values unexpected, e.g. 1" in detail.reason
    assert "train" not in roles(detail)


def test_an_archive_that_escapes_and_a_table_that_swells_end_their_jobs_alone(stack: Stack, sources: None) -> None:
    evil = stack.submit(job("evil", "s3://datasets/prepared/evil.zip"))
    bomb = stack.submit(job("bomb", "s3://datasets/prepared/code.zip", source="s3://datasets/prepared/bomb/"))
    escaped, swollen = stack.end(evil), stack.end(bomb)
    assert (escaped.state, swollen.state) == ("FAILED", "FAILED")
    assert "escapes the archive's folder" in escaped.reason
    assert "UPDRAFT_VALIDATION_MEMORY_BYTES" in swollen.reason
    assert roles(escaped) == roles(swollen) == {"prepare"}
