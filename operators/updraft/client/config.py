"""Find Airflow's address and the log-in.

They are taken from the first of these that exists: `UPDRAFT_AIRFLOW_URL` with `UPDRAFT_AIRFLOW_TOKEN_FILE` (a file with
a JWT); `<home>/client.json` with `{"airflow_url", "username", "password"}`, mode 0600; the stack of `updraft up` in
that home. The home is `UPDRAFT_HOME`, or else `.updraft` in the checkout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from updraft.exceptions import RefusedError, UnavailableError

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
            raise RefusedError(f"{TOKEN_VARIABLE}: {self.token_file} cannot be read ({exc})") from exc
        if not text or not text.isascii() or any(c.isspace() for c in text):
            raise RefusedError(f"{TOKEN_VARIABLE}: {self.token_file} does not hold one token on one line")
        return text


def load_config(environment: Mapping[str, str] | None = None, home: Path | None = None) -> Connection:
    """Return the connection that the command line uses: from the environment, `client.json` or the stack in the home.

    The module's docstring has the order. `environment` replaces `os.environ`, `home` the home that it names. Raises
    RefusedError when a setting is wrong and UnavailableError when no platform is set up; the message says what to do.
    """
    environment = os.environ if environment is None else environment
    url, token_file = environment.get(URL_VARIABLE), environment.get(TOKEN_VARIABLE)
    if url or token_file:
        if not url or not token_file:
            missing = URL_VARIABLE if not url else TOKEN_VARIABLE
            raise RefusedError(f"{missing}: is not set; {URL_VARIABLE} and {TOKEN_VARIABLE} belong together")
        return Connection(url.rstrip("/"), token_file=Path(token_file).expanduser())
    folder = home or _home(environment)
    path = folder / CONFIG_NAME
    return _read(path) if path.exists() else _of_stack(folder)


def _home(environment: Mapping[str, str]) -> Path:
    """Return the embedded stack's home folder; outside of a checkout, `.updraft` in the working directory."""
    from updraft.stack.layout import HOME_VARIABLE, StackError, find_home

    try:
        return find_home(environment).root
    except StackError:
        named = environment.get(HOME_VARIABLE)
        return Path(named).expanduser() if named else Path.cwd() / ".updraft"


def _read(path: Path) -> Connection:
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):  # a parse error may repeat the content, which is secret
        raise RefusedError(f"{path} cannot be read as JSON; run `updraft up` to write it again") from None
    values = [raw.get(key) for key in ("airflow_url", "username", "password")] if isinstance(raw, dict) else [None]
    if not all(isinstance(value, str) and value for value in values):
        raise RefusedError(f"{path} must hold airflow_url, username and password; run `updraft up` to write it again")
    url, username, password = values
    return Connection(str(url).rstrip("/"), username=str(username), password=str(password))


def _of_stack(home: Path) -> Connection:
    """Return the log-in that the embedded stack generated for this home."""
    from updraft.stack.config import ADMIN_USER
    from updraft.stack.config import load_config as stack_config
    from updraft.stack.config import load_secrets as stack_secrets
    from updraft.stack.layout import Home

    if not (home / "config.json").exists():
        raise UnavailableError(
            f"no platform is set up in {home}; run `updraft up`, or set {URL_VARIABLE} and {TOKEN_VARIABLE}"
        )
    stack = Home(root=home, repository=home.parent)
    password = stack_secrets(stack).airflow_password.get_secret_value()
    return Connection(stack_config(stack).ports.url("airflow"), username=ADMIN_USER, password=password)
