"""Store what a home needs to remember: ports, secrets, the size of its node. `initialise` creates it once.

Called by `control` and by the CLI (`load_config` and `load_secrets` return addresses and log-ins).
"""

from __future__ import annotations

import base64
import json
import os
import random
import secrets as random_secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import psutil
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from updraft.stack.cluster import ClusterConfig, pointed_at
from updraft.stack.layout import Home, StackError, write_private

HOST = "127.0.0.1"
# Below the ranges that Linux and macOS use for outgoing connections.
PORT_RANGE = range(20_000, 30_000)
MLFLOW_USER = "updraft"  # the platform; it owns what it makes in MLflow
ADMIN_USER = "admin"  # people, in Airflow and in MLflow

USER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
Role = Literal["viewer", "user", "op", "admin"]  # of Airflow's simple auth manager

ModelT = TypeVar("ModelT", bound=BaseModel)


class Ports(BaseModel):
    """The loopback ports of the parts that listen."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    airflow: int = Field(ge=1, le=65535)
    mlflow: int = Field(ge=1, le=65535)
    s3: int = Field(ge=1, le=65535)
    node: int = Field(ge=1, le=65535)

    def url(self, name: str) -> str:
        return f"http://{HOST}:{getattr(self, name)}"


class NodeSize(BaseModel):
    """The size of the local node; None: what the machine has."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cpus: float | None = Field(None, gt=0)
    memory_mib: int | None = Field(None, gt=0)
    gpus: int = Field(0, ge=0, description="Declared devices; they need not exist")


class Config(BaseModel):
    """The content of `config.json`; it may be edited by hand while the stack is down."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    ports: Ports
    node: NodeSize = NodeSize()
    cluster: ClusterConfig | None = None  # used instead of the local node
    users: dict[Annotated[str, Field(pattern=USER_PATTERN)], Role] = Field(
        {}, description=f"Roles in Airflow of users besides {ADMIN_USER}; their passwords are in airflow/passwords.json"
    )

    @field_validator("users")
    @classmethod
    def _admin_stays(cls, users: dict[str, Role]) -> dict[str, Role]:
        if ADMIN_USER in users:
            raise ValueError(f"{ADMIN_USER} is there already")
        return users

    def url(self, part: str) -> str:
        """Return the address of a part. Parts that learners use may listen on an address that other machines reach."""
        host = self.cluster.address if self.cluster and part in ("s3", "mlflow") else HOST
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{getattr(self.ports, part)}"

    def host(self, part: str) -> str:
        return urlsplit(self.url(part)).hostname or HOST


class Secrets(BaseModel):
    """The content of `secrets.json`, mode 0600."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    s3_access_key: SecretStr
    s3_secret_key: SecretStr
    airflow_password: SecretStr
    airflow_jwt_key: SecretStr
    airflow_fernet_key: SecretStr
    airflow_api_key: SecretStr
    mlflow_admin_password: SecretStr
    mlflow_platform_password: SecretStr
    mlflow_session_key: SecretStr
    node_token: SecretStr


def generate_secrets() -> Secrets:
    def token(length: int = 24) -> SecretStr:
        return SecretStr(random_secrets.token_urlsafe(length))

    return Secrets(
        s3_access_key=SecretStr("UD" + random_secrets.token_hex(9).upper()),
        s3_secret_key=token(30),
        airflow_password=token(12),
        airflow_jwt_key=token(48),
        airflow_fernet_key=SecretStr(base64.urlsafe_b64encode(os.urandom(32)).decode()),
        airflow_api_key=token(32),
        mlflow_admin_password=token(12),
        mlflow_platform_password=token(),
        mlflow_session_key=token(32),
        node_token=token(),
    )


def reveal(secrets: Secrets) -> dict[str, str]:
    """Return every secret in the clear, by field: for writing files, never for logs."""
    return {name: getattr(secrets, name).get_secret_value() for name in type(secrets).model_fields}


def load_config(home: Home) -> Config:
    """Load the home's configuration. Raises StackError when the home was never initialised or its configuration is
    wrong."""
    return _load(home.config_file, Config)


def load_secrets(home: Home) -> Secrets:
    return _load(home.secrets_file, Secrets)


def _load(path: Path, model: type[ModelT]) -> ModelT:
    try:
        return model.model_validate_json(path.read_text())
    except FileNotFoundError as exc:
        raise StackError(f"{path} does not exist: this home is not set up; run `updraft up` first.") from exc
    except OSError as exc:
        raise StackError(f"{path} cannot be read ({exc.strerror}); repair its permissions.") from exc
    except ValidationError as exc:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in exc.errors())
        # No `from exc`: pydantic's message repeats the input, which may be secret.
        raise StackError(f"{path} is not valid ({wrong}); repair it or remove it.") from None


def choose_config(ports: dict[str, int], taken: Callable[[int], bool] | None = None) -> Config:
    """Return a configuration with the requested ports and free ones for the rest."""
    taken = port_taken if taken is None else taken
    chosen = dict(ports)
    candidates = iter(random.SystemRandom().sample(PORT_RANGE, len(PORT_RANGE)))
    for name in Ports.model_fields:
        if name in chosen:
            continue
        chosen[name] = next(p for p in candidates if p not in chosen.values() and not taken(p))
    return check_config(Config(ports=Ports(**chosen)))


def check_config(config: Config) -> Config:
    ports = config.ports.model_dump()
    for name, port in ports.items():
        same = [other for other, value in ports.items() if value == port and other != name]
        if same:
            raise StackError(f"Port {port} is given to {name} and to {same[0]}; each part needs its own.")
    return config


def change_config(
    config: Config, ports: dict[str, int], node: dict[str, float | int], cluster: Mapping[str, str] | None = None
) -> Config:
    """Return `config` with some values replaced. Raises StackError naming each one that is not allowed."""
    try:
        return check_config(
            Config(
                ports=Ports.model_validate({**config.ports.model_dump(), **ports}),
                node=NodeSize.model_validate({**config.node.model_dump(), **node}),
                cluster=pointed_at(config.cluster, cluster or {}),
                users=config.users,
            )
        )
    except ValidationError as exc:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['input']}: {e['msg']}" for e in exc.errors())
        raise StackError(f"The stack's configuration cannot be: {wrong}") from exc


def save_config(home: Home, config: Config) -> None:
    write_private(home.config_file, json.dumps(config.model_dump(), indent=2) + "\n")


def save_secrets(home: Home, secrets: Secrets) -> None:
    write_private(home.secrets_file, json.dumps(reveal(secrets), indent=2) + "\n")


def port_taken(port: int, host: str = HOST) -> bool:
    """Return whether something listens on this port of an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex((host, port)) == 0:
            return True  # also detects a wildcard listener, beside which some systems allow binding
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def port_owner(port: int) -> str:
    """Return which program listens there, as far as this user may know: `program (pid N)` or `another program`."""
    for process in psutil.process_iter():
        try:
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return f"{process.name()} (pid {process.pid})"
        except psutil.Error:
            continue  # another user's process
    return "another program"
