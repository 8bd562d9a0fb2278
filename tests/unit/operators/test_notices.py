"""People are told what a manifest asks for: once, through Airflow's notifiers; what fails is tried again."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from airflow.sdk.bases.notifier import BaseNotifier
from unit.operators.airflow_fakes import APPROVED, Platform

from updraft.controller import notices, promotion
from updraft.ledger import NewNotice, Notice
from updraft.lifecycle import State, Verdict
from updraft.settings import NotifierSpec, settings

Make = Callable[..., Platform]
EVERYTHING = ["started", "failed", "waiting", "promoted", "rejected", "rolled back"]
NOTICE = NewNotice("k", "team", "failed", "digits-1 has failed", "{{ 7 * 7 }} rows", "http://airflow/x", None)


class Recorder(BaseNotifier):
    """Keeps what it was asked to send."""

    template_fields = ("text",)
    sent: ClassVar[list[str]] = []
    broken: ClassVar[bool] = False

    def __init__(self, text: str = "{{ subject }} | {{ message }} | {{ url }}") -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        if Recorder.broken:
            raise ConnectionError("no route to host")
        Recorder.sent.append(self.text)


@pytest.fixture(autouse=True)
def notifiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spec = {"class": f"{__name__}.Recorder"}
    monkeypatch.setenv("UPDRAFT_NOTIFIERS", json.dumps({"team": spec, "ops": spec}))
    settings.cache_clear()
    Recorder.sent.clear()
    Recorder.broken = False
    yield
    settings.cache_clear()


def told(platform: Platform) -> list[tuple[str, str, str]]:
    found = platform.ledger.notices.of_job(platform.job.id)
    return [(notice.kind, notice.notifier, notice.message) for notice in found]


def test_a_failure_is_told_once_to_each(make_platform: Make) -> None:
    platform = make_platform(notify={"to": ["team", "ops"]})
    platform.pods_end = Platform.pods_fail
    platform.run_all()
    assert platform.job.state is State.FAILED
    reason = platform.job.reason
    assert told(platform) == [("failed", "team", reason), ("failed", "ops", reason)]
    done = notices.send_due(platform.services)
    assert done == {"failed digits-1 team": "told team", "failed digits-1 ops": "told ops"}
    assert Recorder.sent == [f"digits-1 has failed | {reason} | http://localhost:8080/updraft/jobs/digits-1"] * 2
    assert notices.send_due(platform.services) == {}
    platform.run("release")
    assert len(told(platform)) == 2


def test_a_promotion_a_question_and_a_roll_back_are_told(make_platform: Make) -> None:
    export = {"register_as": "digits", "promote_if": {"acc": ">= 0.5"}, "approval": "required"}
    platform = make_platform(notify={"to": ["team"], "on": EVERYTHING}, export=export)
    platform.run_all()
    assert [kind for kind, _, _ in told(platform)] == ["waiting", "promoted"]
    assert told(platform)[0][2] == "digits version 1 waits for approval; acc 0.9 >= 0.5"
    assert told(platform)[1][2] == "digits version 1: approved by grace: looks good; acc 0.9 >= 0.5"
    platform.mlflow.create_model_version("digits", source="x", run_id="", model_id=None)
    platform.mlflow.aliases["digits", "champion"] = "2"
    wanted = {"tenant": "default", "model": "digits", "to": "1", "by": "eve", "reason": "slow", "key": "k"}
    promotion.roll_back(platform.services, **wanted)
    promotion.roll_back(platform.services, **wanted)
    said = ("rolled back", "team", "eve made version 1 of digits the champion again: slow")
    assert told(platform)[2:] == [said]
    platform.mlflow.aliases["digits", "champion"] = "2"
    promotion.roll_back(platform.services, **{**wanted, "key": "another day"})
    assert told(platform)[2:] == [said, said]


def test_what_is_not_asked_for_is_not_told(make_platform: Make) -> None:
    platform = make_platform(notify={"to": ["team"], "on": ["failed"]})
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert told(platform) == []


def test_a_rejection_is_told(make_platform: Make) -> None:
    export = {"register_as": "digits", "promote_if": {"acc": ">= 0.5"}, "approval": "required"}
    platform = make_platform(notify={"to": ["team"], "on": ["rejected"]}, export=export)
    platform.answers = lambda _: {**APPROVED, "chosen_options": ["Reject"], "params_input": {"reason": "biased"}}
    platform.run_all()
    assert told(platform) == [("rejected", "team", "digits version 1: rejected by grace: biased")]


def test_an_unknown_notifier_ends_the_job_before_it_waits_in_the_queue(make_platform: Make) -> None:
    platform = make_platform(notify={"to": ["taem"]})
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert "notify.to[0]: 'taem' is no notifier of this platform" in platform.job.reason
    assert "write one of ops, team, such as team" in platform.job.reason


def test_a_text_is_no_template(make_platform: Make) -> None:
    platform = make_platform()
    platform.ledger.notices.put([NOTICE])
    notices.send_due(platform.services)
    assert Recorder.sent == ["digits-1 has failed | {{ 7 * 7 }} rows | http://airflow/x"]


def test_a_notifier_that_fails_is_tried_again_with_back_off_and_given_up_after_a_day(make_platform: Make) -> None:
    platform = make_platform()
    book = platform.ledger
    book.notices.put([NOTICE])
    Recorder.broken = True
    clock, passed = book._clock, timedelta(0)
    tries = 0
    while book.notices.due() or passed < timedelta(days=2):
        if book.notices.due():
            (text,) = notices.send_due(platform.services).values()
            tries += 1
            assert "team was not told" in text
            assert "ConnectionError: no route to host" in text
        passed += timedelta(minutes=10)
        moved = passed
        book.notices._clock = book._clock = lambda moved=moved: clock() + moved  # type: ignore[misc]
    assert 20 < tries < 35
    assert "and will not be" in text


def test_a_notifier_that_the_operator_removed_is_named(make_platform: Make) -> None:
    platform = make_platform()
    platform.ledger.notices.put([NewNotice("k", "gone", "failed", "s", "m", "u")])
    assert "UPDRAFT_NOTIFIERS has no notifier 'gone'" in notices.send_due(platform.services)["k"]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A server that takes messages; /broken answers 500."""
    got: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name, password in (("CHAT", f"{url}/secret"), ("BROKEN", f"{url}/broken"), ("WRONG", "ftp://x")):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "http", "password": password}))
    yield got
    server.shutdown()
    thread.join()
    server.server_close()


