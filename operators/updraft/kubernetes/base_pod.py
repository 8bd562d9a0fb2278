"""Build the pod of a role's first learner with Airflow's KubernetesPodOperator, with the program in it.

The operator gets the whole program before it builds the pod. So a site's `pod_mutation_hook` sees the program, and its
changes are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from updraft.exceptions import RefusedError
from updraft.kubernetes.launch import Program
from updraft.kubernetes.objects import Launch, Manifest
from updraft.kubernetes.pod_section import with_extras
from updraft_learner import contract

if TYPE_CHECKING:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.sdk import Context

ARGUMENTS: dict[str, Any] = {
    "deferrable": True,
    "random_name_suffix": False,
    "get_logs": False,
    "do_xcom_push": False,
    "on_finish_action": "keep_pod",
    "durable": False,  # re-attaching uses the ledger's attempt and deterministic names
    "kubernetes_conn_id": None,
}


def base_pod(
    operator: KubernetesPodOperator, launch: Launch, program: Program, conn_id: str, context: Context | None
) -> Manifest:
    """Return the operator's own building of the pod of the launch's first learner, in API form.

    Without a context the labels that name the DAG run and its task are left out. Raises RefusedError if the site's
    `pod_mutation_hook` leaves no program to start.
    """
    from kubernetes.client import ApiClient

    operator.kubernetes_conn_id = conn_id
    operator.namespace = launch.namespace
    operator.name = launch.pod_name(1)
    operator.labels = launch.labels(1)
    operator.pod_template_dict = _template(program)
    # The only effect of `dry_run` here: no Airflow connection is asked where the cluster is.
    made: Manifest = ApiClient().sanitize_for_serialization(
        operator.build_pod_request_obj(context, dry_run=context is None)
    )
    mains = [each for each in made["spec"]["containers"] if each["name"] == contract.MAIN_CONTAINER]
    if len(mains) != 1 or len(mains[0].get("args") or ()) != 1:
        raise RefusedError(
            f"the site's pod_mutation_hook must leave one container {contract.MAIN_CONTAINER!r} with one argument, the "
            "program's line of shell; an administrator of Airflow has to mend the hook"
        )
    return made


def base_pod_outside_a_task(launch: Launch, program: Program, conn_id: str) -> Manifest:
    """Return the same, made by an operator of no DAG."""
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    return base_pod(KubernetesPodOperator(task_id=launch.role, **ARGUMENTS), launch, program, conn_id, None)


def _template(program: Program) -> Manifest:
    """Return what the operator adds its own to."""
    container: Manifest = {
        "name": contract.MAIN_CONTAINER,
        "image": program.image,
        "command": ["/bin/sh", "-c"],
        "args": [program.command],
        "resources": {"requests": dict(program.requests), "limits": dict(program.limits)},
        "env": [dict(entry) for entry in program.environment],
        "ports": [{"name": "master", "containerPort": contract.MASTER_PORT}],
    }
    spec: Manifest = {"containers": [container]}
    if program.node_selector:
        spec["nodeSelector"] = dict(program.node_selector)
    if program.tolerations:
        spec["tolerations"] = [each.to_object() for each in program.tolerations]
    pod: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}
    return with_extras(pod, program.extras)
