"""Halt, resume, attempts, checkpoints, and how a job that recovers is shown."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import NOW, FakeAirflow, job_answer

from updraft.cli.recovery import read_changes
from updraft.exceptions import DataError

LOSS = {
    "attempt": 1,
    "role": "train",
    "cause": "infrastructure",
    "label": "node.lost",
    "reason": "its node is lost",
    "text": "attempt 1 of train was lost to infrastructure (node.lost)",
}
ASKED = {"seq": 1, "kind": "halt", "by": "ada", "at": NOW}


def serve(airflow: FakeAirflow, tails: dict[str, Any], status: int = 200) -> list[Any]:
    """Answers by the end of the path; returns the bodies that were sent."""
    sent: list[Any] = []

    def override(request: httpx.Request) -> httpx.Response | None:
        for tail, answer in tails.items():
            if request.url.path.endswith(tail):
                sent.append(json.loads(request.content or b"null"))
                return httpx.Response(status, json=answer)
        return None

    airflow.override = override
    return sent


# --- acting ---


def test_halt_and_resume_say_what_happens(airflow: FakeAirflow, run: Run) -> None:
    message = {"id": "digits-1", "message": "Halting was asked for."}
    serve(airflow, {"/halt": message})
    assert run("halt", "digits-1").out == "digits-1: Halting was asked for.\n"
    assert json.loads(run("halt", "digits-1", "--json").out) == message
    sent = serve(airflow, {"/resume": message})
    arguments = ("--set", "resources.memory=4GiB", "--set", "env.A=1", "--params", "lr=0.01", "--params", "v=null")
    assert run("resume", "digits-1", *arguments).code == 0
    assert sent == [
        {"changes": {"resources": {"memory": "4GiB"}, "env": {"A": "1"}, "params": {"lr": 0.01, "v": None}}}
    ]


def test_wait_leaves_with_the_code_of_what_happened(airflow: FakeAirflow, run: Run) -> None:
    accepted = {"id": "digits-1", "message": "asked", "request": ASKED}

    def answered(answer: str | None, state: str) -> None:
        airflow.jobs["digits-1"] = [job_answer(state=state)]
        serve(airflow, {"/halt": accepted, "/requests": {"requests": [{**ASKED, "answer": answer}]}})

    answered("halted; the last checkpoint is step-3", "HALTED")
    assert run("halt", "digits-1", "--wait").out == "digits-1: halted; the last checkpoint is step-3\n"
    answered("the job has ended FAILED: exit code 1", "FAILED")
    failed = run("halt", "digits-1", "--wait")
    assert (failed.code, "ended FAILED" in failed.err) == (1, True)
    answered(None, "PROCESSING")
    late = run("halt", "digits-1", "--wait", "--timeout", "0")
    assert (late.code, "the request stays" in late.err) == (4, True)


def test_what_is_refused_leaves_with_3_and_wrong_changes_with_2(airflow: FakeAirflow, run: Run) -> None:
    serve(airflow, {"/halt": {"error": {"message": "halt: job 'digits-1' is halted already"}}}, 409)
    refused = run("halt", "digits-1")
    assert (refused.code, refused.err) == (3, "error: halt: job 'digits-1' is halted already\n")
    fields = [{"field": "name", "message": "name: cannot change when a job goes on"}]
    serve(airflow, {"/resume": {"error": {"message": "changes: 1 field is wrong", "fields": fields}}}, 422)
    wrong = run("resume", "digits-1", "--set", "name=x")
    assert (wrong.code, "  name: cannot change when a job goes on\n" in wrong.err) == (2, True)
    message = "changes: 1 field is wrong\n  name: cannot change when a job goes on"
    serve(airflow, {"/resume": {"error": {"message": message, "fields": fields}}}, 422)
    assert run("resume", "digits-1", "--set", "name=x").err.count("cannot change") == 1


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        (["command=true"], {"command": "true"}),
        (["command=python a.py --x=1"], {"command": "python a.py --x=1"}),
        (["params.optim.lr=1e-3"], {"params": {"optim.lr": 0.001}}),
        (["checkpoints.keep.best=5", "checkpoints.every=9s"], {"checkpoints": {"keep": {"best": 5}, "every": "9s"}}),
        (['params={"a": [1]}'], {"params": {"a": [1]}}),
        (["env.A=null", "env.B=", "resources.gpus=1"], {"env": {"A": None, "B": ""}, "resources": {"gpus": 1}}),
        (['params.version="2"', "params.on=true"], {"params": {"version": "2", "on": True}}),
    ],
)  # fmt: skip
def test_changes_are_read_as_they_are_meant(given: list[str], changes: dict[str, Any]) -> None:
    assert read_changes(given) == changes


@pytest.mark.parametrize(
    "given",
    [["memory"], ["=4"], ["resources.=4"], [".memory=4"], ["params.a=1", "params.a=2"], ["params=1", "params.a=2"]],
)
def test_changes_that_cannot_be_read_are_refused(given: list[str], run: Run) -> None:
    with pytest.raises(DataError, match="--set"):
        read_changes(given)
    flags = [word for item in given for word in ("--set", item)]
    assert run("resume", "digits-1", *flags).code == 2


@pytest.mark.parametrize("given", [["lr"], ["=1"], ["lr=1", "lr=2"]])
def test_params_that_cannot_be_read_are_told_under_their_own_option(given: list[str], run: Run) -> None:
    ran = run("resume", "digits-1", *(word for item in given for word in ("--params", item)))
    assert ran.code == 2
    assert f"--params {given[-1].split('=')[0]!r}" in ran.err or f"--params {given[-1]!r}" in ran.err
    assert "--set" not in ran.err


def test_a_param_may_have_dots_in_its_name() -> None:
    assert read_changes((), ["optim.lr=1e-3"]) == {"params": {"optim.lr": 0.001}}


# --- looking ---


def test_attempts_tell_how_each_ended_and_what_was_done(airflow: FakeAirflow, run: Run) -> None:
    assert_nothing = {"attempts": []}
    serve(airflow, {"/attempts": assert_nothing})
    assert run("attempts", "digits-1").out == "nothing was launched yet\n"
    lost = {
        "number": 1, "role": "train", "started_at": NOW, "ended_at": "2026-01-01T00:01:00Z",
        "cause": "infrastructure", "label": "node.lost", "reason": "learner 1: its node is lost",
        "first_step": 1, "last_step": 340, "done": "relaunched after 5 s on another node from step-300",
    }  # fmt: skip
    plan = {"checkpoint": "step-300", "step": 300, "repeats": 40, "reason": "the newest"}
    again = {"number": 2, "role": "train", "started_at": NOW, "resume": plan, "first_step": 301, "last_step": 310}
    serve(airflow, {"/attempts": {"attempts": [lost, again]}})
    head, first, second = run("attempts", "digits-1").out.splitlines()
    assert head.split()[:4] == ["attempt", "role", "learners", "began"]
    for words in ("60 s", "1 to 340", "infrastructure (node.lost)", lost["done"], lost["reason"]):
        assert str(words) in first
    for words in ("step-300", "301 to 310, 40 repeated", "runs"):
        assert words in second
    document = json.loads(run("attempts", "digits-1", "--json").out)
    assert [item["number"] for item in document["attempts"]] == [1, 2]


def test_checkpoints_that_are_gone_are_counted_and_shown_on_request(airflow: FakeAirflow, run: Run) -> None:
    made = [
        {"name": "step-1", "step": 1, "state": "deleted", "reason": "older than the 3 newest"},
        {"name": "step-2", "step": 2, "state": "quarantined", "reason": "its checksum is wrong"},
        {"name": "step-3", "step": 3, "attempt": 2, "size_bytes": 2048, "metrics": {"acc": 0.5}},
    ]
    serve(airflow, {"/checkpoints": {"checkpoints": made}})
    shown = run("checkpoints", "digits-1").out
    assert "step-3" in shown
    assert "step-1" not in shown
    assert "not kept: 1 deleted, 1 quarantined; show them with --all" in shown
    everything = run("checkpoints", "digits-1", "--all").out
    assert "quarantined: its checksum is wrong" in everything
    assert "not kept" not in everything
    names = [item["name"] for item in json.loads(run("checkpoints", "digits-1", "--json").out)["checkpoints"]]
    assert names == ["step-3"]
    serve(airflow, {"/checkpoints": {"checkpoints": []}})
    assert run("checkpoints", "digits-1").out == "no checkpoints\n"


def test_a_job_that_recovers_is_listed_with_attempt_and_cause(airflow: FakeAirflow, run: Run) -> None:
    said = "Airflow says success of train (marked by eve); evidence says program"
    jobs = [
        job_answer("recovers-1", "RECOVERING", attempt=1, loss=LOSS, requests=[ASKED]),
        job_answer("runs-1", attempt=2, loss=LOSS),
        job_answer("failed-1", "FAILED", attempt=3, loss={**LOSS, "attempt": 3, "cause": "program", "label": None}),
        job_answer("marked-1", "FAILED", override=said),
    ]
    serve(airflow, {"/jobs": {"jobs": jobs}})
    rows = {row.split()[0]: row for row in run("list").out.splitlines()[1:]}
    assert "RECOVERING  1: infrastructure (node.lost)" in rows["recovers-1"]
    assert "halt was asked for by ada" in rows["recovers-1"]
    assert rows["runs-1"].split()[1:3] == ["PROCESSING", "2"]
    assert "3: program" in rows["failed-1"]
    assert said in rows["marked-1"]


def test_show_tells_loss_requests_and_what_airflow_was_made_to_say(airflow: FakeAirflow, run: Run) -> None:
    airflow.runs["digits-1"] = {"dag_id": "train_model", "state": "running", "tasks": []}
    said = "Airflow says success of train (marked by eve); evidence says program"
    airflow.jobs["digits-1"] = [job_answer(attempt=2, loss=LOSS, requests=[ASKED], override=said)]
    out = run("show", "digits-1").out
    for words in (LOSS["text"], "halt was asked for by ada", said):
        assert str(words) in out


# --- the terminal ---

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\x1bP1$tx\x1b\\\u202ered\x08\x00\x85"


def poison(value: Any) -> Any:
    """The answer with something evil at the end of every text that is not a time."""
    if isinstance(value, dict):
        return {key: poison(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item) for item in value]
    return value + EVIL if isinstance(value, str) and not value.startswith("2026-") else value


def test_nothing_from_elsewhere_takes_the_terminal_over(airflow: FakeAirflow, run: Run) -> None:
    """Every command that shows what a program, another user or another server has written."""
    airflow.runs["digits-1"] = {
        "dag_id": "train_model",
        "state": "running",
        "tasks": [{"task_id": f"train{EVIL}", "state": "running", "start_date": NOW, "try_number": 2}],
    }
    learner = {"role": "train", "attempt": 1, "learner": 1, "phase": "running", "progress": {"step": 1}}
    job = poison(
        job_answer(
            attempt=1, loss=LOSS, requests=[ASKED], override="x", learners=[learner] * 2, metrics={f"loss{EVIL}": 1.0},
            transitions=[{"at": NOW, "state": "QUEUED", "reason": "place 1"}], queue={"place": 1, "reason": "r"},
            links={"airflow_run": "http://a/run", "page": "http://a/page"}, model={"name": "m", "version": "1"},
        )
    )  # fmt: skip
    ended = {**job, "ended": True, "verdict": poison({"state": "FAILED", "code" + EVIL: "C201"})}
    line = {"n": 1, "t": NOW, "line": f"a\tb\x1b[31m{EVIL}"}
    page = {"role": "train", "attempt": 1, "latest_attempt": 1, "learner": 1, "after": 1}
    point = {"step": 1, "t": 1.0, "value": 1.0}
    attempt = {"number": 1, "role": "train", "started_at": NOW, "cause": "x", "label": "y", "reason": "z", "done": "d"}

    def override(request: httpx.Request) -> httpx.Response | None:
        last = request.url.path.rpartition("/")[2]
        shown = {
            "jobs": {"jobs": [job]},
            "digits-1": job if request.url.path.startswith("/updraft") else None,
            "ended-1": ended if request.url.path.startswith("/updraft") else None,
            "logs": {**page, "lines": [line] if request.url.params.get("after") == "0" else []},
            "metrics": {"run_id": "r", "last": {"loss" + EVIL: 1.0}, "history": {"loss" + EVIL: [point]}},
            "checkpoints": poison({"checkpoints": [{"name": "step-1", "state": "kept", "reason": "r", "metrics": {}}]}),
            "attempts": {"attempts": [poison(attempt)]},
            "requests": {"requests": [poison(ASKED)]},
            "halt": poison({"id": "digits-1", "message": "m"}),
            "resume": None,
            "secrets": poison({"secrets": ["hub"]}),
        }
        if last == "resume":
            fields = [{"field": f"f{EVIL}", "message": f"m{EVIL}"}]
            return httpx.Response(422, json={"error": {"message": f"wrong{EVIL}", "fields": fields}})
        if last == "taskInstances":
            return httpx.Response(200, json={"task_instances": airflow.runs["digits-1"]["tasks"]})
        return httpx.Response(200, json=shown[last]) if shown.get(last) else None

    airflow.override = override
    commands = (
        ("list",), ("show", "digits-1"), ("show", "ended-1"), ("logs", "digits-1", "-t"), ("metrics", "digits-1"),
        ("metrics", "digits-1", "-k", "unknown"), ("checkpoints", "digits-1", "--all"), ("attempts", "digits-1"),
        ("halt", "digits-1"), ("resume", "digits-1"), ("secrets", "list"), ("show", "ended-1", "--follow"),
    )  # fmt: skip
    for command in commands:
        for flags in ((), ("--json",)):
            ran = run(*command, *flags)
            written = ran.out + ran.err
            assert len(written) > 5, command
            seen = [c for c in written if not c.isprintable() and c not in "\t\n"]
            assert seen == [], (command, flags, seen)


def test_what_is_plain_text_stays_as_it_is(airflow: FakeAirflow, run: Run) -> None:
    text = "loss 0.5 :bug: [bold]größe[/] 100 % \u4f60\u597d"
    serve(airflow, {"/halt": {"id": "digits-1", "message": text}})
    assert run("halt", "digits-1").out == f"digits-1: {text}\n"


@pytest.mark.parametrize(
    ("states", "options", "code", "said"),
    [
        (("PROCESSING", "CANCELLED"), ("--wait",), 0, "digits-1: CANCELLED (because)"),
        (("PROCESSING", "COMPLETED"), ("--wait",), 1, "job digits-1 was not cancelled: it is COMPLETED (because)"),
        (("PROCESSING",), ("--wait", "--timeout", "0"), 4, "has not ended within 0 s; the request to cancel it stays"),
        (("PROCESSING",), (), 0, "digits-1: It ends."),
    ],
)
def test_cancel_waits_and_leaves_with_the_code_of_what_happened(
    airflow: FakeAirflow, run: Run, states: tuple[str, ...], options: tuple[str, ...], code: int, said: str
) -> None:
    airflow.jobs["digits-1"] = [job_answer(state=state) for state in states]
    message = {"id": "digits-1", "message": "It ends."}
    airflow.override = lambda r: httpx.Response(202, json=message) if r.url.path.endswith("/cancel") else None
    ran = run("cancel", "digits-1", *options)
    assert (ran.code, said in ran.out + ran.err) == (code, True), ran
