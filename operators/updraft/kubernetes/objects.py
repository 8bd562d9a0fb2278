"""Convert a job's launch to Kubernetes objects: plain dictionaries in API form. Pure.

`KubernetesPodOperator` builds the pod of one program. `learner_pod` adds the platform's native sidecar, and
`role_to_pods` makes the gang. Called by `launch.objects_of`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from updraft.kubernetes.gate import gated, started_probe
from updraft.kubernetes.samples import sample_probe
from updraft.kubernetes.termination import pre_stop
from updraft.lifecycle.membership import Membership
from updraft.taints import GPU_RESOURCE, GPU_TAINT, Toleration
from updraft_learner import contract
from updraft_learner.contract import PodConfig

Manifest = dict[str, Any]  # a Kubernetes object in API form

DISK_RESOURCE = "ephemeral-storage"
SIDECAR_MEMORY_MIB = 128  # the sidecar's memory request; admission adds it for each learner
SIDECAR_MEMORY_LIMIT_MIB = 1024
# The same for the coordinator of learners that join and leave; admission adds it for each learner, beside any of which
# the coordinator may run.
COORDINATOR_MEMORY_MIB = 48
COORDINATOR_MEMORY_LIMIT_MIB = 256
COORDINATOR_GRACE_SECONDS = 2
# The user of every container: the sidecar has to read the program's files, and some libraries make files that only
# their owner may read (safetensors: 0600). It also replaces the image's own user, which in most public images is root.
LEARNER_UID = 10001
JOB_GID = 65532  # the group that owns the job's volume
# The image's list of users may lack this user; programs that look for a home or a name find these.
USER_VARIABLES = {"HOME": "/tmp", "LOGNAME": "learner", "USER": "learner"}
# Container runtimes provide 64 MiB by default, too little for PyTorch's data loaders and NCCL. Pages written here count
# as the program's memory, and the kubelet makes the volume no larger than the pod's limits.
SHARED_MEMORY_VOLUME = "shm"
# CUDA images ask for all GPUs with this variable, and NVIDIA's runtime grants them whatever the pod requests.
NO_GPU = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": LEARNER_UID,
    "runAsGroup": JOB_GID,
}
HOST_PATHS = {
    contract.ROOT_ENV: contract.ROOT_DIR,
    contract.PRIVATE_ENV: f"{contract.PRIVATE_DIR}/sidecar",  # created by staging, for the sidecar alone
    "UPDRAFT_CREDENTIALS_FILE": contract.CREDENTIALS_FILE,
    "TMPDIR": contract.PRIVATE_DIR,  # their root file system is read-only
}


@dataclass(frozen=True)
class Launch:
    """One attempt of one role of a job: everything that its objects' names and labels are made from."""

    namespace: str
    tenant: str
    job_id: str
    role: str  # as in lifecycle.workflow
    attempt: int
    membership: Membership
    batch: int | None = None  # the global batch, of an elastic job whose batch the platform chooses
    lr_scale: float = 1.0
    least: int | None = None  # of a training that is resized in place: its fewest learners

    @property
    def in_place(self) -> bool:
        """Return whether learners join and leave while the others train."""
        return self.least is not None

    @property
    def named(self) -> bool:
        """Return whether the launch's pods find each other by name."""
        return self.in_place or self.membership.size > 1

    @property
    def coordinator_host(self) -> str:
        """Return the host name of the coordinator, whichever of its pods has it."""
        return f"{self.base_name}-c"

    @property
    def coordinator_address(self) -> str:
        """Return where the learners find their coordinator."""
        return f"{self.coordinator_host}.{self.base_name}:{contract.COORDINATOR_PORT}"

    @property
    def base_name(self) -> str:
        """Return the name that the launch's objects begin with. It depends on the launch alone, so that creating twice
        changes nothing. Job ids have at most 52 characters, names 63."""
        return f"{self.job_id}-{self.role[0]}{self.attempt}"

    def pod_name(self, learner: int) -> str:
        return f"{self.base_name}-{learner - 1}"

    def labels(self, learner: int | None = None) -> dict[str, str]:
        labels = {
            contract.LABEL_JOB: self.job_id,
            contract.LABEL_TENANT: self.tenant,
            contract.LABEL_ROLE: self.role,
            contract.LABEL_ATTEMPT: str(self.attempt),
        }
        if learner is not None:
            labels[contract.LABEL_LEARNER] = str(learner)
        return labels

    @property
    def selector(self) -> str:
        return ",".join(f"{key}={value}" for key, value in sorted(self.labels().items()))

    @property
    def master_address(self) -> str:
        """Name in the gang's headless service of the learner with rank 0; one learner needs none."""
        if self.membership.size == 1:
            return "127.0.0.1"
        return f"{self.pod_name(self.membership.learners[0])}.{self.base_name}"