def webhook(conn_id: str) -> None:
    spec = NotifierSpec.model_validate(
        {"class": "updraft.notifiers.WebhookNotifier", "arguments": {"conn_id": conn_id}}
    )
    notices.send({"team": spec}, Notice(**vars(NOTICE)))


def test_the_webhook_posts_the_text(chat: list[Any]) -> None:
    webhook("chat")
    assert chat == [{"text": "digits-1 has failed: {{ 7 * 7 }} rows\nhttp://airflow/x"}]


@pytest.mark.parametrize(("conn_id", "words"), [("broken", "answers 500"), ("wrong", "is no http:// or https://")])
def test_a_webhook_that_does_not_take_it_says_so_without_its_address(chat: list[Any], conn_id: str, words: str) -> None:
    with pytest.raises(Exception, match=words) as caught:
        webhook(conn_id)
    assert "127.0.0.1" not in str(caught.value)


def test_a_second_verdict_that_does_not_count_tells_nobody(make_platform: Make) -> None:
    platform = make_platform(notify={"to": ["team"]})
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    late = notices.notices_of(platform.services, platform.job, "failed", "given up")
    platform.ledger.jobs.finish(platform.job.id, Verdict(State.FAILED, "given up"), late)
    assert "failed" not in [kind for kind, _, _ in told(platform)]
