"""A home's own DAGs are read beside the platform's, and only where the folder exists."""

from __future__ import annotations

import configparser
import json
from pathlib import Path

from updraft.stack.config import Config, Ports, generate_secrets, reveal
from updraft.stack.files import airflow_configuration
from updraft.stack.layout import Home

CONFIG = Config(ports=Ports(airflow=20001, mlflow=20002, s3=20003, node=20004))

LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"
OURS = [
    {"name": "dags-folder", "classpath": LOCAL, "kwargs": {}},
    {"name": "updraft-tenants", "classpath": "updraft.bundle.TenantDagBundle", "kwargs": {}},
]


def dag_processor_options(home: Home) -> configparser.SectionProxy:
    parser = configparser.ConfigParser()
    parser.read_string(airflow_configuration(home, CONFIG, reveal(generate_secrets())))
    return parser["dag_processor"]


def test_a_home_without_dags_of_its_own_has_the_platforms_alone(tmp_path: Path) -> None:
    found = dag_processor_options(Home(tmp_path, tmp_path / "checkout"))
    assert json.loads(found["dag_bundle_config_list"]) == OURS


def test_a_home_with_dags_of_its_own_has_both(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "checkout")
    home.own_dags.mkdir()
    assert json.loads(dag_processor_options(home)["dag_bundle_config_list"]) == [
        *OURS,
        {"name": "own-dags", "classpath": LOCAL, "kwargs": {"path": str(home.own_dags)}},
    ]
