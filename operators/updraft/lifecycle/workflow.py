"""Name the DAGs, the tasks of a job and the roles of its pods, in one place.

A role is the purpose of a gang's launch; the ledger numbers attempts by it. Four tasks launch a role.
"""

from __future__ import annotations

from updraft_learner import contract

# DAGs.
TRAIN_DAG = "train_model"
HALT_DAG = "halt_job"
RESUME_DAG = "resume_job"
CANCEL_DAG = "cancel_job"
REAPER_DAG = "reaper"
SIZES_DAG = "elastic_sizes"
PLATFORM_DAGS = frozenset({REAPER_DAG, SIZES_DAG})  # whose runs are about the jobs of all tenants
JOB_TAG = "job"  # Airflow's tag of DAGs made from manifests in jobs/

# Roles. The learner's package also needs the first three.
BUILD_ROLE = contract.BUILD_ROLE
PREPARE_ROLE = contract.PREPARE_ROLE
TRAIN_ROLE = contract.TRAIN_ROLE
EVALUATE_ROLE = "evaluate"
EXPORT_ROLE = "export"
ROLES = (PREPARE_ROLE, BUILD_ROLE, TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE)

# The task promote launches these two for a gate, once for each champion that the new version is compared with: the
# evaluation of the champion, and the comparison. A role's name ends with the champion's version.
_CHAMPION, _COMPARE = "champion", "compare"

# The task stage_data launches these before the program's first attempt; each counts its own attempts.
BEFORE_ROLES = (PREPARE_ROLE, BUILD_ROLE)

# The tasks of a job.
ADMIT_TASK = "admit"
STAGE_TASK = "stage_data"
VALIDATE_TASK = "validate_data"
TRAIN_TASK = "train"
WATCH_TASK = "watch_checkpoints"
EVALUATE_TASK = "evaluate"
EXPORT_TASK = "export_model"
REGISTER_TASK = "register_model"
PROMOTE_TASK = "promote"
RELEASE_TASK = "release"
TASKS = (
    ADMIT_TASK,
    STAGE_TASK,
    VALIDATE_TASK,
    TRAIN_TASK,
    WATCH_TASK,
    EVALUATE_TASK,
    EXPORT_TASK,
    REGISTER_TASK,
    PROMOTE_TASK,
    RELEASE_TASK,
)  # in the order of a job's life
ROLE_OF_TASK = {
    STAGE_TASK: PREPARE_ROLE,
    TRAIN_TASK: TRAIN_ROLE,
    EVALUATE_TASK: EVALUATE_ROLE,
    EXPORT_TASK: EXPORT_ROLE,
}


def champion_role(version: str) -> str:
    """Return the role of the pod that runs the job's evaluation on the champion, `version`."""
    return f"{_CHAMPION}-{version}"


def compare_role(version: str | None) -> str:
    """Return the role of the pod that compares the job's version with the champion; None: there is no champion."""
    return f"{_COMPARE}-{version or 0}"


def evaluates_champion(role: str) -> bool:
    return role.startswith(f"{_CHAMPION}-")


def compares(role: str) -> bool:
    return role.startswith(f"{_COMPARE}-")


def runs_own_program(role: str) -> bool:
    """Return whether the role's pod runs a program of the platform, not of the user."""
    return role in (*BEFORE_ROLES, EXPORT_ROLE) or compares(role)


DEFAULT_TENANT = "default"

_JOB_DAG_PREFIX = "job_"
_OWN_DAGS = (TRAIN_DAG, HALT_DAG, RESUME_DAG, CANCEL_DAG)


def tenant_dag(dag_id: str, tenant: str) -> str:
    """Return the id of a tenant's own DAG: `vision.train_model`. Those of the tenant `default` have the plain names.

    Args:
        dag_id: The plain name.
        tenant: The tenant.
    """
    return dag_id if tenant == DEFAULT_TENANT else f"{tenant}.{dag_id}"


def tenant_of_dag(dag_id: str) -> str | None:
    """Return the tenant whose jobs this DAG starts or changes; None for any other DAG."""
    tenant, _, plain = dag_id.rpartition(".")
    return (tenant or DEFAULT_TENANT) if plain in _OWN_DAGS or plain.startswith(_JOB_DAG_PREFIX) else None


def job_dag(name: str, tenant: str = DEFAULT_TENANT) -> str:
    """Return the id of the DAG of the manifest in the folder `jobs/<name>`, which names this tenant."""
    return tenant_dag(f"{_JOB_DAG_PREFIX}{name.replace('-', '_')}", tenant)


def is_train_dag(dag_id: str) -> bool:
    """Return whether runs of this DAG are jobs: each tenant's `train_model`, and the DAG of each manifest."""
    plain = dag_id.rpartition(".")[2]
    return plain == TRAIN_DAG or plain.startswith(_JOB_DAG_PREFIX)
