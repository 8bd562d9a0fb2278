"""Log-in, retries and errors of the session; where it takes address and password from."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.client.client_fakes import URL, FakeAirflow, make_client

from updraft.client import Client, Connection
from updraft.client.config import load_config
from updraft.client.http import ConflictError, InvalidRequestError, Session
from updraft.exceptions import LimitError, NotFoundError, RefusedError, UnavailableError, UpdraftError


def test_one_log_in_serves_many_requests(airflow: FakeAirflow, client: Client) -> None:
    client.health()
    client.health()
    assert airflow.tokens == 1


def test_an_expired_token_is_renewed_once(airflow: FakeAirflow, client: Client) -> None:
    client.health()
    airflow.valid.clear()
    client.health()
    assert airflow.tokens == 2


def test_a_token_that_another_key_signed_is_renewed(airflow: FakeAirflow, client: Client) -> None:
    body = {"error": {"message": "Invalid JWT token", "fields": []}}
    fail_first(airflow, 1, httpx.Response(403, json=body))
    client.health()
    assert airflow.tokens == 2


def test_a_wrong_password_is_told_without_repeating_it(airflow: FakeAirflow) -> None:
    with pytest.raises(RefusedError, match="refused the log-in of user 'admin'") as caught:
        make_client(airflow, "hunter2").health()
    assert "hunter2" not in str(caught.value) + repr(Connection(URL, "admin", "hunter2"))


def test_a_token_file_is_read_again_when_the_token_is_refused(airflow: FakeAirflow, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    airflow.valid.add("first")
    session = Session(Connection(URL, token_file=file), transport=httpx.MockTransport(airflow), retry_wait_seconds=0)
    client = Client(session=session)
    client.health()
    airflow.valid = {"second"}
    file.write_text("second\n")
    client.health()
    file.write_text("third\n")
    airflow.valid = {"fourth"}
    with pytest.raises(RefusedError, match="does not accept the token"):
        client.health()
    assert ("POST", "/auth/token") not in airflow.requests


def fail_first(airflow: FakeAirflow, times: int, response: httpx.Response | Exception) -> list[str]:
    """The first `times` requests of the plugin or of REST fail; returns the methods that came."""
    seen: list[str] = []

    def override(request: httpx.Request) -> httpx.Response | None:
        if request.url.path == "/auth/token":
            return None
        seen.append(request.method)
        if len(seen) > times:
            return None
        if isinstance(response, Exception):
            raise response
        return response

    airflow.override = override
    return seen


@pytest.mark.parametrize("failure", [httpx.ConnectError("no"), httpx.ReadTimeout("late"), httpx.Response(502)])
def test_reading_is_tried_again_when_nothing_or_a_gateway_answered(
    airflow: FakeAirflow, client: Client, failure: httpx.Response | Exception
) -> None:
    seen = fail_first(airflow, 2, failure)
    client.health()
    assert seen == ["GET"] * 3


def test_starting_a_run_is_never_sent_twice(airflow: FakeAirflow, client: Client) -> None:
    seen = fail_first(airflow, 1, httpx.ReadTimeout("late"))
    with pytest.raises(UnavailableError, match="ReadTimeout"):
        client.trigger("digits-1", {})
    assert seen == ["POST"]


def test_retries_end(airflow: FakeAirflow, client: Client) -> None:
    seen = fail_first(airflow, 99, httpx.ConnectError("no"))
    with pytest.raises(UnavailableError, match="is it up\\? `updraft status` shows the parts"):
        client.health()
    assert len(seen) == 4


def test_a_part_that_the_routes_name_as_down_is_not_asked_again(airflow: FakeAirflow, client: Client) -> None:
    body = {"error": {"message": "MLflow did not answer within 5 s", "fields": []}}
    seen = fail_first(airflow, 99, httpx.Response(503, json=body))
    with pytest.raises(UnavailableError, match=r"^MLflow did not answer within 5 s$"):
        client.metrics("digits-1")
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (403, RefusedError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, LimitError),
        (422, InvalidRequestError),
        (500, UnavailableError),
    ],
)
def test_every_answer_of_failure_has_its_exception(
    airflow: FakeAirflow, client: Client, status: int, kind: type[UpdraftError]
) -> None:
    fail_first(airflow, 9, httpx.Response(status, json={"error": {"message": "why", "fields": []}}))
    with pytest.raises(kind, match="why"):
        client.health()


def test_fields_come_along(airflow: FakeAirflow, client: Client) -> None:
    fail_first(airflow, 9, httpx.Response(422, json={"detail": [{"loc": ["query", "limit"], "msg": "too small"}]}))
    with pytest.raises(InvalidRequestError) as caught:
        client.jobs(limit=0)
    assert caught.value.fields == (("query.limit", "too small"),)


@given(st.text(), st.integers(400, 599))
def test_no_answer_of_failure_is_a_defect(text: str, status: int) -> None:
    airflow = FakeAirflow(override=lambda r: None if "token" in r.url.path else httpx.Response(status, text=text))
    with pytest.raises(UpdraftError):
        make_client(airflow).jobs()


def test_something_else_on_the_port_is_told(airflow: FakeAirflow, client: Client) -> None:
    airflow.override = lambda _request: httpx.Response(200, text="<html>")
    with pytest.raises(UnavailableError, match="is it Airflow 3"):
        client.health()


# --- where the connection comes from ---


def test_the_environment_comes_first(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("abc")
    environment = {"UPDRAFT_AIRFLOW_URL": "https://host/", "UPDRAFT_AIRFLOW_TOKEN_FILE": str(tmp_path / "t")}
    found = load_config(environment)
    assert (found.airflow_url, found.token()) == ("https://host", "abc")
    with pytest.raises(RefusedError, match=r"^UPDRAFT_AIRFLOW_TOKEN_FILE: is not set"):
        load_config({"UPDRAFT_AIRFLOW_URL": "https://host"})


@pytest.mark.parametrize("token", ["", "two words", "two\nlines", "ümlaut"])
def test_a_token_file_without_a_token_is_told_without_repeating_it(tmp_path: Path, token: str) -> None:
    (tmp_path / "t").write_text(token)
    with pytest.raises(RefusedError, match="does not hold one token") as caught:
        Connection(URL, token_file=tmp_path / "t").token()
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize("url", ["host:8080", "ftp://host", "http://", "http://ada:pw@host"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(RefusedError, match=r"^airflow_url: "):
        Connection(url, "ada", "pw")


def test_the_client_file_of_the_home_is_read(tmp_path: Path) -> None:
    content = {"airflow_url": "http://127.0.0.1:8080", "username": "admin", "password": "pw"}
    (tmp_path / "client.json").write_text(json.dumps(content))
    environment = {"UPDRAFT_HOME": str(tmp_path)}
    assert load_config(environment) == Connection("http://127.0.0.1:8080", "admin", "pw")
    for broken in ("{", "[]", '{"password": "hunter2"}'):
        (tmp_path / "client.json").write_text(broken)
        with pytest.raises(RefusedError, match="run `updraft up` to write it again") as caught:
            load_config(environment)
        assert "hunter2" not in str(caught.value)


def test_the_log_in_of_the_embedded_stack_is_found(tmp_path: Path) -> None:
    from updraft.stack import config
    from updraft.stack.layout import Home

    home = Home(root=tmp_path, repository=tmp_path)
    config.save_config(home, config.choose_config({"airflow": 23456}))
    secrets = config.generate_secrets()
    config.save_secrets(home, secrets)
    found = load_config({"UPDRAFT_HOME": str(tmp_path)})
    assert found == Connection("http://127.0.0.1:23456", "admin", secrets.airflow_password.get_secret_value())


def test_without_a_platform_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="run `updraft up` in a checkout, or `updraft login URL`"):
        load_config({"UPDRAFT_HOME": str(tmp_path)})
