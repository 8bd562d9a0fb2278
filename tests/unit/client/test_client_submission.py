"""From a manifest on disk to a DAG run: packing, uploading, refusing, being sent twice."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from unit.client.client_fakes import FakeAirflow

from updraft.client import Client
from updraft.client.http import InvalidRequestError
from updraft.exceptions import DataError, RefusedError, UnavailableError
from updraft.manifest import ManifestError
from updraft.schemas import UPLOAD_SECONDS

SUITE = {
    "name": "digits",
    "expectations": [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}],
}


def write_job(folder: Path, **fields: Any) -> Path:
    """A manifest with code, data and a suite beside it."""
    (folder / "code" / "__pycache__").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print(1)")
    (folder / "code" / "secret.key").write_text("private")
    (folder / "code" / "__pycache__" / "x.pyc").write_text("")
    (folder / "code" / ".updraftignore").write_text("*.key\n")
    (folder / "rows.csv").write_text("a\n1\n")
    (folder / "suite.json").write_text(json.dumps(SUITE))
    manifest = {
        "name": "digits",
        "framework": {"name": "pytorch"},
        "code": "code",
        "command": "python train.py",
        "data": [{"source": "rows.csv", "expectations": "suite.json"}],
        **fields,
    }
    path = folder / "manifest.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


def paths_of(airflow: FakeAirflow, source: str) -> list[str]:
    return [file["path"] for file in airflow.trees[source.removeprefix("tree:")]["files"]]


def test_code_and_data_are_packed_uploaded_and_named_by_digest(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    job = client.submit(write_job(tmp_path), on_progress=lambda *args: told.append(args))
    manifest = airflow.runs[job.id]["conf"]["manifest"]
    assert job.id.startswith("digits-")
    assert not job.existed
    assert paths_of(airflow, manifest["code"]) == ["train.py"]
    assert paths_of(airflow, manifest["data"][0]["source"]) == ["rows.csv"]
    assert manifest["data"][0]["expectations"] == SUITE
    assert sorted(airflow.blobs.values()) == [b"a\n1\n", b"print(1)"]
    assert told == [("code", 0, 8), ("code", 8, 8), ("data[0].source", 0, 4), ("data[0].source", 4, 4)]


def test_a_platform_that_holds_very_much_is_waited_for_longer_than_it_may_take(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    patience: dict[str, float] = {}

    def note(request: httpx.Request) -> httpx.Response | None:
        patience[request.url.path.rpartition("/v1/")[2].partition("/")[0]] = request.extensions["timeout"]["read"]
        return None

    airflow.override = note
    client.submit(write_job(tmp_path))
    assert patience["trees"] > UPLOAD_SECONDS > patience["health"]


def test_what_the_platform_has_is_not_sent_again(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    path = write_job(tmp_path)
    first = client.submit(path)
    airflow.requests.clear()
    second = client.submit(path)
    assert not [asked for asked in airflow.requests if "/blobs/" in asked[1]]
    assert first.id != second.id
    assert len(airflow.runs) == 2


def test_a_zip_is_unpacked_and_a_folder_of_the_same_files_is_the_same_tree(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    path = write_job(tmp_path, code="code.zip")
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.write(tmp_path / "code" / "train.py", "train.py")
    zipped = client.submit(path).id
    (tmp_path / "manifest.yaml").write_text(path.read_text().replace("code.zip", "code"))
    folder = client.submit(path).id
    codes = [airflow.runs[job]["conf"]["manifest"]["code"] for job in (zipped, folder)]
    assert codes[0] == codes[1]


def test_an_archive_that_is_none_or_escapes_is_refused_before_anything_is_sent(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    path = write_job(tmp_path, code="code.zip")
    (tmp_path / "code.zip").write_text("not a zip")
    with pytest.raises(DataError, match=r"^code: code\.zip is no zip archive"):
        client.submit(path)
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("../evil.py", "x")
    with pytest.raises(DataError, match=r"escapes the archive's folder"):
        client.submit(path)
    assert not airflow.blobs
    assert not airflow.runs


def test_too_much_code_and_no_code_are_refused_by_name(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    path = write_job(tmp_path)
    airflow.code_limit_bytes = 3
    with pytest.raises(DataError, match=r"^code: .* the limit is 3 bytes.*train\.py"):
        client.submit(path)
    (tmp_path / "code" / ".updraftignore").write_text("*\n")
    with pytest.raises(DataError, match=r"^code: .* holds no file that is not ignored"):
        client.submit(path)
    assert not airflow.runs


def test_all_wrong_fields_are_named_and_nothing_is_asked(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    resources = {"memory": "16 Gigs", "learners": -1}
    with pytest.raises(ManifestError) as caught:
        client.submit(write_job(tmp_path, resources=resources, comand="x"))
    assert {field.path for field in caught.value.fields} >= {"resources.memory", "resources.learners", "comand"}
    assert airflow.requests == []


def test_what_this_version_does_not_act_on_is_refused(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="elastic"):
        client.submit(write_job(tmp_path, elastic={"max_learners": 2}))
    assert airflow.requests == []


def test_what_only_the_platform_can_refuse_is_refused_before_the_upload(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    answer = {"valid": False, "errors": [{"field": "tenant", "message": "tenant: 'vision' is not a tenant"}]}
    airflow.override = lambda r: httpx.Response(200, json=answer) if r.url.path.endswith("/possible") else None
    with pytest.raises(InvalidRequestError, match="nothing was submitted") as caught:
        client.submit(write_job(tmp_path, tenant="vision"))
    assert caught.value.fields == (("tenant", "tenant: 'vision' is not a tenant"),)
    assert not airflow.blobs


def test_a_part_that_stays_away_stops_the_submission_by_name(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    path = write_job(tmp_path)
    airflow.parts = {"cluster": "connection refused"}
    with pytest.raises(
        UnavailableError, match=r"^The cluster is not reachable \(connection refused\); nothing was submitted"
    ):
        client.submit(path)
    airflow.parts = {"cluster": "a", "storage": "b", "mlflow": "c"}
    with pytest.raises(UnavailableError, match=r"^The object store and the cluster are not reachable \(b; a\)"):
        client.submit(path)
    assert not airflow.blobs
    assert not airflow.runs


def test_a_submission_waits_its_turn_while_parts_are_late(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    """A busy machine's parts answer too late now and then: two looks find none of them, the third all."""
    looks = 0

    def late(request: httpx.Request) -> httpx.Response | None:
        nonlocal looks
        if request.url.path.endswith("/health"):
            looks += 1
            airflow.parts = {"ledger": "late", "storage": "late"} if looks < 3 else {}
        return None

    airflow.override = late
    told: list[str] = []
    job = client.submit(write_job(tmp_path), on_wait=told.append)
    assert list(airflow.runs) == [job.id]
    assert told == ["waiting for the ledger and the object store, up to 60 s"]


