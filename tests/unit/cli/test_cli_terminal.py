"""What a person sees at 80 and at 120 columns, and when a job has failed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import NOW, FakeAirflow, job_answer, make_client

from updraft.cli import live
from updraft.manifest import ManifestError, with_params
from updraft.schemas import JobDetail, Stage
from updraft.terminal import print_table

ID = "digits-sklearn-20260101-120000-abcdef"
REASON = "learner 1 exited with 1: ValueError: could not convert string to float: 'x' in column 3 of digits.csv"
ROW = (ID, "COMPLETED", "1", "100 %", "digits-sklearn v12", "12 min 10 s ago", REASON)
HEADINGS = ("job", "state", "attempt", "progress", "model", "submitted", "reason")


def shown(width: int) -> str:
    file = io.StringIO()
    wide = Console(file=file, force_terminal=True, width=width, color_system=None, highlight=False)
    print_table(wide, HEADINGS, [ROW, (*ROW[:-1], "")], stretch="reason")
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_list_cuts_nothing_however_narrow_the_terminal(width: int) -> None:
    text = shown(width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert all(f"{ID}  COMPLETED" in line for line in (lines[1], lines[-1 if width == 120 else -2])), text
    words = " ".join(text.split())
    for cell in ("12 min 10 s ago", "digits-sklearn v12", REASON):
        assert cell in words, text


def test_names_longer_than_the_terminal_are_not_cut() -> None:
    assert ID in shown(30)


def test_what_never_ran_does_not_run_after_the_end() -> None:
    job = JobDetail.model_validate(job_answer(state="FAILED"))
    running, done = Stage(name="export_model", state="deferred"), Stage(name="admit", state="success")
    assert live.stage_state(running, job) == "removed"
    assert live.stage_state(done, job) == "success"
    going = JobDetail.model_validate(job_answer())
    assert live.stage_state(running, going) == "deferred"


def test_evidence_is_words() -> None:
    rows = live.evidence({"details": {"promotion": {"promoted": True, "alias": None}, "files": ["a", "b"]}})
    assert rows == [("details", "promotion (promoted: yes), files: a, b")]


def test_the_last_lines_of_a_failed_program_are_shown(airflow: FakeAirflow) -> None:
    lines = [{"n": n, "t": NOW, "line": f"line {n}"} for n in (1, 2)]
    page = {"role": "train", "attempt": 1, "latest_attempt": 1, "learner": 2, "lines": lines, "after": 2}
    airflow.override = _logs(page)
    learners = [
        {"role": "train", "attempt": 1, "learner": n, "phase": phase} for n, phase in ((1, "done"), (2, "failed"))
    ]
    failed = JobDetail.model_validate(job_answer(state="FAILED", attempt=1, learners=learners))
    with make_client(airflow) as client:
        assert live.last_words(client, failed) == ["", "last lines of train, learner 2:", "  line 1", "  line 2"]
        assert live.last_words(client, JobDetail.model_validate(job_answer(state="COMPLETED", attempt=1))) == []


def test_the_last_lines_are_those_of_the_role_that_failed(airflow: FakeAirflow, run: Run) -> None:
    asked: list[str] = []
    page = {"role": "evaluate", "attempt": 2, "latest_attempt": 2, "learner": 1, "after": 1}
    airflow.override = _logs({**page, "lines": [{"n": 1, "t": NOW, "line": "KeyError: 'label'"}]}, asked)
    airflow.runs["digits-1"] = {"dag_id": "train_model", "state": "failed", "tasks": []}
    loss = {"attempt": 2, "role": "evaluate", "cause": "program"}
    train = {"role": "train", "attempt": 1, "learner": 2, "phase": "failed"}
    airflow.jobs["digits-1"] = [job_answer(state="FAILED", attempt=1, loss=loss, learners=[train])]
    out = run("show", "digits-1").out
    assert out.endswith("last lines of evaluate, learner 1:\n  KeyError: 'label'\n")
    assert "role=evaluate" in asked[0]
    assert "learner=1" in asked[0]
    assert "last lines" not in run("show", "digits-1", "--json").out


def test_logs_n_prints_the_last_lines(airflow: FakeAirflow, run: Run) -> None:
    asked: list[str] = []
    lines = [{"n": n, "t": NOW, "line": f"line {n}"} for n in (8, 9)]
    page = {"role": "train", "attempt": 1, "latest_attempt": 1, "learner": 1, "lines": lines, "after": 9}
    airflow.override = _logs(page, asked)
    assert run("logs", "digits-1", "-n", "2").out == "line 8\nline 9\n"
    assert "last=true" in asked[0]
    assert "limit=2" in asked[0]


def _logs(page: object, asked: list[str] | None = None):  # type: ignore[no-untyped-def]
    import httpx

    def answer(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/logs"):
            return None
        if asked is not None:
            asked.append(str(request.url).lower())
        return httpx.Response(200, json=page)

    return answer


def test_params_have_the_manifests_types_and_names() -> None:
    manifest = {"name": "x", "params": {"epochs": 3, "lr": 0.1, "fast": False, "optimizer": "adam"}}
    changed = with_params(manifest, {"epochs": "5", "lr": "1e-3", "fast": "true", "optimizer": "5"})
    assert changed["params"] == {"epochs": 5, "lr": 0.001, "fast": True, "optimizer": "5"}
    with pytest.raises(ManifestError) as told:
        with_params(manifest, {"epochz": "5", "lr": "fast"})
    assert {field.path for field in told.value.fields} == {"params.epochz", "params.lr"}
    assert "epochs" in str(told.value)


def test_submit_takes_params(airflow: FakeAirflow, run: Run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "manifest.yaml"
    path.write_text(
        "name: digits\nframework: {name: shell}\ncommand: echo ${params.epochs} ${params.lr}\n"
        "params: {epochs: 3, lr: 0.1}\n"
    )
    assert run("submit", str(path), "--params", "epochs=5", "--params", "lr=0.01").code == 0
    (job,) = airflow.runs.values()
    assert job["conf"]["manifest"]["params"] == {"epochs": 5, "lr": 0.01}
    refused = run("submit", str(path), "--params", "epoch=5")
    assert refused.code == 2
    assert "epochs" in refused.err
    assert len(airflow.runs) == 1
