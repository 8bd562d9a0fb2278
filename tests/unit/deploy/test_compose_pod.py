"""docker-compose.yaml as a pod: nothing of it is lost on the way, and the strictest profile lets it in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from compose_pod import COMPOSE, FILES, LEFT_OUT, SECRET, Composed, composed
from containers import recipes

IMAGES = {recipe.name: f"registry.example.org/team/{recipe.short}" for recipe in recipes.RECIPES}
VARIABLES = {"UPDRAFT_S3_ENDPOINT": "http://s3.here.svc:9000"}


@pytest.fixture(scope="module")
def objects() -> Composed:
    return composed(VARIABLES, IMAGES, {"s3": 9000, "mlflow": 5000})


def containers(objects: Composed) -> dict[str, Any]:
    spec = objects.pod["spec"]
    return {each["name"]: each for each in (*spec["initContainers"], *spec["containers"])}


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_each_service_begins_after_those_it_waits_for(objects: Composed) -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(containers(objects)) == set(services) - set(LEFT_OUT)
    order = [each["name"] for each in objects.pod["spec"]["initContainers"]]
    for name, service in services.items():
        for before in set(service.get("depends_on", ())) - set(LEFT_OUT):
            assert before in order
            assert name not in order or order.index(before) < order.index(name)
    goes_on = {name for name, each in containers(objects).items() if each.get("restartPolicy") == "Always"}
    assert goes_on == {"postgres", "s3", "mlflow", "airflow-api"}
    assert all("startupProbe" in containers(objects)[name] for name in goes_on)


def test_a_container_gets_the_secrets_of_its_service_and_no_other(objects: Composed) -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, container in containers(objects).items():
        mounted = {mount["subPath"] for mount in container["volumeMounts"] if mount["name"] == SECRET}
        assert mounted == set(services[name].get("secrets", ())) - {"kubeconfig"}
        speaks = "kubeconfig" in services[name].get("secrets", ())
        assert speaks == any(mount["name"] == "token" for mount in container["volumeMounts"])
        assert mounted <= objects.secrets
    assert "kubeconfig" not in objects.secrets


def test_values_come_from_the_variables_else_from_the_file(objects: Composed) -> None:
    scheduler = environment(containers(objects)["airflow-scheduler"])
    assert scheduler["UPDRAFT_S3_ENDPOINT"] == "http://s3.here.svc:9000"
    assert scheduler["UPDRAFT_MLFLOW_URI"] == "http://mlflow:5000"
    assert json.loads(scheduler["AIRFLOW_CONN_UPDRAFT_KUBERNETES"])["extra"] == {"in_cluster": True}
    assert not [text for text in json.dumps(objects.pod).split() if "${" in text]


def test_files_of_the_checkout_are_where_compose_has_them(objects: Composed) -> None:
    places = {
        mount["mountPath"]: mount["subPath"]
        for container in containers(objects).values()
        for mount in container["volumeMounts"]
        if mount["name"] == FILES
    }
    assert places == {"/opt/databases.sh": "databases.sh", "/seed/datasets/digits/digits.csv": "digits.csv"}
    assert set(objects.files["data"]) == set(places.values())


def test_no_container_may_more_than_the_restricted_profile_allows(objects: Composed) -> None:
    assert objects.pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in containers(objects).values():
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert container["resources"]["limits"]["memory"][-2:] in ("Mi", "Gi")
