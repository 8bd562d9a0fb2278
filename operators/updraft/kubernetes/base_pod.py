"""The base of every pod: what Airflow's KubernetesPodOperator makes of a name, a namespace and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from updraft.kubernetes.objects import Launch, Manifest

if TYPE_CHECKING:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.sdk import Context

ARGUMENTS: dict[str, Any] = {
    "deferrable": True,
    "random_name_suffix": False,
    "get_logs": False,
    "do_xcom_push": False,
    "on_finish_action": "keep_pod",
    "durable": False,  # re-attaching goes by the ledger's attempt and deterministic names
    "kubernetes_conn_id": None,
}


def base_pod(operator: KubernetesPodOperator, launch: Launch, conn_id: str, context: Context | None) -> Manifest:
    """Return the operator's own building of the pod of the launch's first learner, in API form.

    Without a context the labels that name the DAG run and its task are left out.
    """
    from kubernetes.client import ApiClient

    operator.kubernetes_conn_id = conn_id
    operator.namespace = launch.namespace
    operator.name = launch.pod_name(1)
    operator.labels = launch.labels(1)
    # A dry run asks no Airflow connection where the cluster is; all else is the same.
    made: Manifest = ApiClient().sanitize_for_serialization(
        operator.build_pod_request_obj(context, dry_run=context is None)
    )
    return made


def base_pod_outside_a_task(launch: Launch, conn_id: str) -> Manifest:
    """Return the same, made by an operator of no DAG."""
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    return base_pod(KubernetesPodOperator(task_id=launch.role, **ARGUMENTS), launch, conn_id, None)
