from __future__ import annotations

import json
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.settings import Credentials, Settings
from updraft.stack import config as configuration
from updraft.stack import control
from updraft.stack.config import (
    Config,
    Ports,
    choose_config,
    generate_secrets,
    load_secrets,
    port_owner,
    port_taken,
    reveal,
)
from updraft.stack.files import write_all
from updraft.stack.layout import Home, StackError, write_private
from updraft.stack.parts import settings_environment


@given(
    taken=st.sets(st.sampled_from(configuration.PORT_RANGE), max_size=50),
    given=st.dictionaries(st.sampled_from(sorted(Ports.model_fields)), st.integers(1024, 65535), max_size=2).filter(
        lambda ports: len(set(ports.values())) == len(ports)
    ),
)
def test_chosen_ports_are_free_and_different_and_as_asked_for(taken: set[int], given: dict[str, int]) -> None:
    ports = choose_config(given, taken=taken.__contains__).ports.model_dump()

    assert len(set(ports.values())) == len(ports)
    assert given.items() <= ports.items()
    assert not taken & {port for name, port in ports.items() if name not in given}


def test_one_port_for_two_parts_is_refused_with_both_names() -> None:
    with pytest.raises(StackError, match=r"Port 2000 is given to airflow and to mlflow; each part needs its own"):
        choose_config({"airflow": 2000, "mlflow": 2000}, taken=lambda port: False)


def test_every_wrong_value_of_a_change_is_named(home: Home) -> None:
    config = Config(ports=Ports(airflow=1, mlflow=2, s3=3, node=4))

    with pytest.raises(StackError, match="airflow: 70000"):
        configuration.change_config(config, {"airflow": 70000}, {})
    with pytest.raises(StackError, match="gpus: -1"):
        configuration.change_config(config, {}, {"gpus": -1})


def test_setting_up_twice_keeps_ports_and_secrets(home: Home) -> None:
    first = control.initialise(home)
    secrets = home.secrets_file.read_text()

    assert control.initialise(home) == first
    assert home.secrets_file.read_text() == secrets


def test_a_port_can_be_moved_and_is_remembered(home: Home) -> None:
    first = control.initialise(home)

    moved = control.initialise(home, ports={"airflow": 4711})

    assert moved.ports == first.ports.model_copy(update={"airflow": 4711})
    assert configuration.load_config(home) == moved


def test_two_homes_share_no_secret(home: Home) -> None:
    assert not set(reveal(generate_secrets()).values()) & set(reveal(generate_secrets()).values())


def test_every_file_that_holds_a_secret_is_private(home: Home) -> None:
    control.initialise(home)
    values = reveal(configuration.load_secrets(home)).values()
    holders = [p for p in home.root.rglob("*") if p.is_file() and any(v in p.read_text() for v in values)]

    assert len(holders) >= 7
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in holders} == {p.name: 0o600 for p in holders}
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700


def test_the_platform_can_read_its_settings_and_credentials(home: Home) -> None:
    config = control.initialise(home)
    settings = Settings.from_environment(settings_environment(home, config))
    secrets = reveal(configuration.load_secrets(home))
    credentials: Credentials = settings.credentials()

    assert settings.s3_endpoint == f"http://127.0.0.1:{config.ports.s3}"
    assert credentials.s3.secret_key.get_secret_value() == secrets["s3_secret_key"]
    assert credentials.mlflow.password.get_secret_value() == secrets["mlflow_platform_password"]


def test_a_broken_secrets_file_is_named_but_not_shown(home: Home) -> None:
    control.initialise(home)
    raw = json.loads(home.secrets_file.read_text())
    raw["node_token"] = {"leak": "me"}
    home.secrets_file.write_text(json.dumps(raw))

    with pytest.raises(StackError, match=r"secrets\.json is not valid \(node_token:") as caught:
        configuration.load_secrets(home)
    assert raw["s3_secret_key"] not in str(caught.value)
    assert "leak" not in str(caught.value)


def test_a_home_that_was_never_set_up_says_so(home: Home) -> None:
    with pytest.raises(StackError, match="this home is not set up; run `updraft up` first"):
        configuration.load_config(home)


def test_a_taken_port_is_seen_and_its_owner_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert port_taken(port)
        assert "pid" in port_owner(port)
    assert not port_taken(port)


def test_a_private_file_is_narrowed_and_written_only_when_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("same")
    path.chmod(0o644)

    assert write_private(path, "same") is False
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert write_private(path, "other") is True
    assert list(tmp_path.iterdir()) == [path]


def test_users_get_a_role_and_a_password_that_stays(home: Home) -> None:
    config = control.initialise(home).model_copy(update={"users": {"grace": "op"}})
    write_all(home, config, load_secrets(home))
    first = json.loads((home.airflow / "passwords.json").read_text())
    assert set(first) == {"admin", "grace"}
    assert len(first["grace"]) >= 16
    assert "simple_auth_manager_users = admin:admin,grace:op" in (home.airflow / "airflow.cfg").read_text()
    write_all(home, config.model_copy(update={"users": {"grace": "viewer", "eve": "user"}}), load_secrets(home))
    second = json.loads((home.airflow / "passwords.json").read_text())
    assert (second["grace"], set(second)) == (first["grace"], {"admin", "grace", "eve"})
    assert stat.S_IMODE((home.airflow / "passwords.json").stat().st_mode) == 0o600


def test_a_change_keeps_the_users_and_wrong_users_are_named(home: Home) -> None:
    config = Config(ports=Ports(airflow=1, mlflow=2, s3=3, node=4), users={"grace": "op"})
    assert configuration.change_config(config, {"airflow": 9}, {}).users == {"grace": "op"}
    for wrong in ({"admin": "op"}, {"a,b": "op"}, {"grace": "boss"}):
        with pytest.raises(ValueError, match="users"):
            Config.model_validate({**config.model_dump(), "users": wrong})
