"""deploy/kustomize/mlflow runs MLflow as docker-compose.yaml does; the policies of deploy/kustomize/network meet it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from updraft.kubernetes.policies import outside_of
from updraft_learner.contract import LABEL_JOB

REPOSITORY = Path(__file__).parents[3]
KUSTOMIZE = REPOSITORY / "deploy" / "kustomize"
COMPOSE = REPOSITORY / "docker-compose.yaml"
ONLY_FOR_RCLONE = {"AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"}


def documents(*parts: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(KUSTOMIZE.joinpath(*parts).read_text()))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = re.sub(r"\$\{[A-Z0-9_]+:-((?:[^{}]|\$\{[^{}]*\})*)\}", r"\1", COMPOSE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    deployment = next(d for d in documents("mlflow", "server.yaml") if d["kind"] == "Deployment")
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    lines = (KUSTOMIZE / "mlflow" / "site.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_server_runs_as_in_compose(compose: dict[str, Any], pod: dict[str, Any], site: dict[str, str]) -> None:
    server, migrate = pod["containers"][0], pod["initContainers"][0]
    assert server["args"] == compose["mlflow"]["command"]
    assert migrate["args"] == compose["mlflow-migrate"]["command"]
    ours = {item["name"]: item["value"] for item in server["env"]}
    theirs = compose["mlflow"]["environment"]
    assert set(ours) | set(site) == set(theirs) - ONLY_FOR_RCLONE - {"UPDRAFT_HEALTH_FAILURES"}  # the kubelet restarts
    assert {n: v for n, v in ours.items() if theirs[n] != v} == {}
    for container in (server, migrate):
        limits = compose["mlflow" if container is server else "mlflow-migrate"]["deploy"]["resources"]["limits"]
        assert container["resources"]["limits"]["memory"].lower().removesuffix("i") == limits["memory"]


def test_it_reads_the_secrets_that_the_guide_makes(compose: dict[str, Any], pod: dict[str, Any]) -> None:
    page = (REPOSITORY / "docs" / "howto" / "deploy.md").read_text().replace("\\\n", " ")
    line = next(line for line in page.splitlines() if line.startswith("kubectl create secret generic mlflow "))
    keys = {Path(word).name for word in line.split() if word.startswith("--from-file=")}
    assert keys == set(compose["mlflow"]["secrets"])
    assert [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v] == ["mlflow"]


def test_the_platforms_user_is_made_as_in_compose(compose: dict[str, Any]) -> None:
    (job,) = documents("mlflow", "user.yaml")
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == compose["mlflow-user"]["command"]


def test_no_pod_has_a_token_or_a_right_of_the_system(pod: dict[str, Any]) -> None:
    (job,) = documents("mlflow", "user.yaml")
    for spec in (pod, job["spec"]["template"]["spec"]):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"] + spec.get("initContainers", []):
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_address_in_the_values_is_one_that_the_server_answers_to_and_learners_reach(site: dict[str, str]) -> None:
    values = yaml.safe_load((REPOSITORY / "deploy" / "helm" / "airflow-values.yaml").read_text())
    url = next(item["value"] for item in values["env"] if item["name"] == "UPDRAFT_MLFLOW_URI")
    assert urlsplit(url).netloc in site["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    (namespace,) = documents("mlflow", "namespace.yaml")
    assert outside_of("updraft-default", [url], []).namespaces == (namespace["metadata"]["name"],)


def test_the_policies_name_what_there_is() -> None:
    (mlflow,) = documents("network", "mlflow.yaml")
    peers = mlflow["spec"]["ingress"][0]["from"]
    learners = next(p for p in peers if "podSelector" in p and "namespaceSelector" in p)
    tenant = documents("tenant", "namespace.yaml")[0]["metadata"]
    assert learners["namespaceSelector"]["matchLabels"].items() <= tenant["labels"].items()
    assert learners["podSelector"]["matchExpressions"] == [{"key": LABEL_JOB, "operator": "Exists"}]
    (namespace,) = documents("mlflow", "namespace.yaml")
    assert mlflow["metadata"]["namespace"] == namespace["metadata"]["name"]
    assert {d["metadata"]["namespace"] for d in documents("network", "airflow.yaml")} == {"updraft-system"}