def test_a_submission_does_not_need_mlflow(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    airflow.parts = {"mlflow": "no answer"}
    job = client.submit(write_job(tmp_path))
    assert list(airflow.runs) == [job.id]
    assert job.warnings == ("MLflow does not answer (no answer); the job is accepted and begins once it does",)


def test_what_the_platform_thinks_is_asked_again_when_nobody_answers(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    asked = 0

    def silent(request: httpx.Request) -> httpx.Response | None:
        nonlocal asked
        if request.url.path.endswith("/possible"):
            asked += 1
            if asked < 3:
                raise httpx.ReadTimeout("late", request=request)
        return None

    airflow.override = silent
    client.submit(write_job(tmp_path))
    assert asked == 3


def test_the_same_manifest_under_the_same_id_is_one_job(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    path = write_job(tmp_path)
    first, second = client.submit(path, job_id="digits-x"), client.submit(path, job_id="digits-x")
    assert (first.id, first.existed, second.id, second.existed) == ("digits-x", False, "digits-x", True)
    path.write_text(path.read_text().replace("train.py", "train.py --other"))
    with pytest.raises(RefusedError, match="'digits-x' is the id of a job with another manifest"):
        client.submit(path, job_id="digits-x")
    assert len(airflow.runs) == 1


@pytest.mark.parametrize("job_id", ["Digits", "a/b", "../x", "", "x" * 60, "1digits"])
def test_an_id_that_cannot_name_pods_is_refused(
    airflow: FakeAirflow, client: Client, tmp_path: Path, job_id: str
) -> None:
    with pytest.raises(RefusedError, match=r"^id: "):
        client.submit(write_job(tmp_path), job_id=job_id)
    assert airflow.requests == []


def test_a_mapping_is_submitted_with_paths_below_its_base(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    mapping = yaml.safe_load(write_job(tmp_path).read_text())
    job = client.submit(mapping, base=tmp_path)
    assert paths_of(airflow, airflow.runs[job.id]["conf"]["manifest"]["code"]) == ["train.py"]


def test_ffdl_manifests_are_converted_their_secrets_stored_and_warnings_told(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    store = {
        "id": "sl",
        "type": "s3_datastore",
        "training_data": {"container": "digits"},
        "training_results": {"container": "results"},
        "connection": {"auth_url": "http://s3", "user_name": "ada", "password": "hunter2"},
    }
    manifest = {
        "name": "digits",
        "version": "1.0",
        "gpus": 0,
        "cpus": 0.5,
        "learners": 1,
        "memory": "128MB",
        "data_stores": [store],
        "framework": {"name": "pytorch", "version": "latest", "command": "python train.py"},
    }
    (tmp_path / "manifest.yml").write_text(yaml.safe_dump(manifest))
    job = client.submit(tmp_path / "manifest.yml")
    assert job.warnings
    assert any("hunter2" in values.values() for values in airflow.secrets.values())
    assert "hunter2" not in json.dumps(airflow.runs[job.id])


def test_a_file_that_changes_while_it_is_sent_is_told(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    def refuse(request: httpx.Request) -> httpx.Response | None:
        if "/blobs/" not in request.url.path:
            return None
        digest = hashlib.sha256(request.read()).hexdigest()
        body = {"error": {"message": f"content: its SHA-256 is {digest[:12]}", "fields": []}}
        return httpx.Response(422, json=body)

    airflow.override = refuse
    with pytest.raises(InvalidRequestError, match="its SHA-256 is"):
        client.submit(write_job(tmp_path))
    assert not airflow.runs


@pytest.mark.parametrize("arrived", [True, False])
def test_a_run_whose_acceptance_was_lost_is_looked_for(
    airflow: FakeAirflow, client: Client, tmp_path: Path, arrived: bool
) -> None:
    def lose_answer(request: httpx.Request) -> httpx.Response | None:
        if request.method == "POST" and request.url.path.endswith("/dagRuns"):
            airflow.override = lambda _request: None
            if arrived:
                airflow(request)
            raise httpx.ReadTimeout("late")
        return None

    airflow.override = lose_answer
    assert list(airflow.runs) == []
    assert [client.submit(write_job(tmp_path)).id] == list(airflow.runs)


def test_an_airflow_that_takes_no_run_is_asked_a_bounded_number_of_times(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    asked = 0

    def never(request: httpx.Request) -> httpx.Response | None:
        nonlocal asked
        if request.method == "POST" and request.url.path.endswith("/dagRuns"):
            asked += 1
            raise httpx.ReadTimeout("late")
        return None

    airflow.override = never
    with pytest.raises(UnavailableError, match="ReadTimeout"):
        client.submit(write_job(tmp_path))
    assert asked == 3
    assert not airflow.runs


def test_a_job_of_a_manifest_with_a_dag_of_its_own_is_a_run_of_that_dag(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    airflow.job_dags = {"job_digits": "digits", "job_letters": "other-name"}
    digits = client.submit(write_job(tmp_path / "a"))
    letters = client.submit(write_job(tmp_path / "b", name="letters"))
    more = client.submit(write_job(tmp_path / "c", name="more"))
    dags = [airflow.runs[job.id]["dag_id"] for job in (digits, letters, more)]
    assert dags == ["job_digits", "train_model", "train_model"]


def test_a_job_that_is_submitted_again_stays_with_the_dag_that_has_it(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    path = write_job(tmp_path)
    assert not client.submit(path, job_id="digits-1").existed
    airflow.job_dags = {"job_digits": "digits"}
    assert client.submit(path, job_id="digits-1").existed
    assert {run["dag_id"] for run in airflow.runs.values()} == {"train_model"}


def test_a_dag_that_the_user_may_not_see_takes_no_job(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    airflow.job_dags = {"job_digits": "digits"}
    airflow.override = lambda request: (
        httpx.Response(403, json={"detail": "Forbidden"}) if request.url.path.endswith("/details") else None
    )
    job = client.submit(write_job(tmp_path))
    assert airflow.runs[job.id]["dag_id"] == "train_model"
