"""Define what a tenant may ask for in the section `pod` of its manifests. Pure.

The settings hold one policy per tenant, and `manifest.pod_rules` judges by it. A policy lists what is allowed; all else
is refused.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from updraft.taints import Toleration, is_key

EVERY_TENANT = "*"
# Labels and annotations of this domain and its subdomains are the platform's own: they name jobs, tenants and learners.
RESERVED_DOMAIN = "updraft.dev"
# Labels by which Airflow finds the pods of its tasks.
AIRFLOW_LABELS = frozenset(
    {
        "airflow_kpo_in_cluster",
        "airflow_version",
        "already_checked",
        "dag_id",
        "kubernetes_pod_operator",
        "map_index",
        "parent_dag_id",
        "run_id",
        "task_id",
        "try_number",
    }
)
# Kubernetes' own taints say what is wrong with a node.
STATE_DOMAIN = "node.kubernetes.io"


def is_reserved(key: str) -> bool:
    """Return whether no tenant may set a label, an annotation or a node's label with this key."""
    domain = key.rpartition("/")[0]
    return domain == RESERVED_DOMAIN or domain.endswith(f".{RESERVED_DOMAIN}") or key in AIRFLOW_LABELS


def covers(entry: str, text: str) -> bool:
    """Return whether an entry of a policy allows the text. A `*` at its end stands for any end of the text."""
    return text.startswith(entry[:-1]) if entry.endswith("*") else text == entry


def _one_star(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        if not entry or "*" in entry[:-1]:
            raise ValueError(f"{entry!r} is no entry; write a whole name, or its beginning followed by *")
    return entries


def _keys(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse entries for keys of no single domain. Controllers grant privileges by annotations of their domain, so
    each domain must be named."""
    for entry in entries:
        domain, slash, name = entry.rpartition("/")
        if not (is_key(entry) or (slash and name.endswith("*") and is_key(f"{domain}/{name[:-1]}x"))):
            raise ValueError(f"{entry!r} is no entry; write a key, such as team, or a domain, such as example.com/*")
        if is_reserved(entry) or is_reserved(f"{domain}{slash}"):
            raise ValueError(f"{entry!r} is the platform's or Airflow's own; leave it out")
    return entries


def _node_labels(selectors: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    _keys(tuple(selectors))
    for values in selectors.values():
        _one_star(values)
    return selectors


def _parsed(value: object) -> object:
    if not isinstance(value, list | tuple):
        return value
    return tuple(Toleration.parse(each) if isinstance(each, str) else each for each in value)


def _no_state(tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    for each in tolerations:
        if each.key.startswith(f"{STATE_DOMAIN}/"):
            raise ValueError(f"{each} is set by Kubernetes on nodes that cannot run pods; leave it out")
    return tolerations


Names = Annotated[tuple[str, ...], AfterValidator(_one_star)]
Keys = Annotated[tuple[str, ...], AfterValidator(_keys)]


class PodPolicy(BaseModel):
    """What one tenant may ask for. The default allows scratch volumes and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_selector: Annotated[dict[str, tuple[str, ...]], AfterValidator(_node_labels)] = Field(
        default_factory=dict, description="Labels of nodes and their allowed values; `*` allows every value"
    )
    tolerations: Annotated[tuple[Toleration, ...], BeforeValidator(_parsed), AfterValidator(_no_state)] = Field(
        (), description="Taints, written KEY[=VALUE][:EFFECT]; a tenant may tolerate these or a part of them"
    )
    claims: Names = Field((), description="Claims that the tenant's programs may write to")
    service_accounts: Names = Field((), description="Service accounts that the tenant's programs may run as")
    labels: Keys = Field((), description="Keys of labels of pods, or DOMAIN/*")
    annotations: Keys = Field((), description="Keys of annotations of pods, or DOMAIN/*")
    image_pull_secrets: Names = Field((), description="Secrets that nodes may pull the tenant's images with")
