"""Settings of the platform, read from the environment (`UPDRAFT_<NAME>`) of Airflow's processes.

Secrets are never in the environment: `UPDRAFT_CREDENTIALS_FILE` names a JSON file that only the platform
may read. docs/reference/settings.md lists every field; a test compares the two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from updraft.airflow_seams.registry import SEAMS
from updraft.airflow_seams.switch import ALL, check_names
from updraft.exceptions import UpdraftError
from updraft.fabric import read_labels, read_nccl, read_rdma
from updraft.pod_policy import EVERY_TENANT, PodPolicy
from updraft.pools import Pool, check_pools
from updraft.taints import Toleration

GIB = 1024**3
NOT_ISOLATED = (
    "are several tenants, which the platform does not isolate: the pods of all tenants hold the same keys of the "
    "object store and MLflow, and every user of MLflow sees the runs and models of all of them"
)
TRUST_ADVICE = "name one tenant, or set UPDRAFT_TRUSTED_TENANTS=true if all of them trust each other"
OPEN_VARIABLE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"
OPEN_LOGIN = (
    "Airflow accepts every client as an administrator, without a log-in (core.simple_auth_manager_all_admins is true): "
    "every client that reaches it may run any program as the platform, with its stored secrets"
)
OPEN_ADVICE = (
    f"set {OPEN_VARIABLE}=false, and AIRFLOW__CORE__AUTH_MANAGER to the auth manager that your people log in with"
)


class S3Login(BaseModel):
    """Access to the platform's bucket."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    access_key: SecretStr
    secret_key: SecretStr


class MLflowCredentials(BaseModel):
    """Access to the tracking server."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    username: str
    password: SecretStr


class Credentials(BaseModel):
    """Content of `UPDRAFT_CREDENTIALS_FILE`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    s3: S3Login
    mlflow: MLflowCredentials


def _split(value: object) -> object:
    """Split a variable's text at its commas; return any other value unchanged."""
    return tuple(t.strip() for t in value.split(",") if t.strip()) if isinstance(value, str) else value


def _folders(value: object) -> object:
    return tuple(Path(folder) for folder in value.split(os.pathsep) if folder) if isinstance(value, str) else value


def _from_json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as exc:
        raise ValueError(f"not JSON ({exc})") from None


def _taints(value: object) -> object:
    given = _split(value)
    return tuple(Toleration.parse(t) if isinstance(t, str) else t for t in given) if isinstance(given, tuple) else given


Listed = Annotated[tuple[str, ...], BeforeValidator(_split)]


