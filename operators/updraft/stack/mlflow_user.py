"""`python -m updraft.stack.mlflow_user`: create the platform's own user in MLflow if it does not exist.

The platform is no administrator of MLflow: it owns what it makes, and people look at it as `admin`. Without options the
server is the embedded stack's; `--url` and `--passwords` (a JSON file, user to password) name another one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import httpx

from updraft.stack.config import ADMIN_USER, MLFLOW_USER, load_config, load_secrets, reveal
from updraft.stack.layout import Home, StackError, find_home


def ensure_user(home: Home) -> None:
    """Create the platform's user of the home's MLflow if it is missing. Raises StackError when MLflow refuses."""
    shown = reveal(load_secrets(home))
    url = load_config(home).url("mlflow")
    ensure_user_at(url, shown["mlflow_admin_password"], shown["mlflow_platform_password"])


def ensure_user_at(url: str, admin_password: str, password: str) -> None:
    """Create the platform's user of the MLflow at `url` if it is missing. Raises StackError when MLflow refuses."""
    users = "/api/2.0/mlflow/users"
    with httpx.Client(base_url=url, auth=(ADMIN_USER, admin_password), timeout=30, trust_env=False) as client:
        try:
            found = client.get(f"{users}/get", params={"username": MLFLOW_USER})
            if found.status_code == httpx.codes.OK:
                answer = client.patch(f"{users}/update-password", json={"username": MLFLOW_USER, "password": password})
            else:
                answer = client.post(f"{users}/create", json={"username": MLFLOW_USER, "password": password})
        except httpx.HTTPError as exc:
            raise StackError(f"MLflow did not answer ({type(exc).__name__}) while its user was made.") from exc
    if answer.is_error:
        hint = " Its administrator's password is another one than the one given." if answer.status_code == 401 else ""
        raise StackError(f"MLflow refused the user {MLFLOW_USER!r} with status {answer.status_code}.{hint}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m updraft.stack.mlflow_user")
    parser.add_argument("--url", help="address of the server")
    parser.add_argument("--passwords", type=Path, help="JSON file: password of each user")
    given = parser.parse_args(arguments)
    if (given.url is None) != (given.passwords is None):
        parser.error("--url and --passwords go together")
    try:
        if given.url is None:
            ensure_user(find_home())
        else:
            passwords = json.loads(given.passwords.read_text())
            ensure_user_at(given.url, passwords[ADMIN_USER], passwords[MLFLOW_USER])
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
