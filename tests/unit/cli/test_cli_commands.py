"""What each command prints and how it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import webbrowser
from pathlib import Path

import httpx
import pytest
import yaml
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import NOW, FakeAirflow, job_answer

from updraft.cli.planned import as_yaml
from updraft.cli.runs import show_pages

HEAVY = ("airflow", "sqlalchemy", "boto3", "mlflow", "kubernetes", "pandas", "torch", "pydantic", "httpx")


def manifest(folder: Path, **fields: object) -> str:
    content = {"name": "digits", "framework": {"name": "shell"}, "command": "true", **fields}
    path = folder / "manifest.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['updraft', '--help']\n"
        "from updraft.cli import main\n"
        "try: main()\n"
        f"finally: print([m for m in sys.modules if m.split('.')[0] in {HEAVY!r}], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"
    assert "submit" in ran.stdout


# --- submit, validate, cancel ---


def test_submit_prints_the_id_and_how_to_follow(airflow: FakeAirflow, run: Run, tmp_path: Path) -> None:
    ran = run("submit", manifest(tmp_path))
    (job_id,) = airflow.runs
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{job_id} submitted\nfollow it with: updraft show {job_id} --follow\n"


def test_submit_twice_under_one_id_says_so(run: Run, tmp_path: Path) -> None:
    path = manifest(tmp_path)
    assert json.loads(run("submit", path, "--id", "digits-x", "--json").out)["existed"] is False
    again = run("submit", path, "--id", "digits-x")
    assert again.out.startswith("digits-x was submitted before")
    (tmp_path / "manifest.yaml").write_text((tmp_path / "manifest.yaml").read_text() + "description: other\n")
    other = run("submit", path, "--id", "digits-x")
    assert (other.code, other.out) == (3, "")
    assert "another manifest" in other.err


def test_all_wrong_fields_are_printed_readably_and_as_json(run: Run, tmp_path: Path) -> None:
    path = manifest(tmp_path, comand="x", resources={"memory": "16 Gigs", "learners": -1})
    ran = run("submit", path)
    assert (ran.code, ran.out) == (2, "")
    for words in ("comand: no such field; did you mean 'command'?", "resources.memory", "resources.learners"):
        assert words in ran.err
    document = json.loads(run("submit", path, "--json").err)
    assert document["error"]["exit_code"] == 2
    assert {field["field"] for field in document["error"]["fields"]} >= {
        "comand",
        "resources.memory",
        "resources.learners",
    }


@pytest.mark.parametrize("content", ["", "[1]", "a: [", "\x00", "name: x"])
def test_a_file_that_is_no_manifest_is_told(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "m.yaml").write_text(content)
    ran = run("validate", "--offline", str(tmp_path / "m.yaml"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: m.yaml")
    assert run("validate", str(tmp_path / "absent.yaml")).code == 2


def test_a_submission_is_accepted_without_mlflow_and_says_so(airflow: FakeAirflow, run: Run, tmp_path: Path) -> None:
    airflow.parts = {"mlflow": "connection refused"}
    ran = run("submit", "--id", "digits-1", manifest(tmp_path))
    assert ran.code == 0, ran.err
    assert "MLflow does not answer (connection refused); the job is accepted and begins once it does" in ran.err
    assert list(airflow.runs) == ["digits-1"]


def test_a_part_that_stays_away_is_told_before_anything_is_submitted(
    airflow: FakeAirflow, run: Run, tmp_path: Path
) -> None:
    airflow.parts = {"storage": "connection refused"}
    ran = run("submit", manifest(tmp_path))
    assert ran.code == 4
    assert "waiting for the object store, up to 60 s" in ran.err
    assert "The object store is not reachable (connection refused); nothing was submitted" in ran.err
    assert not airflow.runs


def test_validate_asks_the_platform_too(airflow: FakeAirflow, run: Run, tmp_path: Path) -> None:
    path = manifest(tmp_path)
    assert run("validate", path).out == f"{path}: valid\n"
    answer = {
        "valid": False,
        "errors": [{"field": "framework.name", "message": "framework.name: 'shell' has no image"}],
    }
    airflow.override = lambda r: httpx.Response(200, json=answer) if r.url.path.endswith("/possible") else None
    ran = run("validate", path)
    assert ran.code == 2
    assert "  framework.name: 'shell' has no image" in ran.err
    found = run("validate", path, "--json")
    assert (found.code, json.loads(found.out)) == (2, {**answer, "warnings": []})
    assert run("validate", path, "--offline").code == 0


def test_validate_prints_what_the_job_would_create(airflow: FakeAirflow, run: Run, tmp_path: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "<job>-t1-0"}}
    answer = {"roles": [{"role": "prepare", "objects": [pod]}, {"role": "train", "objects": [pod, pod]}]}
    airflow.override = lambda r: httpx.Response(200, json=answer) if r.url.path.endswith("/planned") else None
    path = manifest(tmp_path)
    ran = run("validate", path, "--pods")
    assert ran.code == 0
    assert list(yaml.safe_load_all(ran.out))[-3:] == [pod, pod, pod]
    assert "# prepare: 1 object, unless code and judged data are in the store already" in ran.out
    assert json.loads(run("validate", path, "--pods", "--json").out)["planned"] == answer["roles"]
    assert run("validate", path, "--pods", "--offline").code == 2


def test_the_objects_are_readable_in_80_columns() -> None:
    config = json.dumps({f"parameter_{n}": "<mlflow-run>" for n in range(20)})
    program = "until [ -e staged ]; do\n  sleep 0.1\ndone\n"
    made = {"kind": "Pod", "spec": {"containers": [{"args": [program, "trailing \nline"], "env": [{"value": config}]}]}}
    text = as_yaml(made)
    assert yaml.safe_load(text) == made
    assert max(map(len, text.splitlines())) <= 80
    assert "\n      until [ -e staged ]; do\n        sleep 0.1\n      done\n" in text, text


def test_pods_are_not_guessed_without_a_platform(airflow: FakeAirflow, run: Run, tmp_path: Path) -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no")

    airflow.override = refuse
    ran = run("validate", manifest(tmp_path), "--pods")
    assert (ran.code, ran.out) == (4, "")


def test_validate_without_a_platform_checks_the_file(airflow: FakeAirflow, run: Run, tmp_path: Path) -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no")

    airflow.override = refuse
    ran = run("validate", manifest(tmp_path))
    assert ran.code == 0
    assert "only the manifest was checked" in ran.err


def test_cancel(airflow: FakeAirflow, run: Run) -> None:
    message = {"id": "digits-1", "message": "Cancelling was asked for; the job ends within seconds."}
    airflow.override = lambda r: httpx.Response(202, json=message) if r.url.path.endswith("/cancel") else None
    assert run("cancel", "digits-1").out == f"digits-1: {message['message']}\n"
    assert json.loads(run("cancel", "digits-1", "--json").out) == message


# --- looking ---


def serve(airflow: FakeAirflow, tail: str, answer: object) -> None:
    airflow.override = lambda r: httpx.Response(200, json=answer) if r.url.path.endswith(tail) else None


def test_list(airflow: FakeAirflow, run: Run) -> None:
    model = {"name": "digits", "version": "3"}
    jobs = [
        job_answer(progress={"step": 5, "total": 10}),
        job_answer("digits-0", "COMPLETED", model=model, reason="[bold]registered[/]"),
    ]
    serve(airflow, "/jobs", {"jobs": jobs})
    rows = run("list").out.splitlines()
    assert [row.split()[:3] for row in rows[1:]] == [
        ["digits-1", "PROCESSING", "50"],
        ["digits-0", "COMPLETED", "digits"],
    ]
    assert "[bold]registered[/]" in rows[2]
    assert [job["id"] for job in json.loads(run("list", "--json").out)["jobs"]] == ["digits-1", "digits-0"]
    serve(airflow, "/jobs", {"jobs": []})
    assert run("list").out == "no jobs\n"


def test_show(airflow: FakeAirflow, run: Run) -> None:
    airflow.runs["digits-1"] = {"dag_id": "train_model", "state": "running", "tasks": []}
    transitions = [{"at": NOW, "state": "QUEUED", "reason": "place 2: waits for 2 cpus"}]
    links = {"airflow_run": "http://airflow/run", "mlflow_run": "http://mlflow/run"}
    queue = {"place": 2, "reason": "waits for 2 cpus"}
    airflow.jobs["digits-1"] = [job_answer(state="QUEUED", transitions=transitions, links=links, queue=queue)]
    out = run("show", "digits-1").out
    for words in ("place 2 in the queue", "place 2: waits for 2 cpus", "http://airflow/run", "http://mlflow/run"):
        assert words in out
    assert json.loads(run("show", "digits-1", "--json").out)["stages"] == []
    unknown = run("show", "digits-9")
    assert (unknown.code, unknown.err) == (5, "error: job: 'digits-9' does not exist\n")


def test_show_draws_the_sizes_of_an_elastic_job(airflow: FakeAirflow, run: Run) -> None:
    airflow.runs["digits-1"] = {"dag_id": "train_model", "state": "running", "tasks": []}
    sizes = [
        {"learners": 1, "batch": 64, "speedup": 1.0, "step_seconds": 0.25},
        {"learners": 2, "batch": 128, "speedup": 1.5, "current": True},
    ]
    airflow.jobs["digits-1"] = [job_answer(state="PROCESSING", sizes=sizes)]
    lines = [line.split() for line in run("show", "digits-1").out.splitlines() if "█" in line]
    assert lines == [["1", "64", "0.25", "s", "1.00", "█" * 16], ["2", "(now)", "128", "1.50", "█" * 24]]


def test_show_says_what_is_known_of_how_a_job_scales(airflow: FakeAirflow, run: Run) -> None:
    airflow.runs["digits-1"] = {"dag_id": "train_model", "state": "running", "tasks": []}
    remark = "It was not faster with more than 1 learner, so it gets no more."
    airflow.jobs["digits-1"] = [job_answer(gradient_noise=51_234.5, size_remarks=[remark])]
    assert f"The gradient noise scale is 51,234.5 samples.\n{remark}\n" in run("show", "digits-1").out


def test_logs_cannot_take_the_terminal_over(airflow: FakeAirflow, run: Run) -> None:
    lines = [{"n": 1, "t": NOW, "line": "loss\t0.5"}, {"n": 2, "t": NOW, "line": "\x1b]0;evil\x07\x1b[2Jred\r\x9b"}]
    page = {"role": "train", "attempt": 1, "latest_attempt": 1, "learner": 1, "lines": lines, "after": 2}

    def override(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/logs"):
            return None
        if request.url.params.get("last") == "true":
            return httpx.Response(200, json={**page, "lines": lines[-1:]})
        return httpx.Response(200, json=page if request.url.params["after"] == "0" else {**page, "lines": []})

    airflow.override = override
    assert run("logs", "digits-1").out == "loss\t0.5\nred \n"
    assert run("logs", "digits-1", "-t", "-n", "1", "--after", "0").out == f"{NOW} loss\t0.5\n"
    assert run("logs", "digits-1", "-n", "1").out == "red \n"
    documents = [json.loads(line) for line in run("logs", "digits-1", "--json").out.splitlines()]
    assert documents == lines


def test_logs_say_how_to_read_what_ran_before_a_resume(airflow: FakeAirflow, run: Run) -> None:
    page = {"role": "train", "attempt": 3, "latest_attempt": 3, "learner": 1, "lines": [], "after": 0}
    attempts = [
        {"number": n, "role": role, "started_at": NOW} for n, role in ((1, "train"), (2, "train"), (3, "train"))
    ]
    attempts.append({"number": 4, "role": "evaluate", "started_at": NOW})

    def override(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/logs"):
            return httpx.Response(200, json=page)
        return httpx.Response(200, json={"attempts": attempts}) if request.url.path.endswith("/attempts") else None

    airflow.override = override
    assert run("logs", "digits-1").err == "attempt 3; --attempt 1 or 2 shows an earlier one's log\n"
    assert run("logs", "digits-1", "--attempt", "1").err == ""
    attempts[:] = attempts[2:]
    assert run("logs", "digits-1").err == ""


def test_logs_of_a_relaunched_job_are_those_of_the_newest_attempt_that_wrote(airflow: FakeAirflow, run: Run) -> None:
    """The newest one may have been stopped, or may be staging, before its program wrote a line."""
    lines = {1: ["one"], 2: ["two"], 3: []}

    def override(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/attempts"):
            attempts = [{"number": n, "role": "train", "started_at": NOW} for n in lines]
            return httpx.Response(200, json={"attempts": attempts})
        if not request.url.path.endswith("/logs"):
            return None
        number = int(request.url.params.get("attempt") or 3)
        read = [] if int(request.url.params.get("after") or 0) else lines[number]
        found = [{"n": 1, "t": NOW, "line": line} for line in read]
        page = {"role": "train", "attempt": number, "latest_attempt": 3, "learner": 1, "lines": found, "after": 1}
        return httpx.Response(200, json=page)

    airflow.override = override
    told = "attempt 3 has written nothing; this is attempt 2; --attempt 1 shows an earlier one's log\n"
    for arguments in ((), ("-n", "5")):
        ran = run("logs", "digits-1", *arguments)
        assert (ran.out, ran.err) == ("two\n", told)
    assert run("logs", "digits-1", "--attempt", "3").out == ""
    lines[3] = ["three"]
    assert run("logs", "digits-1").out == "three\n"
    lines.update({1: [], 2: [], 3: []})
    assert run("logs", "digits-1").err == "attempt 3; --attempt 1 or 2 shows an earlier one's log\n"


def test_metrics_as_table_plot_and_json(airflow: FakeAirflow, run: Run) -> None:
    points = [{"step": n, "t": float(n), "value": None if n == 3 else 1.0 / n} for n in range(1, 9)]
    answer = {"run_id": "r", "last": {"loss": 0.125, "system/cpu": 3.0}, "history": {"loss": points}}
    serve(airflow, "/metrics", answer)
    table = run("metrics", "digits-1").out
    assert "loss" in table
    assert "▁" in table
    assert "system/cpu" not in table
    assert "system/cpu" in run("metrics", "digits-1", "--system").out
    plot = run("metrics", "digits-1", "--key", "loss").out
    assert "•" in plot
    assert json.loads(run("metrics", "digits-1", "--json").out) == answer
    unknown = run("metrics", "digits-1", "-k", "acc")
    assert (unknown.code, "its metrics are: loss" in unknown.err) == (5, True)


def test_download_into_a_new_folder(airflow: FakeAirflow, run: Run, tmp_path: Path) -> None:
    def override(request: httpx.Request) -> httpx.Response | None:
        path, kind = request.url.path, request.url.params.get("kind")
        if path.endswith("/checkpoints"):
            made = [{"name": "step-9", "step": 9}, {"name": "step-10", "step": 10}]
            return httpx.Response(200, json={"checkpoints": made})
        if path.endswith("/files"):
            return httpx.Response(200, json={"kind": kind, "files": [{"path": "w", "size_bytes": len(str(kind))}]})
        return httpx.Response(200, text=str(kind)) if path.endswith("/file") else None

    airflow.override = override
    target = tmp_path / "out"
    assert run("download", "digits-1", "checkpoint:latest", "-o", str(target)).code == 0
    assert (target / "w").read_text() == "checkpoint:step-10"
    again = run("download", "digits-1", "model", "-o", str(target))
    assert (again.code, "add --force" in again.err) == (3, True)
    assert json.loads(run("download", "digits-1", "model", "-o", str(target), "--force", "--json").out) == {
        "folder": str(target),
        "files": [str(target / "w")],
    }


def test_open_prints_the_addresses_and_says_where_there_is_no_browser(
    airflow: FakeAirflow, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> webbrowser.BaseBrowser:
        raise webbrowser.Error("none")

    airflow.jobs["digits-1"] = [job_answer(links={"airflow_run": "http://airflow/run"})]
    assert json.loads(run("open", "digits-1", "--json").out) == {"Airflow": "http://airflow/run"}
    platform = {"Airflow": "http://airflow.test", "jobs": "http://airflow.test/updraft/jobs"}
    assert json.loads(run("open", "--json").out) == platform
    show_pages([*platform.items()], "http://airflow.test", none)
    printed = capsys.readouterr()
    assert printed.out == "Airflow: http://airflow.test\njobs: http://airflow.test/updraft/jobs\n"
    assert "no browser was found" in printed.err


# --- secrets ---


def test_a_secret_comes_from_standard_input_and_is_never_printed(airflow: FakeAirflow, run: Run) -> None:
    ran = run("secrets", "set", "hub", "token", "--stdin", input="hunter2\n")
    assert (ran.code, ran.out) == (0, "secret hub holds token\n")
    assert airflow.secrets == {"hub": {"token": "hunter2"}}
    run("secrets", "set", "s3", "--stdin", input='{"access_key": "a", "secret_key": "b"}')
    assert airflow.secrets["s3"] == {"access_key": "a", "secret_key": "b"}
    assert run("secrets", "list").out == "hub\ns3\n"
    assert json.loads(run("secrets", "list", "--json").out) == {"secrets": ["hub", "s3"]}
    assert run("secrets", "rm", "hub").out == "secret hub deleted\n"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (("hub", "token=hunter2"), ""),
        (("hub", "token=hunter2", "--stdin"), "x"),
        (("hub", "--stdin"), "hunter2"),
        (("hub", "--stdin"), '["hunter2"]'),
        (("hub", "a", "b", "--stdin"), '{"a": "hunter2"}'),
        (("hub", "token"), "hunter2"),
    ],
)
def test_a_secret_given_wrongly_is_refused_without_repeating_it(
    airflow: FakeAirflow, run: Run, arguments: tuple[str, ...], given: str
) -> None:
    ran = run("secrets", "set", *arguments, input=given)
    assert ran.code == 3
    assert "hunter2" not in ran.out + ran.err
    assert airflow.secrets == {}


# --- errors ---


def test_wrong_use_leaves_with_2(run: Run) -> None:
    assert run("list", "--limit", "0").code == 2
    assert run("nothing").code == 2


def test_ctrl_c_leaves_with_130(airflow: FakeAirflow, run: Run) -> None:
    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    airflow.override = interrupt
    ran = run("list")
    assert (ran.code, ran.err) == (130, "interrupted\n")


def test_a_platform_that_does_not_answer_leaves_with_4(airflow: FakeAirflow, run: Run) -> None:
    airflow.override = lambda _request: httpx.Response(502)
    ran = run("list", "--json")
    assert (ran.code, json.loads(ran.err)["error"]["exit_code"]) == (4, 4)
