"""`python -m updraft.stack.mlflow_user`: makes the platform's own log-in in MLflow, if it is not there.

The platform is no administrator of MLflow: what it makes belongs to it, and people look at it as `admin`.
"""

from __future__ import annotations

import sys

import httpx

from updraft.stack.config import ADMIN_USER, MLFLOW_USER, load_config, load_secrets, reveal
from updraft.stack.layout import Home, StackError, find_home


def ensure_user(home: Home) -> None:
    """Raises StackError when MLflow refuses."""
    shown = reveal(load_secrets(home))
    password = shown["mlflow_platform_password"]
    users = "/api/2.0/mlflow/users"
    with httpx.Client(
        base_url=load_config(home).ports.url("mlflow"),
        auth=(ADMIN_USER, shown["mlflow_admin_password"]),
        timeout=30,
        trust_env=False,
    ) as client:
        try:
            found = client.get(f"{users}/get", params={"username": MLFLOW_USER})
            if found.status_code == httpx.codes.OK:
                answer = client.patch(f"{users}/update-password", json={"username": MLFLOW_USER, "password": password})
            else:
                answer = client.post(f"{users}/create", json={"username": MLFLOW_USER, "password": password})
        except httpx.HTTPError as exc:
            raise StackError(f"MLflow did not answer ({type(exc).__name__}) while its user was made.") from exc
    if answer.is_error:
        hint = " Its administrator's password is not the one in secrets.json." if answer.status_code == 401 else ""
        raise StackError(f"MLflow refused the user {MLFLOW_USER!r} with status {answer.status_code}.{hint}")


def main() -> int:
    try:
        ensure_user(find_home())
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
