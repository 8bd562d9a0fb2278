from __future__ import annotations

import configparser
import json
from pathlib import Path

import pytest

from updraft.stack import config as configuration
from updraft.stack import control, files
from updraft.stack.config import reveal
from updraft.stack.layout import Home
from updraft.stack.parts import Part, build_parts, stop_order

SHELL = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "LANG": "C.UTF-8"}


def parts_in(home: Home, shell: dict[str, str] | None = None) -> dict[str, Part]:
    config = control.initialise(home)
    return {p.name: p for p in build_parts(home, config, configuration.load_secrets(home), shell or SHELL)}


def test_no_secret_stands_in_an_argument_list_or_a_repr(home: Home) -> None:
    parts = parts_in(home)
    secrets = reveal(configuration.load_secrets(home)).values()

    shown = " ".join(" ".join(p.argv) + repr(p) for p in parts.values())

    assert not [s for s in secrets if s in shown]


def test_airflows_processes_hold_no_secret_in_their_environment(home: Home) -> None:
    parts = parts_in(home)
    secrets = reveal(configuration.load_secrets(home)).values()
    airflow = " ".join(v for n, p in parts.items() if n.startswith("airflow") for v in p.environment.values())

    assert not [s for s in secrets if s in airflow]


def test_what_a_shell_holds_for_other_tools_does_not_reach_the_parts(home: Home) -> None:
    noise = {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AWS_SECRET_ACCESS_KEY": "mine",
        "MLFLOW_TRACKING_URI": "http://elsewhere",
        "PYTHONPATH": "/checkout",
        "PYTHONDONTWRITEBYTECODE": "1",
        "KUBECONFIG": "/home/me/.kube/config",
    }

    clean, noisy = parts_in(home), parts_in(home, {**SHELL, **noise})

    assert noisy == clean
    assert {n: p.environment.get("PYTHONPATH") for n, p in noisy.items()} == dict.fromkeys(noisy)


def test_another_terminal_makes_no_running_part_out_of_date(home: Home) -> None:
    here, there = parts_in(home), parts_in(home, {**SHELL, "PATH": "/opt/bin", "WINDOWID": "7", "LANG": "de_DE"})

    assert {n: p.digest for n, p in here.items()} == {n: p.digest for n, p in there.items()}


def test_a_moved_port_makes_those_parts_out_of_date_that_know_it(home: Home) -> None:
    before = parts_in(home)
    control.initialise(home, ports={"s3": 4711})
    after = parts_in(home)

    changed = {n for n in before if before[n].digest != after[n].digest}

    assert {"s3", "mlflow", "airflow-api", "airflow-scheduler"} <= changed
    assert not changed & {"node", "mlflow-user"}


def test_a_platform_setting_of_the_operator_reaches_airflow(home: Home) -> None:
    parts = parts_in(home, {**SHELL, "UPDRAFT_DATA_LIMIT_BYTES": "5", "UPDRAFT_S3_ENDPOINT": "http://elsewhere"})
    environment = parts["airflow-scheduler"].environment

    assert environment["UPDRAFT_DATA_LIMIT_BYTES"] == "5"
    assert environment["UPDRAFT_S3_ENDPOINT"].startswith("http://127.0.0.1:")


def test_parts_come_after_those_they_wait_for(home: Home) -> None:
    seen: set[str] = set()
    for name, part in parts_in(home).items():
        assert set(part.after) <= seen, name
        seen.add(name)


def test_stopping_ends_each_service_once_and_none_before_its_users(home: Home) -> None:
    parts = tuple(parts_in(home).values())

    waves = [{p.name for p in wave} for wave in stop_order(parts)]

    assert waves == [
        {"airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"},
        {"node", "mlflow", "airflow-api"},
        {"s3"},
    ]


def test_airflow_reads_its_configuration_as_written(home: Home) -> None:
    odd = Home(root=home.root / "100% mine", repository=home.repository)
    config = control.initialise(odd)
    parser = configparser.ConfigParser()  # interpolates, as Airflow's does
    parser.read(odd.airflow / "airflow.cfg")

    assert parser["core"]["dags_folder"] == str(home.repository / "dags")
    assert parser["logging"]["base_log_folder"] == str(odd.airflow / "logs")
    assert parser["api"]["port"] == str(config.ports.airflow)
    assert parser["api_auth"]["jwt_secret"] == reveal(configuration.load_secrets(odd))["airflow_jwt_key"]
    assert parser["api_auth"]["jwt_expiration_time"] == "3600"  # Airflow's own is a day


def test_the_kubeconfig_leads_to_the_local_node(home: Home) -> None:
    config = control.initialise(home)
    found = json.loads(home.kubeconfig.read_text())

    assert found["clusters"][0]["cluster"] == {"server": f"http://127.0.0.1:{config.ports.node}"}
    assert found["contexts"][0]["context"]["namespace"] == files.NAMESPACE


def test_mlflow_shows_nothing_to_whoever_it_does_not_know(home: Home) -> None:
    control.initialise(home)
    parser = configparser.ConfigParser()
    parser.read(home.mlflow / "auth.ini")

    assert parser["mlflow"]["default_permission"] == "NO_PERMISSIONS"


def test_the_node_offers_what_the_configuration_says(home: Home) -> None:
    control.initialise(home, node={"cpus": 1.5, "memory_mib": 2048, "gpus": 4})
    argv = " ".join(parts_in(home)["node"].argv)

    assert argv.endswith("--gpus nvidia=4 --cpus 1.5 --memory 2048MiB")


def test_the_local_node_understands_its_arguments(home: Home) -> None:
    from updraft_localnode.__main__ import config_of, parser

    control.initialise(home, node={"cpus": 1.5, "memory_mib": 2048, "gpus": 4})
    argv = parts_in(home)["node"].argv

    node = config_of(parser().parse_args(argv[argv.index("updraft_localnode") + 1 :]))

    assert (node.cpu_milli, node.memory_bytes, node.gpus) == (1500, 2 * 1024**3, (("nvidia", 4),))


@pytest.mark.parametrize("name", ["ledger", "airflow-db", "mlflow-db", "mlflow-user", "dags"])
def test_tasks_are_no_services(home: Home, name: str) -> None:
    assert parts_in(home)[name].is_task


def test_logs_lie_side_by_side(home: Home) -> None:
    assert {p.log for p in parts_in(home).values()} == {Path(home.logs / f"{n}.log") for n in parts_in(home)}