def learner_pod(
    base: Manifest,
    config: PodConfig,
    *,
    sidecar_image: str,
    grace_seconds: int,
    node_lost_seconds: int,
    tolerations: tuple[Toleration, ...] = (),
    avoid_nodes: tuple[str, ...] = (),
) -> Manifest:
    """Add the native sidecar (Kubernetes >= 1.29) and its volumes to KPO's pod.

    The program's container keeps its image and command, which starts once the sidecar has staged (`gate`); it gains
    the job's volume, a working directory and the user that both share, the token of the sidecar's MLflow endpoint as a
    reference to the launch's secret, which `role_to_pods` names, and no other credential. Its limit of disk is the
    pod's: a kubelet adds up the limits that containers have, the sidecar has none, and compares with all that the pod
    wrote; each volume may grow as far. On a node that is lost it stays `node_lost_seconds` (Kubernetes' own default is
    five minutes); nodes to avoid are taken when no other has room.
    """
    pod = copy.deepcopy(base)
    spec = pod["spec"]
    main = next(c for c in spec["containers"] if c["name"] == contract.MAIN_CONTAINER)
    main.setdefault("volumeMounts", []).extend(
        [
            {"name": contract.JOB_VOLUME, "mountPath": contract.ROOT_DIR},
            {"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"},
        ]
    )
    # Not CODE_DIR: the container runtime would create that folder as its own before the sidecar does.
    main["workingDir"] = contract.ROOT_DIR
    (command,) = main["args"]
    main["args"] = [verbatim(word) for word in gated(command)]
    main["startupProbe"] = started_probe()
    main["terminationMessagePolicy"] = "FallbackToLogsOnError"
    main["lifecycle"] = {"preStop": pre_stop()}
    main["securityContext"] = copy.deepcopy(UNPRIVILEGED)
    known = {entry["name"] for entry in main.setdefault("env", [])}
    main["env"] += [{"name": name, "value": value} for name, value in USER_VARIABLES.items() if name not in known]
    if not _asks_for_gpus(main):
        main["env"].append(dict(NO_GPU))
    if config.system_metrics_seconds > 0:
        main["readinessProbe"] = sample_probe(config.system_metrics_seconds, gpus=_asks_for_gpus(main))
    token = {"name": "", "key": contract.ENDPOINT_TOKEN_KEY}
    main["env"].append({"name": contract.ENDPOINT_TOKEN_ENV, "valueFrom": {"secretKeyRef": token}})
    sidecar = {
        "name": contract.SIDECAR_CONTAINER,
        "image": sidecar_image,
        "command": ["python", "-m", "updraft_learner.sidecar"],
        "restartPolicy": "Always",
        "ports": [{"name": "mlflow", "containerPort": contract.MLFLOW_PORT}],
        "env": [{"name": k, "value": v} for k, v in HOST_PATHS.items()]
        + [{"name": contract.CONFIG_ENV, "value": verbatim(config.to_json())}],
        "volumeMounts": [
            {"name": contract.JOB_VOLUME, "mountPath": contract.ROOT_DIR},
            {"name": contract.PRIVATE_VOLUME, "mountPath": contract.PRIVATE_DIR},
            {
                "name": contract.CREDENTIALS_VOLUME,
                "mountPath": contract.CREDENTIALS_FILE.rpartition("/")[0],
                "readOnly": True,
            },
        ],
        "resources": {
            "requests": {"cpu": "0", "memory": f"{SIDECAR_MEMORY_MIB}Mi"},
            "limits": {"memory": f"{SIDECAR_MEMORY_LIMIT_MIB}Mi"},
        },
        "securityContext": {**copy.deepcopy(UNPRIVILEGED), "readOnlyRootFilesystem": True},
    }
    spec["initContainers"] = [sidecar, *(spec.get("initContainers") or [])]
    spec.setdefault("volumes", []).extend(
        [
            {"name": contract.JOB_VOLUME, "emptyDir": _on_disk(main)},
            {"name": contract.PRIVATE_VOLUME, "emptyDir": _on_disk(main)},
            {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}},
            {
                "name": contract.CREDENTIALS_VOLUME,
                # The program runs as the same user; it cannot read this because it does not mount the volume.
                "secret": {"secretName": "", "defaultMode": 0o440},
            },
        ]
    )
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    spec["terminationGracePeriodSeconds"] = grace_seconds
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *(each.to_object() for each in (*tolerations, *([GPU_TAINT] if _asks_for_gpus(main) else []))),
        *(
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute",
             "tolerationSeconds": node_lost_seconds}
            for key in ("not-ready", "unreachable")
        ),
    ]  # fmt: skip
    if avoid_nodes:
        spec["affinity"] = _away_from(avoid_nodes, spec.get("affinity") or {})
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "fsGroup": JOB_GID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return pod


