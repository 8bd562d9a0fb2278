"""Find Airflow's address and the log-in.

They are taken from the first of these that exists:

1. `UPDRAFT_AIRFLOW_URL` with `UPDRAFT_AIRFLOW_TOKEN_FILE` (a file with a JWT);
2. the home that `UPDRAFT_HOME` names;
3. what `updraft login` saved for this user, in `updraft/client.json` of the configuration folder;
4. the home `.updraft` in the checkout.

A home has `client.json`, or else the stack of `updraft up`. `client.json` holds `airflow_url` with either `username`
and `password` or `token_file`. Only its owner may read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from updraft.exceptions import RefusedError, UnavailableError
from updraft.stack.layout import HOME_VARIABLE, write_private

URL_VARIABLE = "UPDRAFT_AIRFLOW_URL"
TOKEN_VARIABLE = "UPDRAFT_AIRFLOW_TOKEN_FILE"
CONFIG_NAME = "client.json"


@dataclass(frozen=True)
class Connection:
    """The address of Airflow's api-server, and the log-in.

    The log-in is `username` and `password`, or `token_file`, a file with a token on one line.

    Raises RefusedError if the address is not http or https or contains a log-in, or if no log-in is given.
    """

    airflow_url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.airflow_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RefusedError(
                f"airflow_url: {self.airflow_url!r} is no http or https address; give one such as http://host:8080"
            )
        if parts.username or parts.password:
            raise RefusedError("airflow_url: must not hold a user or a password; give these apart")
        if self.token_file is None and (self.username is None or self.password is None):
            raise RefusedError("airflow: no log-in; give username and password, or a token file")

    def token(self) -> str:
        """Return the token in `token_file`. The file is read at each call, so that a rotated token is used.

        Raises RefusedError when it cannot be read or does not hold one token on one line.
        """
        assert self.token_file is not None
        try:
            text = self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise RefusedError(f"token file: {self.token_file} cannot be read ({exc})") from exc
        if not text or not text.isascii() or any(c.isspace() for c in text):
            raise RefusedError(f"token file: {self.token_file} does not hold one token on one line")
        return text


def load_config(environment: Mapping[str, str] | None = None, home: Path | None = None) -> Connection:
    """Return the connection that the command line uses: from the environment, a log-in that was saved, or a home.

    The module's docstring has the order. `environment` replaces `os.environ`; a given `home` comes before a saved
    log-in. Raises RefusedError when a setting is wrong and UnavailableError when no platform is set up; the message
    says what to do.
    """
    environment = os.environ if environment is None else environment
    url, token_file = environment.get(URL_VARIABLE), environment.get(TOKEN_VARIABLE)
    if url or token_file:
        if not url or not token_file:
            missing = URL_VARIABLE if not url else TOKEN_VARIABLE
            raise RefusedError(f"{missing}: is not set; {URL_VARIABLE} and {TOKEN_VARIABLE} belong together")
        return Connection(url.rstrip("/"), token_file=Path(token_file).expanduser())
    if home is None and not environment.get(HOME_VARIABLE):
        saved = saved_login_path(environment)
        if saved.exists():
            return _read(saved, "`updraft login`")
    folder = home or _home(environment)
    path = folder / CONFIG_NAME
    return _read(path, "`updraft up`") if path.exists() else _of_stack(folder)


def saved_login_path(environment: Mapping[str, str] | None = None) -> Path:
    """Return the file in which `updraft login` saves the log-in: below `XDG_CONFIG_HOME`, or else `~/.config`."""
    environment = os.environ if environment is None else environment
    named = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '')}/.config"
    return Path(named) / "updraft" / CONFIG_NAME


def save_login(connection: Connection, path: Path) -> None:
    """Write the connection to a file that only its owner may read; `load_config` reads it."""
    if connection.token_file is not None:
        log_in = {"token_file": str(connection.token_file)}
    else:
        log_in = {"username": str(connection.username), "password": str(connection.password)}
    write_private(path, json.dumps({"airflow_url": connection.airflow_url, **log_in}) + "\n")


def _home(environment: Mapping[str, str]) -> Path:
    """Return the embedded stack's home folder; outside of a checkout, `.updraft` in the working directory."""
    from updraft.stack.layout import StackError, find_home

    try:
        return find_home(environment).root
    except StackError:
        named = environment.get(HOME_VARIABLE)
        return Path(named).expanduser() if named else Path.cwd() / ".updraft"


def _read(path: Path, writer: str) -> Connection:
    """Return the connection in a `client.json`. Errors name the command that writes the file, and never repeat what it
    contains."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        raise RefusedError(f"{path} cannot be read as JSON; run {writer} to write it again") from None
    values = {key: value for key, value in raw.items() if value} if isinstance(raw, dict) else {}
    complete = values.keys() in ({"airflow_url", "username", "password"}, {"airflow_url", "token_file"})
    if not complete or not all(isinstance(value, str) for value in values.values()):
        raise RefusedError(
            f"{path} must hold airflow_url with username and password, or with token_file; run {writer} to write it "
            "again"
        )
    token_file = values.get("token_file")
    return Connection(
        values["airflow_url"].rstrip("/"),
        values.get("username"),
        values.get("password"),
        Path(token_file) if token_file else None,
    )


def _of_stack(home: Path) -> Connection:
    """Return the log-in that the embedded stack generated for this home."""
    from updraft.stack.config import ADMIN_USER
    from updraft.stack.config import load_config as stack_config
    from updraft.stack.config import load_secrets as stack_secrets
    from updraft.stack.layout import Home

    if not (home / "config.json").exists():
        raise UnavailableError(
            f"no platform is set up in {home}: run `updraft up` in a checkout, or `updraft login URL` to use one that "
            "runs elsewhere"
        )
    stack = Home(root=home, repository=home.parent)
    password = stack_secrets(stack).airflow_password.get_secret_value()
    return Connection(stack_config(stack).ports.url("airflow"), username=ADMIN_USER, password=password)