class NotifierSpec(BaseModel):
    """A notifier of Airflow, and the arguments that it is made with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classpath: str = Field(
        alias="class", pattern=r"^[A-Za-z_][\w.]*\.[A-Za-z_]\w*$", description="Path of the notifier's class"
    )
    arguments: dict[str, Any] = Field({}, description="What it is made with, by name")


class Settings(BaseModel):
    """Where the platform's parts are and what an operator of the platform has limited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_url: str = Field(description="SQLAlchemy URL of the ledger (SQLite or PostgreSQL)")
    s3_endpoint: str = Field(description="URL of the object store, as workers and learners reach it")
    s3_region: str = Field("us-east-1", description="Region that requests to the object store are signed for")
    bucket: str = Field("updraft", description="Bucket that holds everything of the platform, a prefix per tenant")
    mlflow_uri: str = Field(description="URL of the MLflow tracking server, as workers and learners reach it")
    mlflow_public_uri: str | None = Field(None, description="The same as a browser reaches it; default: mlflow_uri")
    airflow_public_uri: str = Field("http://localhost:8080", description="Airflow's UI as a browser reaches it")
    credentials_file: Path = Field(
        description="JSON file with the S3 and MLflow credentials, readable by the platform alone"
    )
    kubernetes_conn_id: str = Field("updraft_kubernetes", description="Airflow connection of the cluster")
    network_policy: bool = Field(
        True, description="Whether each launch gets a NetworkPolicy; only for clusters that forbid them: false"
    )
    closed_networks: Listed = Field(
        (),
        description="Networks that learners reach for name servers (port 53) and for nothing else, comma-separated: "
        "those of the cluster's pods, services and nodes. Clouds' metadata services and the address of the API "
        "server, where it is known, are always among them",
    )
    disruption_budget: bool = Field(
        False,
        description="Whether each launch gets a PodDisruptionBudget: `kubectl drain` then waits for the end of every "
        "job on the node, instead of having it go on elsewhere from its checkpoint",
    )
    namespace_prefix: str = Field("updraft-", description="Namespace of tenant T is this prefix followed by T")
    tenants: Listed = Field(("default",), description="Tenants that exist, comma-separated")
    tenants_file: Path | None = Field(
        None,
        description="YAML file with the tenants that exist and what each may use of the cluster, in place of "
        "UPDRAFT_TENANTS. It is read again when it changes; a wrong one changes nothing",
    )
    trusted_tenants: bool = Field(
        False,
        description="Whether the tenants trust each other. Several tenants need `true`, because the platform does not "
        "isolate them: their pods hold the same keys, and a manifest names its tenant, which only a file of tenants "
        "with `people` checks",
    )
    local_sources: Annotated[tuple[Path, ...], BeforeValidator(_folders)] = Field(
        (), description="Folders of the worker that manifests may name as code or data, separated by ':'"
    )
    source_buckets: Listed = Field(
        ("datasets",),
        description="Buckets of the object store that manifests may read with the platform's key, comma-separated; "
        "any other needs a secret of the manifest",
    )
    mlflow_bucket: str = Field(
        "mlflow", description="Bucket that MLflow keeps its artifacts in; never among the source buckets"
    )
    tolerations: Annotated[tuple[Toleration, ...], BeforeValidator(_taints)] = Field(
        (),
        description="Taints of nodes that learners may lie on nevertheless, comma-separated: KEY[=VALUE][:EFFECT]; who "
        "asks for GPUs tolerates nvidia.com/gpu anyway",
    )
    scalable_pools: Annotated[tuple[Pool, ...], BeforeValidator(_from_json), AfterValidator(check_pools)] = Field(
        (),
        description="Pools of nodes that the cluster's autoscaler grows, as JSON: a list of `name`, `most` (nodes), "
        "`labels` and `allocatable` of a node, `taints`, `windows`, `timezone`. A job may wait for such nodes, and "
        "makes the pool grow",
    )
    pod_policy: Annotated[dict[str, PodPolicy], BeforeValidator(_from_json)] = Field(
        {},
        description="What tenants may ask for in the section `pod` of their manifests, as JSON: a policy by tenant, "
        "and `*` for those that are not named. Without a policy, scratch volumes and nothing else",
    )
    approvers: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_from_json)] = Field(
        {},
        description="Who may approve a model for a manifest with `export.approval: required`, as JSON: names of "
        "Airflow's users by tenant. For other tenants, every user whom Airflow lets answer required actions",
    )
    ageing_hours: float = Field(
        12,
        gt=0,
        le=87_600,
        description="Hours of waiting in the queue that count as much as one level of a job's priority",
    )
    backfill: bool = Field(
        True,
        description="Whether jobs that fit into what is free may pass the first one that waits for room; they save and "
        "give their room back as soon as that one can start with it",
    )
    least_run_minutes: float = Field(
        10,
        ge=0,
        le=87_600,
        description="Minutes that a job keeps its room before another tenant takes it back for its own quota",
    )
    resize_minutes: float = Field(
        5,
        ge=0,
        le=87_600,
        description="Minutes that an elastic job keeps its number of learners; less if 100 times the pause of its "
        "resizes is shorter, and then at least one",
    )
    resize_gain: float = Field(
        0.05,
        ge=0,
        le=10,
        description="Part by which the speed of a tenant's elastic jobs together must rise for their sizes to change",
    )
    elastic_hang_seconds: float = Field(
        60,
        gt=0,
        le=3_600,
        description="Seconds for which a learner of a job that is resized in place may keep the others waiting in a "
        "step; then they go on without it",
    )
    share_half_life_hours: float = Field(
        24, gt=0, le=87_600, description="Hours after which what a tenant has used counts half in its fair share"
    )
    approval_hours: float = Field(
        168, gt=0, description="Hours after which a model that nobody has approved is rejected"
    )
    notifiers: Annotated[dict[str, NotifierSpec], BeforeValidator(_from_json)] = Field(
        {},
        description="Airflow notifiers that manifests may name in `notify`, as JSON by name: "
        '{"team": {"class": "updraft.notifiers.WebhookNotifier", "arguments": {"conn_id": "team_chat"}}}. Texts of the '
        "arguments may use {{ subject }}, {{ message }}, {{ url }}, {{ kind }} and {{ job }}",
    )
    nccl_env: Annotated[dict[str, str], BeforeValidator(read_nccl)] = Field(
        {},
        description="NCCL's variables for programs with GPUs, separated by spaces: NCCL_NAME=VALUE. A manifest's `env` "
        "goes before them",
    )
    rdma_resource: Annotated[dict[str, int], BeforeValidator(read_rdma)] = Field(
        {},
        description="Device that each learner gets if several learners with GPUs train together, for RDMA: the "
        "extended resource's name in Kubernetes and a number, such as rdma/hca=1",
    )
    topology_labels: Annotated[tuple[str, ...], BeforeValidator(read_labels)] = Field(
        (),
        description="Labels of nodes that name ever larger domains of a fast network, comma-separated, nearest first. "
        "Kubernetes prefers nodes of one domain for the learners of a job; the local node has one domain",
    )
    placement: Literal["pack", "spread"] = Field(
        "pack",
        description="Which nodes Kubernetes prefers for learners. `pack`: nodes that run other learners; whole nodes "
        "stay free for large jobs. `spread`: nodes that run no learners; fewer jobs share a node",
    )
    sidecar_image: str = Field("updraft/sidecar:0.1", description="Image of the sidecar")
    framework_images: Annotated[dict[str, str], BeforeValidator(_from_json)] = Field(
        {
            "pytorch": "updraft/learner-pytorch:2.15",
            "huggingface": "updraft/learner-huggingface:5",
            "lightning": "updraft/learner-lightning:2.6",
            "jax": "updraft/learner-jax:0.10",
            "tensorflow": "updraft/learner-tensorflow:2.21",
            "keras": "updraft/learner-tensorflow:2.21",
            "sklearn": "updraft/learner-sklearn:1",
            "scikit-learn": "updraft/learner-sklearn:1",
            "xgboost": "updraft/learner-xgboost:3.2",
            "lightgbm": "updraft/learner-lightgbm:4",
            "shell": "updraft/shell:1",
        },
        description="Image of each framework name, as JSON",
    )
    data_image: str = Field(
        "updraft/data:0.1",
        description="Image of the pod that unpacks archives, fetches git and judges data before a job's learners start",
    )
    package_index: str = Field(
        "https://pypi.org/simple",
        description="Package index of jobs whose manifest's `environment` names none",
    )
    environment_seconds: int = Field(
        1800, ge=1, description="Time that resolving and installing a job's packages may take, seconds"
    )
    environment_reuse_seconds: int = Field(
        86400,
        ge=0,
        description="For how long a job with the same requirements, image and indexes gets the packages that were "
        "resolved before, without resolving again, seconds; 0: never. Open versions are as old as that at most",
    )
    environment_limit_bytes: int = Field(10 * GIB, gt=0, description="Largest size of a job's packages, bytes")
    git_protocols: Listed = Field(
        ("https",),
        description="Protocols over which a manifest's code may be fetched by git, comma-separated; `file` and `http` "
        "are for labs",
    )
    data_limit_bytes: int = Field(50 * GIB, gt=0, description="Largest data set of one job that is copied, bytes")
    node_cache_claim: str | None = Field(
        None,
        description="Claim in each tenant's namespace, for data that the learners of a node share (`data.mode: mount`) "
        "and blocks of streamed data; with a volume that each node has for itself, such as a hostPath. Without it, "
        "streamed data is cached for each learner, and mounting is refused",
    )
    node_cache_bytes: int = Field(
        100 * GIB,
        gt=0,
        description="Most bytes in the cache of one node, for one tenant, and at most half of its disk; needs "
        "`node_cache_claim`",
    )
    stream_cache_bytes: int = Field(
        10 * GIB,
        gt=0,
        description="Most bytes of streamed data on the disk of one learner, if the node has no cache; also at most "
        "half of what the disk has free, and a quarter of `resources.disk`",
    )
    code_limit_bytes: int = Field(GIB // 10, gt=0, description="Largest code folder or archive, bytes unpacked")
    upload_quota_bytes: int = Field(
        1024 * GIB,
        gt=0,
        description="Code and data of one tenant in the platform's store, uploaded or staged, beyond which uploads are "
        "refused (413), bytes: twenty of the largest data sets, so that one tenant does not fill the store of all. "
        "Nothing is removed from there by itself",
    )
    upload_disk_reserve_bytes: int = Field(
        GIB,
        ge=0,
        description="Free space of the api-server's temporary folder (`TMPDIR`) that uploads leave to others, bytes. "
        "An upload lies there until it is whole; one that finds no room is refused (507)",
    )
    validation_memory_bytes: int = Field(
        4 * GIB,
        ge=GIB,
        description="Memory that the judgement of one data source may allocate, bytes; the pod in which it runs may "
        "use half a GiB more, whatever its job asks for",
    )
    validation_seconds: int = Field(
        1800, ge=1, description="Time that the judgement of one data source may take, seconds"
    )
    export_limit_bytes: int = Field(
        20 * GIB,
        gt=0,
        description="Largest exported model of one job, all formats, bytes; it lies in the scratch folder of a worker, "
        "with those of other jobs",
    )
    learner_disk_bytes: int = Field(
        100 * GIB,
        gt=0,
        description="Largest disk of a learner whose manifest names none, bytes: twice the largest data set, for what "
        "the program writes beside it",
    )
    store_grace_seconds: int = Field(
        900,
        ge=1,
        description="Time that a learner has after SIGTERM to save and its sidecar to upload, seconds. The pod that "
        "prepares code and data has longer where it may have to store more than 20 MB for each of these seconds",
    )
    stop_grace_seconds: int = Field(
        30, ge=1, description="Time between SIGTERM and SIGKILL for learners of a cancelled or ended job, seconds"
    )
    halt_wait_seconds: int = Field(
        120, ge=1, description="Time that a program has to save and leave after a halt before SIGTERM, seconds"
    )
    node_lost_seconds: int = Field(
        30, ge=1, description="Time that a node may be unreachable before its learners are launched elsewhere, seconds"
    )
    deploy_timeout_seconds: int = Field(
        600, ge=1, description="Longest time from creating the pods to the first running program, seconds"
    )
    airflow_seams_off: Listed = Field(
        (),
        description="Changes to Airflow that are left out, comma-separated, to tell whether one of them is to blame: "
        f"{', '.join(SEAMS)}, or {ALL}. Everything works without them, only slower. A version of Airflow that they "
        "were not tried with gets none of them. Read at the start of each process of Airflow",
    )

    @model_validator(mode="after")
    def _several_tenants_trust_each_other(self) -> Self:
        if self.tenants_file is not None and "tenants" in self.model_fields_set:
            raise ValueError("UPDRAFT_TENANTS: UPDRAFT_TENANTS_FILE names the tenants; leave one of the two out")
        if len(set(self.tenants)) > 1 and not self.trusted_tenants:
            raise ValueError(f"UPDRAFT_TENANTS: {', '.join(self.tenants)} {NOT_ISOLATED}; {TRUST_ADVICE}")
        return self

    @model_validator(mode="after")
    def _platform_buckets_are_no_sources(self) -> Self:
        own = {self.bucket.lower(), self.mlflow_bucket.lower()}
        wrong = [name for name in self.source_buckets if name.lower() in own]
        if wrong:
            raise ValueError(f"UPDRAFT_SOURCE_BUCKETS: {wrong[0]!r} holds the platform's own objects; leave it out")
        return self

    @model_validator(mode="after")
    def _policies_are_of_tenants(self) -> Self:
        unknown = sorted(set(self.pod_policy) - {*self.tenants, EVERY_TENANT})
        if unknown and self.tenants_file is None:
            raise ValueError(f"UPDRAFT_POD_POLICY: {unknown[0]!r} is neither a tenant of UPDRAFT_TENANTS nor *")
        return self

    @model_validator(mode="after")
    def _approvers_are_of_tenants(self) -> Self:
        unknown = sorted(set(self.approvers) - {*self.tenants})
        if unknown and self.tenants_file is None:
            raise ValueError(f"UPDRAFT_APPROVERS: {unknown[0]!r} is no tenant of UPDRAFT_TENANTS")
        nobody = sorted(tenant for tenant, users in self.approvers.items() if not users)
        if nobody:
            raise ValueError(f"UPDRAFT_APPROVERS: {nobody[0]!r} has no users; name some, or leave the tenant out")
        return self

    @field_validator("airflow_seams_off")
    @classmethod
    def _are_seams(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            check_names(value)
        except UpdraftError as exc:
            raise ValueError(str(exc)) from None
        return value

    @field_validator("closed_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                ip_network(text, strict=False)
            except ValueError:
                raise ValueError(f"{text!r} is no network, such as 10.0.0.0/8 or 192.168.1.1") from None
        return value

    @property
    def mlflow_browser_uri(self) -> str:
        return self.mlflow_public_uri or self.mlflow_uri

    def namespace(self, tenant: str) -> str:
        return f"{self.namespace_prefix}{tenant}"

    def pod_policy_of(self, tenant: str) -> PodPolicy:
        """Return what the tenant may ask for in the section `pod` of its manifests."""
        return self.pod_policy.get(tenant) or self.pod_policy.get(EVERY_TENANT) or PodPolicy()

    def credentials(self) -> Credentials:
        """Read afresh at each call, so that a rotated secret is used."""
        try:
            return Credentials.model_validate_json(self.credentials_file.read_text())
        except OSError as exc:
            raise UpdraftError(
                f"credentials_file: {self.credentials_file} cannot be read ({exc.strerror}); "
                "set UPDRAFT_CREDENTIALS_FILE to a readable JSON file"
            ) from exc
        except ValidationError as exc:
            fields = ", ".join(".".join(map(str, e["loc"])) for e in exc.errors())
            # No `from exc`: pydantic's message repeats the input, which is secret.
            raise UpdraftError(f"credentials_file: {self.credentials_file} is not valid ({fields})") from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Return the settings that the variables `UPDRAFT_<NAME>` give.

        Raises UpdraftError, which names every wrong or missing variable.
        """
        variables = {name: f"UPDRAFT_{name.upper()}" for name in cls.model_fields}
        raw = {name: environment[variable] for name, variable in variables.items() if variable in environment}
        try:
            return cls.model_validate(raw)
        except ValidationError as exc:
            wrong = "; ".join(
                f"UPDRAFT_{str(e['loc'][0]).upper()}: {e['msg']}" if e["loc"] else str(e["ctx"]["error"])
                for e in exc.errors()
            )
            raise UpdraftError(f"The platform's settings are incomplete or wrong: {wrong}") from exc


def tenants_of(environment: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """Return the tenants that the environment names and whether it says that they trust each other, whatever else the
    settings lack there."""
    named = tuple(dict.fromkeys(t.strip() for t in environment.get("UPDRAFT_TENANTS", "").split(",") if t.strip()))
    trusted = is_true(environment.get("UPDRAFT_TRUSTED_TENANTS", ""))
    return named or tuple(Settings.model_fields["tenants"].default), trusted


def refuse_untrusted_tenants(environment: Mapping[str, str]) -> None:
    """Raise UpdraftError for several tenants unless the settings say that they trust each other. For what starts the
    platform."""
    tenants, trusted = tenants_of(environment)
    if len(tenants) > 1 and not trusted:
        raise UpdraftError(f"UPDRAFT_TENANTS: {', '.join(tenants)} {NOT_ISOLATED}; {TRUST_ADVICE}")


def is_true(text: str) -> bool:
    """Return whether Airflow, or we, take this value of a variable as true."""
    return text.strip().lower() in ("true", "t", "1", "yes", "on")


def refuse_open_login(all_admins: bool) -> None:
    """Raise UpdraftError where Airflow has no log-in. For what starts the platform, serves it or starts a job.

    Args:
        all_admins: Airflow's `core.simple_auth_manager_all_admins`.
    """
    if all_admins:
        raise UpdraftError(f"{OPEN_LOGIN}; {OPEN_ADVICE}")


@cache
def settings() -> Settings:
    """Return the settings of this process."""
    return Settings.from_environment(os.environ)
