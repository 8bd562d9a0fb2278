"""What holds of images and docker-compose.yaml without an engine: users, secrets, limits, and that nothing drifts."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import build, recipes, report
from containers.places import REPOSITORY

from updraft.client.config import load_config
from updraft.kubernetes import objects
from updraft.settings import Credentials, Settings
from updraft.stack.config import choose_config, generate_secrets, reveal
from updraft.stack.files import airflow_configuration
from updraft.stack.layout import Home
from updraft_learner.catalogue import load_catalogue, slug

COMPOSE = REPOSITORY / "docker-compose.yaml"
PAGE = REPOSITORY / "docs" / "howto" / "compose.md"
SCRIPT = REPOSITORY / "scripts" / "compose_secrets.py"
# Settings that a person cannot give to the containers, and why.
NOT_TAKEN = {
    "kubernetes_conn_id": "the connection of that name is in docker-compose.yaml",
    "local_sources": "the image names its own folder",
}
ONE_SHOT = {"databases", "ledger-migrate", "airflow-migrate", "mlflow-migrate", "mlflow-user", "cli"}
# Files of the stack that differ because a container's paths and addresses do, or come as variables or files.
ELSEWHERE = {
    ("core", "dags_folder"),
    ("core", "plugins_folder"),
    ("core", "simple_auth_manager_passwords_file"),
    ("logging", "base_log_folder"),
    ("logging", "dag_processor_child_process_log_directory"),
    ("api", "host"),
    ("api", "port"),
    ("dag_processor", "dag_bundle_storage_path"),
    ("scheduler", "scheduler_idle_sleep_time"),  # the embedded stack's is long because SQLite wakes its scheduler
}
BY_VARIABLE = {("core", "execution_api_server_url"), ("api", "base_url"), ("database", "sql_alchemy_conn")}
ONLY_SQLITE = {("database", "sql_alchemy_session_maker"), ("database", "sql_alchemy_max_overflow")}
AS_COMMAND = {("core", "fernet_key"), ("api", "secret_key"), ("api_auth", "jwt_secret")}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = re.sub(r"\$\{[A-Z0-9_]+:\+((?:[^{}]|\$\{[^{}]*\})*)\}", "", COMPOSE.read_text())
    text = re.sub(r"\$\{[A-Z0-9_]+:-((?:[^{}]|\$\{[^{}]*\})*)\}", r"\1", text)
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{[A-Z0-9_]+:-([^{}]*)\}", r"\1", text))
    return found


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, capture_output=True)
    return folder


def test_every_image_of_the_catalogue_can_be_built() -> None:
    catalogue = load_catalogue(REPOSITORY / "images" / "catalogue.toml").images
    assert set(catalogue) <= {r.name for r in recipes.RECIPES}
    for recipe in recipes.RECIPES:
        if recipe.dockerfile == "images/learner/Dockerfile":
            assert " ".join(catalogue[recipe.name].extras) == dict(recipe.arguments)["EXTRA"]


def test_the_local_nodes_image_has_the_folders_that_the_local_node_looks_for() -> None:
    text = (REPOSITORY / recipes.LOCALNODE.dockerfile).read_text()
    for image in (recipes.SIDECAR.name, recipes.DATA.name, recipes.SKLEARN.name):
        assert f"/opt/updraft/images/{slug(image)}\n" in text


@pytest.mark.parametrize("recipe", recipes.RECIPES, ids=lambda r: r.short)
def test_a_dockerfile_ends_as_a_user_by_number_and_knows_its_base_by_argument(recipe: recipes.Recipe) -> None:
    lines = (REPOSITORY / recipe.dockerfile).read_text().splitlines()
    users = [line for line in lines if line.startswith("USER ")]
    user = users[-1].removeprefix("USER ")
    if user == "${UID}:${UID}":
        assert f"ARG UID={objects.LEARNER_UID}" in lines
    else:
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    public = {build.PUBLIC_BASE, build.PUBLIC_MINIMAL}
    named = [line.partition("=")[2] for line in lines if re.match(r"ARG (MINIMAL_)?BASE=", line)]
    assert named
    assert {base for base in named if base not in public or not re.search(r"@sha256:[0-9a-f]{64}$", base)} == set()
    assert any(line.startswith("LABEL org.opencontainers.image.title") for line in lines)
    assert any(line.strip() == 'org.opencontainers.image.licenses="Apache-2.0" \\' for line in lines)
    assert recipe.service is any(line.startswith("HEALTHCHECK") for line in lines)


@pytest.mark.parametrize("recipe", recipes.RECIPES, ids=lambda r: r.short)
def test_every_stage_that_installs_knows_the_registry_and_the_last_one_does_not(recipe: recipes.Recipe) -> None:
    """The history of an image tells the arguments of its last stage."""
    stages = re.split(r"^FROM .*\n", (REPOSITORY / recipe.dockerfile).read_text(), flags=re.MULTILINE)
    for stage in stages[:-1]:
        before, installs, _ = stage.partition("RUN install.sh ")
        assert not installs or f"ARG {' '.join(build.REGISTRIES)}\n" in before
    assert "install.sh" not in stages[-1]
    assert not [name for name in (*build.REGISTRIES, *build.PROXIES) if name in stages[-1]]


def test_airflow_in_containers_is_configured_as_in_the_embedded_stack(tmp_path: Path) -> None:
    ours = configparser.RawConfigParser()
    ours.read(REPOSITORY / "images" / "airflow" / "airflow.cfg")
    embedded = configparser.RawConfigParser()
    home = Home(tmp_path, REPOSITORY)
    embedded.read_string(airflow_configuration(home, choose_config({}), reveal(generate_secrets())))

    def values(parser: configparser.RawConfigParser, leave: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
        found = {(s, k): v for s in parser.sections() for k, v in parser[s].items()}
        return {key: value for key, value in found.items() if key not in leave}

    commands = {(section, f"{name}_cmd") for section, name in AS_COMMAND}
    assert values(ours, ELSEWHERE | commands) == values(embedded, ELSEWHERE | BY_VARIABLE | ONLY_SQLITE | AS_COMMAND)
    assert set(ours["core"]) >= {"fernet_key_cmd", "dags_folder"}


def test_the_commands_in_the_files_head_are_those_of_its_page() -> None:
    head = COMPOSE.read_text().partition("\nname:")[0]
    commands = [line.removeprefix("#") for line in head.splitlines() if line.startswith("#     ")]
    commands = [re.split(r" {2,}", command.strip())[0] for command in commands]
    assert len(commands) == 4
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))
    on_page = [line.partition("#")[0].strip() for line in blocks.splitlines()]
    assert [command for command in commands if command not in on_page] == []


def test_every_container_is_without_root_and_rights_and_has_limits(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"user", "privileged"} & set(service), name
        assert {"memory", "pids"} <= set(service["deploy"]["resources"]["limits"]), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_a_service_stays_up_and_a_one_shot_does_not(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {n for n, s in services.items() if s.get("restart") != "unless-stopped"} == ONE_SHOT
    assert {n for n, s in services.items() if s.get("healthcheck") == {"disable": True}} == ONE_SHOT
    # Compose takes the end of a one-shot for a failure unless somebody waits for it.
    awaited = {n for s in services.values() for n in s.get("depends_on", {})}
    assert ONE_SHOT - {"cli"} <= awaited


def test_data_is_in_named_volumes(compose: dict[str, Any]) -> None:
    mounts = [m for s in compose["services"].values() for m in s.get("volumes", [])]
    assert {m.partition(":")[0] for m in mounts if not m.endswith(":ro")} == set(compose["volumes"])


def test_no_variable_of_a_container_holds_a_secret(compose: dict[str, Any], secrets: Path) -> None:
    values = [f.read_text().strip() for f in secrets.iterdir()]
    text = COMPOSE.read_text()
    assert not [v for v in values if v in text]
    for name, service in compose["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            assert not re.search(r"PASSWORD|SECRET|TOKEN|_KEY", variable) or str(value).startswith("/run/secrets/"), (
                name,
                variable,
            )
            assert not re.search(r"://[^/@\s]*:[^/@\s]*@", str(value)), (name, variable)


def test_the_secrets_are_those_that_the_services_name_and_reach_none_but_their_owner(
    compose: dict[str, Any], secrets: Path
) -> None:
    assert {f.name for f in secrets.iterdir()} == set(compose["secrets"])
    used = {name for service in compose["services"].values() for name in service.get("secrets", [])}
    assert used == set(compose["secrets"])
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {f.stat().st_mode & 0o777 for f in secrets.iterdir()} == {0o444}


def test_secrets_stay_when_they_are_made_again_and_fit_each_other(secrets: Path) -> None:
    before = {f.name: f.read_text() for f in secrets.iterdir()}
    (secrets / "client.json").unlink()
    again = subprocess.run([sys.executable, str(SCRIPT), str(secrets)], check=True, capture_output=True, text=True)
    assert {f.name: f.read_text() for f in secrets.iterdir()} == before
    assert "1 secrets made" in again.stdout
    assert not [v for v in before.values() if v.strip() in again.stdout]
    credentials = Credentials.model_validate_json(before["credentials.json"])
    passwords = json.loads(before["mlflow_passwords.json"])
    assert credentials.mlflow.password.get_secret_value() == passwords["updraft"]
    assert f"admin_password = {passwords['admin']}\n" in before["mlflow_auth.ini"]
    pair = f'"{credentials.s3.access_key.get_secret_value()},{credentials.s3.secret_key.get_secret_value()}"'
    assert before["s3_auth"] == pair
    assert load_config({"UPDRAFT_HOME": str(secrets)}).password == json.loads(before["airflow_passwords.json"])["admin"]
    assert json.loads(before["kubeconfig"])["users"][0]["user"]["token"] == before["node_token"]


def test_the_platforms_settings_are_complete(compose: dict[str, Any]) -> None:
    environment = compose["services"]["airflow-scheduler"]["environment"]
    known = {f"UPDRAFT_{name.upper()}" for name in Settings.model_fields}
    settings = Settings.from_environment({k: str(v) for k, v in environment.items() if k in known and v is not None})
    passed_on = {name for name, value in environment.items() if value is None}  # where somebody sets them
    assert passed_on <= known | {"OPENLINEAGE_URL"}
    assert known - set(environment) == {f"UPDRAFT_{name.upper()}" for name in NOT_TAKEN}
    connection = json.loads(environment["AIRFLOW_CONN_UPDRAFT_KUBERNETES"])
    assert connection["extra"] == {"kube_config_path": "/run/secrets/kubeconfig"}
    assert settings.s3_endpoint == "http://s3:9000"
    assert settings.mlflow_uri == "http://mlflow:5000"


def test_a_build_gets_what_git_knows_and_this_machines_authorities(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text("-----BEGIN CERTIFICATE-----\n")
    with tarfile.open(fileobj=BytesIO(build.make_context({"SSL_CERT_FILE": str(authorities)}))) as tar:
        names = tar.getnames()
        taken = tar.extractfile(build.EXTRA_CA)
        assert taken is not None
        assert taken.read() == authorities.read_bytes()
    assert {"uv.lock", "operators/updraft/__init__.py", "images/common/install.sh", "images/common/uv.txt"} <= set(
        names
    )
    assert not [n for n in names if "__pycache__" in n or n.startswith((".", "tests/"))]
    without = build.make_context({})
    assert without == build.make_context({})  # the same content is the same layer
    with tarfile.open(fileobj=BytesIO(without)) as tar:
        assert build.EXTRA_CA not in tar.getnames()


def test_the_page_of_images_has_the_figures_that_were_recorded() -> None:
    text = report.PAGE.read_text()
    assert report.page(text) == text
    recorded = {entry["name"] for entry in json.loads(build.RESULTS.read_text())}
    assert {r.name for r in recipes.RECIPES if not r.large} <= recorded
    for recipe in recipes.RECIPES:
        assert f"`{recipe.name}`" in text
