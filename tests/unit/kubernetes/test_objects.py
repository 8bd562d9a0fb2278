"""Whole objects compared: what a launch becomes on the cluster."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from updraft.kubernetes import objects
from updraft.kubernetes.gate import WAIT, started_probe
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.samples import sample_probe
from updraft.kubernetes.secrets import object_name
from updraft.kubernetes.termination import PASS_ON_SIGTERM
from updraft.lifecycle import is_job_id
from updraft.lifecycle.membership import Membership
from updraft.taints import Toleration
from updraft_learner import contract
from updraft_learner.contract import CONFIG_ENV, DataMount, PodConfig
from updraft_localnode.translate import expand

UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 65532,
}
USER = [
    {"name": name, "value": value} for name, value in (("HOME", "/tmp"), ("LOGNAME", "learner"), ("USER", "learner"))
]
NO_GPU = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def token_of(secret: str) -> dict[str, Any]:
    """The program's variable for the sidecar's MLflow endpoint."""
    reference = {"name": secret, "key": "endpoint-token"}
    return {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": reference}}


RESOURCES = {
    "requests": {"cpu": "1", "ephemeral-storage": "0"},
    "limits": {"cpu": "1", "ephemeral-storage": "1024Mi"},
}
BASE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "digits-1-t1-0", "labels": {"dag_id": "train_model"}},
    "spec": {
        "containers": [
            {
                "name": "base",
                "image": "updraft/shell:1",
                "command": ["/bin/sh", "-c"],
                "args": ["sh train.sh"],
                "env": [{"name": "RANK", "value": "0"}, {"name": "LEARNER_ID", "value": "1"}],
                "resources": RESOURCES,
            }
        ],
        "restartPolicy": "Never",
    },
}


def launch(learners: int = 2) -> Launch:
    return Launch("updraft-default", "default", "digits-1", "train", 1, Membership.first(learners))


def config(learners: int = 2) -> PodConfig:
    return PodConfig(
        job_id="digits-1",
        tenant="default",
        role="train",
        attempt=1,
        learner=1,
        learners=learners,
        bucket="updraft",
        prefix="default",
        mlflow_run_id="run",
        mlflow_experiment_id="1",
        data=(DataMount("a" * 64, "training"),),
    )


def learner_pod(base: dict[str, Any] = BASE, *, learners: int = 2, **more: Any) -> objects.Manifest:
    always: dict[str, Any] = {"sidecar_image": "updraft/sidecar:0.1", "grace_seconds": 60, "node_lost_seconds": 30}
    return objects.learner_pod(base, config(learners), **always, **more)


def pods(learners: int = 2) -> list[objects.Manifest]:
    pod = learner_pod(learners=learners)
    return objects.role_to_pods(pod, launch(learners), config(learners))


def test_a_gang_is_named_and_labelled_by_its_launch() -> None:
    first, second = pods()
    assert [first["metadata"]["name"], second["metadata"]["name"]] == ["digits-1-t1-0", "digits-1-t1-1"]
    assert second["metadata"]["labels"] == {
        "dag_id": "train_model",
        "updraft.dev/job": "digits-1",
        "updraft.dev/tenant": "default",
        "updraft.dev/role": "train",
        "updraft.dev/attempt": "1",
        "updraft.dev/learner": "2",
    }
    assert second["spec"]["hostname"] == "digits-1-t1-1"
    assert second["spec"]["subdomain"] == "digits-1-t1"


def test_the_programs_container_keeps_its_image_and_command_and_gets_the_endpoints_token_alone() -> None:
    (pod,) = pods(1)
    assert pod["spec"]["containers"] == [
        {
            "name": "base",
            "image": "updraft/shell:1",
            "command": ["/bin/sh", "-c"],
            "args": [objects.verbatim(WAIT), "sh train.sh"],
            "env": [
                {"name": "RANK", "value": "0"},
                {"name": "LEARNER_ID", "value": "1"},
                *USER,
                NO_GPU,
                token_of("digits-1-t1"),
            ],
            "resources": RESOURCES,
            "volumeMounts": [{"name": "job", "mountPath": "/updraft"}, {"name": "shm", "mountPath": "/dev/shm"}],
            "workingDir": "/updraft",
            "startupProbe": started_probe(),
            "readinessProbe": sample_probe(10.0, gpus=False),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", PASS_ON_SIGTERM]}}},
            "securityContext": UNPRIVILEGED,
        }
    ]
    assert "hostname" not in pod["spec"]


def test_only_the_sidecar_mounts_the_credentials() -> None:
    (pod,) = pods(1)
    (sidecar,) = pod["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("updraft-sidecar", "Always")
    assert {m["name"] for m in sidecar["volumeMounts"]} == {"job", "private", "credentials"}
    (program,) = pod["spec"]["containers"]
    assert {m["name"] for m in program["volumeMounts"]} == {"job", "shm"}
    assert pod["spec"]["volumes"] == [
        {"name": "job", "emptyDir": {"sizeLimit": "1024Mi"}},
        {"name": "private", "emptyDir": {"sizeLimit": "1024Mi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "credentials", "secret": {"secretName": "digits-1-t1", "defaultMode": 0o440}},
    ]
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_the_whole_pod_of_a_learner() -> None:
    (pod,) = pods(1)
    sidecar = {
        "name": "updraft-sidecar",
        "image": "updraft/sidecar:0.1",
        "command": ["python", "-m", "updraft_learner.sidecar"],
        "restartPolicy": "Always",
        "ports": [{"name": "mlflow", "containerPort": contract.MLFLOW_PORT}],
        "env": [
            {"name": "UPDRAFT_ROOT_DIR", "value": "/updraft"},
            {"name": "UPDRAFT_PRIVATE_DIR", "value": "/run/updraft/private/sidecar"},
            {"name": "UPDRAFT_CREDENTIALS_FILE", "value": "/run/updraft/credentials/credentials.json"},
            {"name": "TMPDIR", "value": "/run/updraft/private"},
            {"name": CONFIG_ENV, "value": config(1).to_json()},
        ],
        "volumeMounts": [
            {"name": "job", "mountPath": "/updraft"},
            {"name": "private", "mountPath": "/run/updraft/private"},
            {"name": "credentials", "mountPath": "/run/updraft/credentials", "readOnly": True},
        ],
        "resources": {"requests": {"cpu": "0", "memory": "128Mi"}, "limits": {"memory": "1024Mi"}},
        "securityContext": {**UNPRIVILEGED, "readOnlyRootFilesystem": True},
    }
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    base = BASE["spec"]["containers"][0]
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "digits-1-t1-0",
            "namespace": "updraft-default",
            "labels": {"dag_id": "train_model", **launch(1).labels(1)},
        },
        "spec": {
            "initContainers": [sidecar],
            "containers": [
                {
                    **base,
                    "args": [objects.verbatim(WAIT), "sh train.sh"],
                    "env": [*base["env"], *USER, NO_GPU, token_of("digits-1-t1")],
                    "volumeMounts": [
                        {"name": "job", "mountPath": "/updraft"},
                        {"name": "shm", "mountPath": "/dev/shm"},
                    ],
                    "workingDir": "/updraft",
                    "startupProbe": started_probe(),
                    "readinessProbe": sample_probe(10.0, gpus=False),
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", PASS_ON_SIGTERM]}}},
                    "securityContext": UNPRIVILEGED,
                }
            ],
            "restartPolicy": "Never",
            "volumes": [
                {"name": "job", "emptyDir": {"sizeLimit": "1024Mi"}},
                {"name": "private", "emptyDir": {"sizeLimit": "1024Mi"}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "credentials", "secret": {"secretName": "digits-1-t1", "defaultMode": 0o440}},
            ],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 60,
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", **lost},
                {"key": "node.kubernetes.io/unreachable", **lost},
            ],
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def test_a_pod_with_gpus_is_as_any_other_but_for_their_samples_and_their_taint() -> None:
    base = copy.deepcopy(BASE)
    amounts = {"cpu": "1", "ephemeral-storage": "1024Mi", "nvidia.com/gpu": "1"}
    base["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    with_gpus, without = learner_pod(base, learners=1), learner_pod(learners=1)
    (program,) = without["spec"]["containers"]
    program |= {"resources": {"requests": amounts, "limits": amounts}, "readinessProbe": sample_probe(10.0, gpus=True)}
    program["env"].remove(NO_GPU)
    without["spec"]["tolerations"].insert(0, {"key": "nvidia.com/gpu", "operator": "Exists"})
    assert with_gpus == without


def test_nothing_is_sampled_where_metrics_are_switched_off() -> None:
    base = copy.deepcopy(BASE)
    base["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    silent = replace(config(1), system_metrics_seconds=0)
    pod = objects.learner_pod(base, silent, sidecar_image="s", grace_seconds=1, node_lost_seconds=1)
    assert "readinessProbe" not in pod["spec"]["containers"][0]


def test_learners_differ_in_rank_and_configuration_only() -> None:
    first, second = pods()
    assert second["spec"]["containers"][0]["env"] == [
        {"name": "RANK", "value": "1"},
        {"name": "LEARNER_ID", "value": "2"},
        *USER,
        NO_GPU,
        token_of("digits-1-t1"),
    ]
    sidecar = second["spec"]["initContainers"][0]
    text = next(v["value"] for v in sidecar["env"] if v["name"] == contract.CONFIG_ENV)
    assert PodConfig.from_json(text) == PodConfig(**{**config().__dict__, "learner": 2})
    assert first["spec"]["volumes"] == second["spec"]["volumes"]


def test_a_home_that_the_manifest_names_stays() -> None:
    base = copy.deepcopy(BASE)
    base["spec"]["containers"][0]["env"].append({"name": "HOME", "value": "/updraft/state"})
    env = learner_pod(base)["spec"]["containers"][0]["env"]
    assert [entry["value"] for entry in env if entry["name"] == "HOME"] == ["/updraft/state"]


def test_building_leaves_the_pod_that_was_given_alone() -> None:
    before = json.dumps(BASE)
    pods()
    assert json.dumps(BASE) == before


def test_one_learner_meets_itself_on_loopback_and_a_gang_by_name() -> None:
    assert launch(1).master_address == "127.0.0.1"
    assert launch(2).master_address == "digits-1-t1-0.digits-1-t1"


def test_the_service_is_headless_and_names_learners_before_they_are_ready() -> None:
    assert objects.headless_service(launch()) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "digits-1-t1", "namespace": "updraft-default", "labels": launch().labels()},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": launch().labels(),
            "ports": [{"name": "master", "port": 29500}],
        },
    }


def test_credentials_go_into_a_file_of_a_secret() -> None:
    secret = objects.credentials_secret(launch(), {"s3": {"secret_key": "x"}}, "t0k3n")
    assert secret["stringData"] == {
        "credentials.json": '{"s3": {"secret_key": "x"}, "endpoint_token": "t0k3n"}',
        "endpoint-token": "t0k3n",
    }
    assert secret["metadata"]["name"] == "digits-1-t1"


def test_a_secret_in_the_environment_is_a_reference_never_a_value() -> None:
    assert objects.environment({"A": "1"}, (("TOKEN", "user.hub", "value"),)) == [
        {"name": "A", "value": "1"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "user.hub", "key": "value"}}},
    ]


JOB_IDS = st.from_regex(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", fullmatch=True).filter(is_job_id)
SECRET_NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)


@given(JOB_IDS, SECRET_NAMES, st.sampled_from(["train", "evaluate", "export"]), st.integers(1, 99))
def test_no_secret_of_a_tenant_is_the_credentials_of_a_job(job_id: str, name: str, role: str, attempt: int) -> None:
    launch = Launch("updraft-default", "default", job_id, role, attempt, Membership.first(1))
    assert object_name(name) != launch.base_name
    assert (
        object_name("x-t1") != Launch("updraft-default", "default", "user-x", "train", 1, Membership.first(1)).base_name
    )
    assert "." not in launch.base_name


@given(st.text(alphabet="$(){}AB '\"x", max_size=30))
def test_what_kubernetes_expands_comes_out_as_it_was_written(text: str) -> None:
    assert expand(objects.verbatim(text), {"A": "secret", "B": "x"}) == text


def test_the_programs_command_and_environment_are_not_expanded_by_the_cluster() -> None:
    base = copy.deepcopy(BASE)
    base["spec"]["containers"][0]["args"] = ["echo $$ '$(TOKEN)' $HOME"]
    pod = learner_pod(base)
    assert pod["spec"]["containers"][0]["args"][1:] == ["echo $$$$ '$$(TOKEN)' $$HOME"]
    assert objects.environment({"A": "$(TOKEN)"}, ()) == [{"name": "A", "value": "$$(TOKEN)"}]


def test_learners_tolerate_what_the_site_names_and_those_with_gpus_what_keeps_gpus_free() -> None:
    def tolerations(amounts: dict[str, str]) -> list[objects.Manifest]:
        base = copy.deepcopy(BASE)
        base["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        pod = learner_pod(base, learners=1, tolerations=(Toleration("dedicated", "training"),))
        found: list[objects.Manifest] = pod["spec"]["tolerations"]
        return [each for each in found if "tolerationSeconds" not in each]

    dedicated = {"key": "dedicated", "operator": "Equal", "value": "training"}
    assert tolerations({"cpu": "1"}) == [dedicated]
    assert tolerations({"cpu": "1", "nvidia.com/gpu": "1"}) == [
        dedicated,
        {"key": "nvidia.com/gpu", "operator": "Exists"},
    ]


def test_a_pod_leaves_a_silent_node_soon_and_avoids_the_one_it_was_lost_on() -> None:
    pod = learner_pod(learners=1, avoid_nodes=("node-1",))
    assert pod["spec"]["tolerations"] == [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 30,
        }
        for key in ("not-ready", "unreachable")
    ]
    other = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-1"]}
    assert pod["spec"]["affinity"] == {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "preference": {"matchExpressions": [other]}}
            ]
        }
    }


def test_avoiding_a_node_adds_to_the_affinity_of_a_sites_hook() -> None:
    own = {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    of_nodes = {preferred: [own], "requiredDuringSchedulingIgnoredDuringExecution": required}
    base = {**BASE, "spec": {**BASE["spec"], "affinity": {"podAntiAffinity": {}, "nodeAffinity": of_nodes}}}
    made = learner_pod(learners=1, base=base, avoid_nodes=("node-1",))["spec"]["affinity"]
    (other,) = learner_pod(learners=1, avoid_nodes=("node-1",))["spec"]["affinity"]["nodeAffinity"][preferred]
    assert made == {"podAntiAffinity": {}, "nodeAffinity": {**of_nodes, preferred: [own, other]}}


def test_a_template_of_another_attempt_serves_each_attempt() -> None:
    base = copy.deepcopy(BASE)
    base["spec"]["containers"][0]["env"] += [
        {"name": "UPDRAFT_ATTEMPT", "value": "1"},
        {"name": "MASTER_ADDR", "value": "digits-1-t1-0.digits-1-t1"},
    ]
    pod = learner_pod(base)
    third = Launch("updraft-default", "default", "digits-1", "train", 3, Membership.first(2))
    second_learner = objects.role_to_pods(pod, third, config())[1]
    assert second_learner["metadata"]["name"] == "digits-1-t3-1"
    assert second_learner["metadata"]["labels"]["updraft.dev/attempt"] == "3"
    *env, token = second_learner["spec"]["containers"][0]["env"]
    assert token == token_of("digits-1-t3")
    assert {e["name"]: e["value"] for e in env} == {
        "RANK": "1",
        "LEARNER_ID": "2",
        "UPDRAFT_ATTEMPT": "3",
        "MASTER_ADDR": "digits-1-t3-0.digits-1-t3",
        **{entry["name"]: entry["value"] for entry in (*USER, NO_GPU)},
    }


def test_a_learner_goes_on_from_its_own_checkpoint() -> None:
    pod = learner_pod()
    made = objects.role_to_pods(pod, launch(), config(), restores={2: "step-5-a1-l2"})
    restored = [
        PodConfig.from_json(next(e["value"] for e in p["spec"]["initContainers"][0]["env"] if e["name"] == CONFIG_ENV))
        for p in made
    ]
    assert [(c.learner, c.restore_checkpoint) for c in restored] == [(1, None), (2, "step-5-a1-l2")]
