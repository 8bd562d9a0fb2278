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

# Roles. The learner's package also needs the first three.
BUILD_ROLE = contract.BUILD_ROLE
PREPARE_ROLE = contract.PREPARE_ROLE
TRAIN_ROLE = contract.TRAIN_ROLE
EVALUATE_ROLE = "evaluate"
EXPORT_ROLE = "export"
ROLES = (PREPARE_ROLE, BUILD_ROLE, TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE)

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

_JOB_DAG_PREFIX = "job_"


def job_dag(name: str) -> str:
    """Return the id of the DAG of the manifest in the folder `jobs/<name>`."""
    return f"{_JOB_DAG_PREFIX}{name.replace('-', '_')}"


def is_train_dag(dag_id: str) -> bool:
    """Return whether runs of this DAG are jobs: `train_model`, and the DAG of each manifest."""
    return dag_id == TRAIN_DAG or dag_id.startswith(_JOB_DAG_PREFIX)
