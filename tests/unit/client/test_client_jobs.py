"""Reading jobs, following logs, downloading, cancelling."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from unit.client.client_fakes import NOW, FakeAirflow, job_answer

from updraft.client import Client
from updraft.exceptions import NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft.schemas import JobDetail


def accepted(airflow: FakeAirflow, state: str = "queued") -> None:
    airflow.runs["digits-1"] = {
        "dag_id": "train_model",
        "dag_run_id": "digits-1",
        "state": state,
        "conf": {"manifest": {"name": "digits"}},
        "queued_at": NOW,
    }


def test_a_job_that_nobody_knows_is_not_found(client: Client) -> None:
    with pytest.raises(NotFoundError, match="'digits-1' does not exist"):
        client.job("digits-1")


@pytest.mark.parametrize("job_id", ["", ".", ".."])
def test_an_id_that_would_be_another_path_is_refused(client: Client, job_id: str) -> None:
    with pytest.raises(RefusedError):
        client.job(job_id)


def test_wait_returns_the_ended_job(airflow: FakeAirflow, client: Client) -> None:
    airflow.jobs["digits-1"] = [job_answer(), job_answer(state="STORING"), job_answer(state="COMPLETED")]
    assert client.wait("digits-1").state == "COMPLETED"


def test_wait_gives_up_in_time(airflow: FakeAirflow, client: Client) -> None:
    airflow.jobs["digits-1"] = [job_answer()]
    with pytest.raises(UnavailableError, match="is still PROCESSING"):
        client.wait("digits-1", timeout_seconds=0)


def test_wait_outlives_a_platform_that_restarts(
    airflow: FakeAirflow, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[JobDetail | None] = [None, None, JobDetail.model_validate(job_answer(state="COMPLETED"))]

    def job(_self: Client, _job_id: str) -> JobDetail:
        if (found := answers.pop(0)) is None:
            raise UnavailableError("Airflow did not answer")
        return found

    monkeypatch.setattr(Client, "job", job)
    assert client.wait("digits-1").state == "COMPLETED"
    answers[:] = [None]
    monkeypatch.setattr("updraft.client.client.AWAY_SECONDS", 0)
    with pytest.raises(UnavailableError, match="did not answer"):
        client.wait("digits-1")
    answers[:] = [None]
    with pytest.raises(UnavailableError, match="did not answer"):
        client.wait("digits-1", timeout_seconds=0)


def test_cancel_ends_a_run_whose_first_task_has_not_come(airflow: FakeAirflow, client: Client) -> None:
    accepted(airflow)
    assert "before its first task" in client.cancel("digits-1")
    assert airflow.runs["digits-1"]["state"] == "failed"
    assert "ended in Airflow already" in client.cancel("digits-1")
    with pytest.raises(NotFoundError):
        client.cancel("digits-2")


def test_stages_are_in_the_order_of_a_jobs_life(airflow: FakeAirflow, client: Client) -> None:
    accepted(airflow)
    airflow.jobs["digits-1"] = [job_answer()]
    airflow.runs["digits-1"]["tasks"] = [
        {
            "task_id": "train",
            "state": "deferred",
            "start_date": "2026-01-01T00:00:09Z",
            "end_date": None,
            "try_number": 1,
        },
        {"task_id": "promote", "state": None, "start_date": None, "end_date": None, "try_number": 0},
        {"task_id": "admit", "state": "success", "start_date": NOW, "end_date": NOW, "try_number": 1},
    ]
    stages = client.stages(client.job("digits-1"))
    assert [(stage.name, stage.state) for stage in stages] == [
        ("admit", "success"),
        ("train", "deferred"),
        ("promote", "none"),
    ]


def serve_log(airflow: FakeAirflow, attempts: dict[int, list[str]], page: int = 2) -> None:
    """The log of each attempt, in pages; a line is served once its attempt is there."""

    def override(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/logs"):
            return None
        query = request.url.params
        if not attempts:
            return httpx.Response(404, json={"error": {"message": "not launched yet", "fields": []}})
        attempt = int(query.get("attempt") or max(attempts))
        after, limit = int(query["after"]), min(page, int(query.get("limit") or page))
        lines = list(enumerate(attempts[attempt], 1))[after : after + limit]
        return httpx.Response(
            200,
            json={
                "role": "train",
                "attempt": attempt,
                "latest_attempt": max(attempts),
                "learner": 1,
                "lines": [{"n": n, "t": NOW, "line": text} for n, text in lines],
                "after": lines[-1][0] if lines else after,
            },
        )

    airflow.override = override


def test_a_log_is_read_page_by_page(airflow: FakeAirflow, client: Client) -> None:
    serve_log(airflow, {1: ["a", "b", "c", "d", "e"]})
    assert [line.line for line in client.logs("digits-1")] == ["a", "b", "c", "d", "e"]
    assert [line.line for line in client.logs("digits-1", after=1, limit=3)] == ["b", "c", "d"]


def test_following_goes_on_over_attempts_and_gives_each_line_once(airflow: FakeAirflow, client: Client) -> None:
    attempts: dict[int, list[str]] = {}
    happen = iter(
        [
            lambda: attempts.update({1: ["a"]}),
            lambda: attempts[1].append("b"),
            lambda: attempts.update({2: ["c"]}),
            lambda: airflow.jobs.update({"digits-1": [job_answer(state="COMPLETED")]}),
        ]
    )
    client._sleep = lambda _seconds: next(happen)()
    airflow.jobs["digits-1"] = [job_answer()]
    serve_log(airflow, attempts)
    assert [line.line for line in client.logs("digits-1", follow=True)] == ["a", "b", "c"]


def test_a_log_that_never_came_is_told_at_the_end(airflow: FakeAirflow, client: Client) -> None:
    airflow.jobs["digits-1"] = [job_answer(), job_answer(), job_answer(state="FAILED")]
    serve_log(airflow, {})
    with pytest.raises(NotFoundError, match="not launched yet"):
        list(client.logs("digits-1", follow=True))


def serve_files(airflow: FakeAirflow, files: dict[str, bytes], sizes: dict[str, int] | None = None) -> None:
    def override(request: httpx.Request) -> httpx.Response | None:
        _, found, path = request.url.path.partition("/jobs/digits-1/file")
        if not found:
            return None
        if path == "s":
            entries = [{"path": p, "size_bytes": (sizes or {}).get(p, len(c))} for p, c in files.items()]
            return httpx.Response(200, json={"kind": "model", "files": entries})
        return httpx.Response(200, content=files[request.url.params["path"]])

    airflow.override = override


def test_files_are_written_below_the_folder(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    serve_files(airflow, {"model/weights bin": b"w" * 1000, "MLmodel": b"m"})
    written = client.download("digits-1", "model", tmp_path / "out")
    assert written == [tmp_path / "out" / "model" / "weights bin", tmp_path / "out" / "MLmodel"]
    assert [path.read_bytes() for path in written] == [b"w" * 1000, b"m"]


def test_a_cut_download_leaves_no_file(airflow: FakeAirflow, client: Client, tmp_path: Path) -> None:
    serve_files(airflow, {"weights": b"half"}, {"weights": 8})
    with pytest.raises(UpdraftError, match="'weights': 4 of 8 bytes arrived"):
        client.download("digits-1", "model", tmp_path)
    assert list(tmp_path.iterdir()) == []


NASTY_NAMES = ["a b", "two\nlines", "50%?#&=+.bin", "back\\slash", "ünï/中文", "-rf", ".hidden", "a:b*", " ", "%2e%2e"]


@pytest.mark.parametrize("name", NASTY_NAMES)
def test_every_name_of_a_file_arrives_as_it_is(airflow: FakeAirflow, client: Client, tmp_path: Path, name: str) -> None:
    serve_files(airflow, {name: b"x"})
    assert client.download("digits-1", "model", tmp_path) == [tmp_path / name]
    assert (tmp_path / name).read_bytes() == b"x"


def test_files_that_fail_are_named_at_the_end_and_the_others_are_there(
    airflow: FakeAirflow, client: Client, tmp_path: Path
) -> None:
    cut = {f"cut{n:02d}": b"x" for n in range(25)}
    serve_files(airflow, {"a" * 300: b"x", **cut, "good": b"x"}, dict.fromkeys(cut, 2))
    with pytest.raises(UpdraftError) as caught:
        client.download("digits-1", "model", tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"26 of 27 files were not downloaded; the others are in {tmp_path}:"
    assert lines[1].endswith("it cannot be written (File name too long)")
    assert lines[2] == "  'cut00': 1 of 2 bytes arrived; download it again"
    assert lines[-1] == "  and 6 more"
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


@pytest.mark.parametrize("path", ["../evil", "/tmp/evil", "a/../../evil"])
def test_a_path_that_leads_out_of_the_folder_is_refused(
    airflow: FakeAirflow, client: Client, tmp_path: Path, path: str
) -> None:
    serve_files(airflow, {path: b"x"})
    with pytest.raises(UpdraftError, match="leads out of"):
        client.download("digits-1", "model", tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_importing_updraft_imports_nothing_else() -> None:
    code = "import sys, updraft; print([m for m in sys.modules if m.split('.')[0] in ('httpx', 'pydantic', 'airflow')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_module_offers_the_clients_verbs() -> None:
    import updraft

    for name in updraft.__all__:
        assert callable(getattr(updraft, name)), name
    assert updraft.submit.__doc__ == Client.submit.__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = updraft.nothing


def test_a_schedule_that_a_submission_does_not_act_on_is_told() -> None:
    from updraft.client.submission import read_manifest

    raw = {"name": "nightly", "framework": {"name": "shell"}, "command": "true", "schedule": {"cron": "0 3 * * *"}}
    assert "runs once, now" in read_manifest(raw).warnings[0]


def test_code_that_never_hands_its_model_over_is_told_before_the_training(tmp_path: Path) -> None:
    from updraft.client.submission import read_manifest

    (tmp_path / "train.py").write_text("print('trained')")
    raw = {
        "name": "a",
        "framework": {"name": "pytorch"},
        "code": ".",
        "command": "python train.py",
        "export": {"formats": ["onnx"]},
    }
    (warning,) = read_manifest(raw, tmp_path).warnings
    assert "calls save_model" in warning
    assert "updraft_learner.save_model(model, example_input)" in warning
    (tmp_path / "train.py").write_text("from updraft_learner import save_model\nsave_model(model, example)")
    assert read_manifest(raw, tmp_path).warnings == ()
    (tmp_path / "train.py").write_text("print('no export asked')")
    assert read_manifest({**raw, "export": None}, tmp_path).warnings == ()
    trusted = {"formats": ["mlflow"], "trust_code": True}
    assert read_manifest({**raw, "export": trusted}, tmp_path).warnings == ()