def _on_disk(container: Manifest) -> Manifest:
    """Return an emptyDir that may grow to the container's limit of disk."""
    limit = (container.get("resources") or {}).get("limits", {}).get(DISK_RESOURCE)
    return {"sizeLimit": limit} if limit else {}


def _asks_for_gpus(container: Manifest) -> bool:
    return GPU_RESOURCE in (container.get("resources") or {}).get("limits", {})


def _away_from(nodes: tuple[str, ...], affinity: Manifest) -> Manifest:
    """Return the pod's affinity, which a site's hook may have set, with the preference for other nodes added."""
    other = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(nodes)}
    preference = {"weight": 100, "preference": {"matchExpressions": [other]}}
    of_nodes, key = affinity.get("nodeAffinity") or {}, "preferredDuringSchedulingIgnoredDuringExecution"
    return {**affinity, "nodeAffinity": {**of_nodes, key: [*(of_nodes.get(key) or []), preference]}}


def role_to_pods(
    pod: Manifest, launch: Launch, config: PodConfig, *, restores: Mapping[int, str] | None = None
) -> list[Manifest]:
    """Return the pods of the gang's members, from the pod of its first learner; they differ in name, rank and label
    only.

    `pod` may have been made for another attempt: what names the attempt in it is set anew. `restores`: the checkpoint
    of each learner that goes on from another one than the configuration's.
    """
    own = restores or {}
    # A learner that joins copies the state of the others.
    kept = dict.fromkeys(launch.membership.joined_later) | dict(own)
    return [
        _nth(pod, launch, replace(config, learner=n, restore_checkpoint=kept.get(n, config.restore_checkpoint)))
        for n in launch.membership.learners
    ]


def _nth(pod: Manifest, launch: Launch, config: PodConfig) -> Manifest:
    learner = config.learner
    result = copy.deepcopy(pod)
    name = launch.pod_name(learner)
    result["metadata"]["name"] = name
    result["metadata"]["namespace"] = launch.namespace
    result["metadata"].setdefault("labels", {}).update(launch.labels(learner))
    spec = result["spec"]
    if launch.named:
        spec["hostname"] = name
        spec["subdomain"] = launch.base_name
    for volume in spec["volumes"]:
        if volume["name"] == contract.CREDENTIALS_VOLUME:
            volume["secret"]["secretName"] = launch.base_name
    for container in spec["initContainers"]:
        for variable in container.get("env", []):
            if variable["name"] == contract.CONFIG_ENV:
                variable["value"] = verbatim(config.to_json())
    rank = str(launch.membership.rank(learner))
    ranked = {
        "LEARNER_ID": str(learner),
        **dict.fromkeys(("RANK", "NODE_RANK", "PET_NODE_RANK"), rank),
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), launch.master_address),
        **dict.fromkeys(("NUM_LEARNERS", "WORLD_SIZE", "PET_NNODES"), str(launch.membership.size)),
        "UPDRAFT_ATTEMPT": str(launch.attempt),
        contract.BATCH_ENV: str(launch.batch),
        contract.LR_SCALE_ENV: f"{launch.lr_scale:g}",
        contract.ELASTIC_ENV: launch.coordinator_address,
    }
    for container in spec["containers"]:
        for variable in container.get("env", []):
            if variable["name"] in ranked:
                variable["value"] = ranked[variable["name"]]
            elif variable["name"] == contract.ENDPOINT_TOKEN_ENV:
                variable["valueFrom"]["secretKeyRef"]["name"] = launch.base_name
    return result


