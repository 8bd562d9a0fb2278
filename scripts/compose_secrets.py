"""Makes the secrets of docker-compose.yaml as files: `python3 scripts/compose_secrets.py [FOLDER]`.

Files that are there stay, so it may be run again; FOLDER is `.updraft/compose` unless given. Containers have fixed
users that are not yours, so the files may be read by all, and the folder by you alone: the folder keeps others out.
Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".updraft" / "compose"
ADMIN, PLATFORM = "admin", "updraft"

Read = Callable[[str], str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help=f"default: {FOLDER}")
    folder = parser.parse_args().folder.absolute()
    try:
        made = write_all(folder)
    except OSError as exc:
        print(f"error: {exc.filename} cannot be written ({exc.strerror})", file=sys.stderr)
        return 1
    print(f"{folder}: {made} secrets made, {len(FILES) - made} were there.")
    print(f"Airflow and MLflow: user {ADMIN}; the passwords are in {folder / 'airflow_passwords.json'} and "
          f"{folder / 'mlflow_passwords.json'}.")  # fmt: skip
    return 0


def write_all(folder: Path) -> int:
    """Return how many files were made. A file that another is derived from comes before it in FILES."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)

    def read(name: str) -> str:
        return (folder / name).read_text()

    made = 0
    for name, content in FILES.items():
        if not (folder / name).exists():
            _write(folder / name, content(read))
            made += 1
    return made


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o444)
    os.replace(temporary, path)


def token(length: int = 32) -> str:
    return secrets.token_urlsafe(length)


def _fernet_key(_read: Read) -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


def _s3_auth(_read: Read) -> str:
    """Return the credentials as rclone takes them: one pair, quoted because the option is a list."""
    return f'"UD{secrets.token_hex(9).upper()},{token(30)}"'


def _s3_keys(read: Read) -> tuple[str, str]:
    access, _, secret = read("s3_auth").strip().strip('"').partition(",")
    return access, secret


def _aws_credentials(read: Read) -> str:
    access, secret = _s3_keys(read)
    return f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"


def _mlflow_passwords(_read: Read) -> str:
    return json.dumps({ADMIN: token(12), PLATFORM: token(24)}) + "\n"


def _mlflow_auth(read: Read) -> str:
    password = json.loads(read("mlflow_passwords.json"))[ADMIN]
    return (
        "[mlflow]\n"
        "default_permission = NO_PERMISSIONS\n"
        "database_uri = postgresql+psycopg://mlflow@postgres/mlflow_auth\n"
        f"admin_username = {ADMIN}\n"
        f"admin_password = {password}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "auth_cache_ttl_seconds = 60\n"
    )


def _credentials(read: Read) -> str:
    """Return what the platform may use (`updraft.settings.Credentials`)."""
    access, secret = _s3_keys(read)
    password = json.loads(read("mlflow_passwords.json"))[PLATFORM]
    return (
        json.dumps(
            {
                "s3": {"access_key": access, "secret_key": secret},
                "mlflow": {"username": PLATFORM, "password": password},
            }
        )
        + "\n"
    )


def _airflow_passwords(_read: Read) -> str:
    return json.dumps({ADMIN: token(12)}) + "\n"


def _client(read: Read) -> str:
    """Return the log-in of the command `updraft` inside the network of the containers."""
    password = json.loads(read("airflow_passwords.json"))[ADMIN]
    return json.dumps({"airflow_url": "http://airflow-api:8080", "username": ADMIN, "password": password}) + "\n"


def _pgpass_airflow(_read: Read) -> str:
    return f"postgres:5432:airflow:airflow:{token()}\npostgres:5432:ledger:ledger:{token()}\n"


def _pgpass_mlflow(_read: Read) -> str:
    password = token()
    return "".join(f"postgres:5432:{name}:mlflow:{password}\n" for name in ("mlflow", "mlflow_auth"))


def _kubeconfig(read: Read) -> str:
    """Return the kubeconfig of the bundled local node, as JSON, which is YAML too."""
    user, cluster = {"token": read("node_token").strip()}, {"server": "http://node:8001"}
    context = {"cluster": "updraft", "user": "updraft", "namespace": "updraft-default"}
    return (
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "updraft",
                "clusters": [{"name": "updraft", "cluster": cluster}],
                "users": [{"name": "updraft", "user": user}],
                "contexts": [{"name": "updraft", "context": context}],
            }
        )
        + "\n"
    )


def _random(_read: Read) -> str:
    return token(48)


FILES: dict[str, Callable[[Read], str]] = {
    "airflow_api_key": _random,
    "airflow_fernet_key": _fernet_key,
    "airflow_jwt_key": _random,
    "airflow_passwords.json": _airflow_passwords,
    "client.json": _client,
    "s3_auth": _s3_auth,
    "aws_credentials": _aws_credentials,
    "mlflow_passwords.json": _mlflow_passwords,
    "mlflow_auth.ini": _mlflow_auth,
    "mlflow_session_key": _random,
    "credentials.json": _credentials,
    "postgres_password": _random,
    "pgpass_airflow": _pgpass_airflow,
    "pgpass_mlflow": _pgpass_mlflow,
    "node_token": _random,
    "kubeconfig": _kubeconfig,
}

if __name__ == "__main__":
    sys.exit(main())
