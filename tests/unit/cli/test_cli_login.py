"""`updraft login` tries a log-in and saves it; other commands use it until `updraft logout`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import URL, FakeAirflow

from updraft.client import Connection, load_config
from updraft.client.config import saved_login_path
from updraft.exceptions import RefusedError

HTTPS = "https://airflow.test"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("UPDRAFT_HOME", "UPDRAFT_AIRFLOW_URL", "UPDRAFT_AIRFLOW_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_log_in_is_saved_for_its_owner_alone(run: Run) -> None:
    ran = run("login", f"{HTTPS}/", "--user", "ada", "--stdin", input="right\n")
    assert (ran.code, ran.out) == (0, f"commands use the platform at {HTTPS}\n")
    assert stat.S_IMODE(saved_login_path().stat().st_mode) == 0o600
    assert load_config() == Connection(HTTPS, "ada", "right")
    assert run("login", "--json").out == json.dumps({"airflow_url": HTTPS}, indent=2) + "\n"


def test_a_token_file_is_remembered_by_its_whole_path(
    run: Run, airflow: FakeAirflow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    airflow.valid.add("abc")
    Path("token").write_text("abc\n")
    assert run("login", HTTPS, "--token-file", "token").code == 0
    assert load_config() == Connection(HTTPS, token_file=folder / "token")


def test_a_log_in_that_is_refused_is_not_saved(run: Run) -> None:
    ran = run("login", HTTPS, "--user", "ada", "--stdin", input="wrong")
    assert (ran.code, "refused the log-in of user 'ada'" in ran.err) == (3, True)
    assert "wrong" not in ran.err.replace("password is wrong", "")
    assert not saved_login_path().exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((URL, "--user", "ada", "--stdin"), "the password would be sent over http"),
        ((HTTPS, "--user", "ada"), "no terminal to ask on"),
        ((HTTPS, "--stdin"), "give the user with --user"),
        (("airflow.test", "--user", "ada", "--stdin"), "is no http or https address"),
        ((f"{HTTPS.replace('//', '//a:b@')}", "--user", "ada", "--stdin"), "must not hold a user or a password"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_sent(
    arguments: tuple[str, ...], text: str, run: Run, airflow: FakeAirflow
) -> None:
    ran = run("login", *arguments, input="right")
    assert (ran.code, text in ran.err, airflow.requests) == (3, True, [])
    assert run("login", URL, "--user", "ada", "--stdin", "--insecure", input="right").code == 0


def test_the_environment_and_a_named_home_come_before_a_saved_log_in(run: Run, folder: Path) -> None:
    run("login", HTTPS, "--user", "ada", "--stdin", input="right")
    saved = {"XDG_CONFIG_HOME": str(folder / "config")}
    named = {**saved, "UPDRAFT_AIRFLOW_URL": "https://other", "UPDRAFT_AIRFLOW_TOKEN_FILE": "token"}
    assert load_config(named).airflow_url == "https://other"
    home = folder / "home"
    home.mkdir()
    content = {"airflow_url": "http://127.0.0.1:1", "username": "a", "password": "b"}
    (home / "client.json").write_text(json.dumps(content))
    assert load_config({**saved, "UPDRAFT_HOME": str(home)}).airflow_url == "http://127.0.0.1:1"
    assert load_config(saved, home=home).airflow_url == "http://127.0.0.1:1"
    assert load_config(saved).airflow_url == HTTPS


def test_logout_forgets_it(run: Run) -> None:
    run("login", HTTPS, "--user", "ada", "--stdin", input="right")
    assert run("logout").out == f"removed {saved_login_path()}\n"
    assert run("logout", "--json").out == json.dumps({"logged_out": False}, indent=2) + "\n"


def test_a_broken_file_says_how_to_write_it_again(run: Run) -> None:
    saved_login_path().parent.mkdir(parents=True)
    saved_login_path().write_text('{"airflow_url": "https://host", "password": "hunter2"}')
    with pytest.raises(RefusedError, match="run `updraft login` to write it again") as caught:
        load_config()
    assert "hunter2" not in str(caught.value)