def coordinator_pod(learner: Manifest, launch: Launch, config: PodConfig, sidecar_image: str, number: int) -> Manifest:
    """Return the pod of the coordinator of learners that join and leave while the others train.

    It may run wherever the `learner` may whose pod is given. A launch has one such pod at a time; `number`, from 1,
    tells them apart.
    """
    spec = learner["spec"]
    host = f"{launch.coordinator_host}.{launch.base_name}.{launch.namespace}.svc.cluster.local"
    variables = {
        "UPDRAFT_CREDENTIALS_FILE": contract.CREDENTIALS_FILE,
        contract.CONFIG_ENV: verbatim(config.to_json()),
        contract.ELASTIC_ENV: f"{host}:{contract.COORDINATOR_PORT}",
    }
    program = next(c for c in spec["containers"] if c["name"] == contract.MAIN_CONTAINER)
    hang = [each for each in program["env"] if each["name"] == contract.ELASTIC_HANG_ENV]
    mount = contract.CREDENTIALS_FILE.rpartition("/")[0]
    container = {
        "name": contract.MAIN_CONTAINER,
        "image": sidecar_image,
        "command": ["python", "-m", "updraft_learner.elastic.pod"],
        "env": [*({"name": name, "value": value} for name, value in variables.items()), *hang],
        "volumeMounts": [{"name": contract.CREDENTIALS_VOLUME, "mountPath": mount, "readOnly": True}],
        "resources": {
            "requests": {"cpu": "0", "memory": f"{COORDINATOR_MEMORY_MIB}Mi"},
            "limits": {"memory": f"{COORDINATOR_MEMORY_LIMIT_MIB}Mi"},
        },
        "securityContext": {**copy.deepcopy(UNPRIVILEGED), "readOnlyRootFilesystem": True},
    }
    secret = {"secretName": launch.base_name, "defaultMode": 0o440}
    taken = ("tolerations", "nodeSelector", "imagePullSecrets", "priorityClassName", "schedulerName", "securityContext")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{launch.coordinator_host}{number}",
            "namespace": launch.namespace,
            "labels": launch.labels(contract.COORDINATOR_LEARNER),
        },
        "spec": {
            **{name: copy.deepcopy(spec[name]) for name in taken if spec.get(name)},
            "containers": [container],
            "volumes": [{"name": contract.CREDENTIALS_VOLUME, "secret": secret}],
            "restartPolicy": "Never",  # another one is made in its place, on a node that may be another one
            "hostname": launch.coordinator_host,
            "subdomain": launch.base_name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": COORDINATOR_GRACE_SECONDS,
        },
    }


def headless_service(launch: Launch) -> Manifest:
    """Give each learner a name that the others resolve, before it is ready."""
    ports = {"master": contract.MASTER_PORT}
    if launch.in_place:
        ports["coordinator"] = contract.COORDINATOR_PORT
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": launch.base_name, "namespace": launch.namespace, "labels": launch.labels()},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": launch.labels(),
            "ports": [{"name": name, "port": port} for name, port in ports.items()],
        },
    }


def credentials_secret(launch: Launch, credentials: Mapping[str, Any], endpoint_token: str) -> Manifest:
    """Return what the sidecar may use, mounted as a file, never as an environment variable; and by itself the token of
    the sidecar's MLflow endpoint, which the program gets too."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": launch.base_name, "namespace": launch.namespace, "labels": launch.labels()},
        "stringData": {
            contract.CREDENTIALS_FILE.rpartition("/")[2]: json.dumps({**credentials, "endpoint_token": endpoint_token}),
            contract.ENDPOINT_TOKEN_KEY: endpoint_token,
        },
    }


def environment(base: Mapping[str, str], secrets: tuple[tuple[str, str, str], ...]) -> list[Manifest]:
    """Return the program's environment entries: plain values, then `(env name, secret name, key)` references."""
    entries: list[Manifest] = [{"name": k, "value": verbatim(v)} for k, v in base.items()]
    entries += [
        {"name": env, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for env, secret, key in secrets
    ]
    return entries


def verbatim(text: str) -> str:
    """Escape `text` so that a container gets it unchanged: Kubernetes would turn `$$` into `$`, and `$(NAME)` into the
    value of a variable, also of a secret, before the shell sees the quotes."""
    return text.replace("$", "$$")
