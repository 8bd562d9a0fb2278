"""deploy/helm/airflow-values.yaml: what it names exists in our code, and it says what docker-compose.yaml says."""

from __future__ import annotations

import configparser
import json
import os
import re
from pathlib import Path
from typing import Any

import deploy_page
import pytest
import yaml
from containers import recipes

from updraft.settings import Settings
from updraft.stack.files import EMISSION_POLICY

REPOSITORY = Path(__file__).parents[3]
VALUES = REPOSITORY / "deploy" / "helm" / "airflow-values.yaml"
COMPOSE = REPOSITORY / "docker-compose.yaml"
CHART_VARIABLE = "UPDRAFT_TEST_AIRFLOW_CHART"
PARTS = {
    "scheduler": "airflow-scheduler",
    "triggerer": "airflow-triggerer",
    "dagProcessor": "airflow-dag-processor",
    "apiServer": "airflow-api",
}
WITH_TOKEN = {"scheduler", "triggerer", "apiServer"}
# Of compose's variables: the health check of its engine, and what the chart sets from a secret.
NOT_IN_A_CLUSTER = {"UPDRAFT_HEALTH_URL", "UPDRAFT_HEALTH_FAILURES", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"}


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(VALUES.read_text())
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = re.sub(r"\$\{[A-Z0-9_]+:-((?:[^{}]|\$\{[^{}]*\})*)\}", r"\1", COMPOSE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def environment(values: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in values["env"]}


def test_it_sets_what_compose_sets_and_only_settings_that_there_are(
    values: dict[str, Any], compose: dict[str, Any]
) -> None:
    ours = environment(values)
    theirs = {name for name, value in compose["airflow-api"]["environment"].items() if value is not None}
    assert theirs - NOT_IN_A_CLUSTER <= set(ours)
    of_settings = {f"UPDRAFT_{name.upper()}" for name in Settings.model_fields}
    assert {n for n in set(ours) - theirs if n.startswith("UPDRAFT_")} <= of_settings
    Settings.from_environment(ours)


def test_a_site_logs_people_in_by_a_real_auth_manager(values: dict[str, Any]) -> None:
    """The chart's default, and that of our image, is the simple one, whose passwords lie in a file."""
    manager = environment(values)["AIRFLOW__CORE__AUTH_MANAGER"]
    assert re.fullmatch(r"airflow\.providers\.\w+(\.\w+)+", manager)
    assert not manager.endswith("SimpleAuthManager")
    assert not [name for name in environment(values) if "SIMPLE_AUTH_MANAGER" in name]


def test_a_token_of_airflows_api_is_good_for_an_hour(values: dict[str, Any], compose: dict[str, Any]) -> None:
    """A variable would win over the image's file."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(REPOSITORY / "images" / "airflow" / "airflow.cfg")
    assert config["api_auth"]["jwt_expiration_time"] == "3600"
    for names in (environment(values), compose["airflow-api"]["environment"]):
        assert not [name for name in names if name.startswith("AIRFLOW__API_AUTH__JWT_") and "EXPIRATION" in name]


def test_every_variable_of_airflow_is_one_of_its_options(values: dict[str, Any]) -> None:
    import airflow

    options = yaml.safe_load((Path(airflow.__path__[0]) / "config_templates" / "config.yml").read_text())
    parts = [values, *(values[part] for part in (*PARTS, "migrateDatabaseJob"))]
    lists = [part.get("env", []) + (part.get("waitForMigrations") or {}).get("env", []) for part in parts]
    names = [item["name"] for found in lists for item in found if item["name"].startswith("AIRFLOW__")]
    assert names
    for name in names:
        _, section, option = name.lower().split("__", 2)
        assert option in options[section]["options"], name


def test_the_account_is_that_of_kustomize_and_only_who_needs_its_token_has_it(values: dict[str, Any]) -> None:
    platform = REPOSITORY / "deploy" / "kustomize" / "platform" / "platform.yaml"
    account = next(d for d in yaml.safe_load_all(platform.read_text()) if d["kind"] == "ServiceAccount")
    for part in PARTS:
        holds = any(volume["name"] == "token" for volume in values[part].get("extraVolumes", []))
        assert holds == (part in WITH_TOKEN), part
        named = {"create": False, "name": account["metadata"]["name"]}
        assert (values[part]["serviceAccount"] == named) == holds, part
    for part in ("dagProcessor", "migrateDatabaseJob"):
        assert values[part]["serviceAccount"] == {"automountServiceAccountToken": False}
    assert values["rbac"] == {"create": False}
    connection = f"AIRFLOW_CONN_{Settings.model_fields['kubernetes_conn_id'].default.upper()}"
    assert json.loads(environment(values)[connection])["extra"] == {"in_cluster": True}


def test_images_are_ours_and_programs_exist(values: dict[str, Any]) -> None:
    ours = {recipe.name for recipe in recipes.RECIPES}
    env = environment(values)
    named = [
        f"{values['defaultAirflowRepository']}:{values['defaultAirflowTag']}",
        env["UPDRAFT_SIDECAR_IMAGE"],
        env["UPDRAFT_DATA_IMAGE"],
    ]
    named += json.loads(env["UPDRAFT_FRAMEWORK_IMAGES"]).values()
    assert {name.removeprefix("registry.example.org/") for name in named} <= ours
    assert set(json.loads(env["UPDRAFT_FRAMEWORK_IMAGES"])) == set(Settings.model_fields["framework_images"].default)
    for part in (*PARTS, "migrateDatabaseJob"):
        for module in re.findall(r"-m (updraft[\w.]+)", " ".join(values[part]["args"])):
            assert (REPOSITORY / "operators" / f"{module.replace('.', '/')}.py").is_file(), module


def test_parts_run_as_in_compose(values: dict[str, Any], compose: dict[str, Any]) -> None:
    for part, service in PARTS.items():
        ran = " ".join(values[part]["args"][2:]) if values[part]["args"][0] == "sh" else " ".join(values[part]["args"])
        assert ran.endswith(" ".join(compose[service]["command"])), part
        limit = values[part]["resources"]["limits"]["memory"]
        assert limit.lower().removesuffix("i") == compose[service]["deploy"]["resources"]["limits"]["memory"], part
    assert values["migrateDatabaseJob"]["args"] == compose["airflow-migrate"]["command"]


def test_the_executor_is_that_of_the_image_and_the_chart_takes_it_for_a_local_one(values: dict[str, Any]) -> None:
    image = configparser.RawConfigParser()
    image.read(REPOSITORY / "images" / "airflow" / "airflow.cfg")
    assert environment(values)["AIRFLOW__CORE__EXECUTOR"] == image["core"]["executor"]
    assert values["executor"] == "LocalExecutor"  # the chart knows no other name for tasks inside the scheduler
    # Airflow reads the image's file, not the one that the chart makes and mounts into AIRFLOW_HOME.
    dockerfile = (REPOSITORY / "images" / "airflow" / "Dockerfile").read_text()
    assert "AIRFLOW_HOME=/opt/airflow AIRFLOW_CONFIG=/opt/updraft/airflow.cfg" in dockerfile


def test_the_image_sends_the_same_lineage_as_the_stack() -> None:
    image = configparser.RawConfigParser()
    image.read(REPOSITORY / "images" / "airflow" / "airflow.cfg")
    assert json.loads(image["openlineage"]["emission_policy"]) == EMISSION_POLICY
    assert image["openlineage"]["execute_in_thread"] == "True"


def test_pods_keep_to_the_profile_of_their_namespace(values: dict[str, Any]) -> None:
    pod, container = values["securityContexts"]["pod"], values["securityContexts"]["containers"]
    assert (pod["runAsNonRoot"], pod["runAsUser"], values["uid"]) == (True, 65532, 65532)
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_secrets_are_named_made_by_the_guide_and_not_written_down(values: dict[str, Any]) -> None:
    script = "\n".join(deploy_page.marked(deploy_page.CLUSTER)).replace("\\\n", " ")
    made = {}
    for line in re.findall(r"^kubectl create secret generic .*$", script, re.MULTILINE):
        name = line.split()[4]
        made[name] = {word.removeprefix("--from-file=") for word in line.split() if word.startswith("--from-file=")}
    keys = {name: {f.partition("=")[0].rpartition("/")[2] for f in files} for name, files in made.items()}
    named = {values[key] for key in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName")}
    assert named | {values["data"]["metadataSecretName"]} == {"updraft-airflow"}
    assert keys["updraft-airflow"] == {"fernet-key", "api-secret-key", "jwt-secret", "connection"}
    volumes = {v["name"]: v["secret"]["secretName"] for v in values["volumes"] if "secret" in v}
    assert set(volumes.values()) == {"updraft-credentials", "updraft-files"}
    env = environment(values)
    assert keys["updraft-credentials"] == {Path(env["UPDRAFT_CREDENTIALS_FILE"]).name}
    mounts = {m["subPath"] for m in values["volumeMounts"] if m["name"] == "files"}
    assert keys["updraft-files"] == mounts == set(env["UPDRAFT_PRIVATE_FILES"].split())
    assert not re.search(r"://[^/@\s]*:[^/@\s]*@", VALUES.read_text())


def test_the_charts_schema_takes_it(values: dict[str, Any]) -> None:
    """Of a chart that somebody has unpacked: it is not part of this repository."""
    import jsonschema

    folder = os.environ.get(CHART_VARIABLE)
    if not folder:
        pytest.skip(f"{CHART_VARIABLE} names no unpacked chart of Airflow: keys of the values are not compared with it")
    chart = Path(folder)
    jsonschema.validate(values, json.loads((chart / "values.schema.json").read_text()))
    assert sorted(unknown(values, yaml.safe_load((chart / "values.yaml").read_text()))) == []


def unknown(ours: dict[str, Any], theirs: dict[str, Any], path: str = "") -> list[str]:
    """Keys that the chart's own values do not have. What is empty there takes anything."""
    found = []
    for key, value in ours.items():
        here = f"{path}.{key}".lstrip(".")
        if key not in theirs:
            found.append(here)
        elif isinstance(value, dict) and isinstance(theirs[key], dict) and theirs[key]:
            found += unknown(value, theirs[key], here)
    return found
