"""List the seams, and the private names of Airflow, its Kubernetes provider and the Kubernetes client that are used.

One test reads the installed source of each place that a seam relies on, and fails if it has changed. Another test finds
private names that are used but not listed. Read by `switch`. Imports nothing of Airflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TRIED = ("3.3.2",)


@dataclass(frozen=True)
class SourcePlace:
    """A part of Airflow's source that a seam relies on.

    target: `module:Class.function`, whose source is compared. With `uses_of` it is a module, and the statements in it
        that use this global name are compared.
    reason: What must stay true there for the seam to be correct.
    """

    target: str
    reason: str
    uses_of: str | None = None

    @property
    def key(self) -> str:
        return f"{self.target}#{self.uses_of}" if self.uses_of else self.target


@dataclass(frozen=True)
class Seam:
    """A change to Airflow. Its code is the module `updraft.airflow_seams.<name>`.

    versions: The versions of Airflow that it was tried with.
    without: What happens without it, for the log.
    """

    name: str
    change: str
    reason: str
    without: str
    relies_on: tuple[SourcePlace, ...]
    versions: tuple[str, ...] = TRIED


@dataclass(frozen=True)
class Internal:
    """A name that the platform uses although its owner does not promise to keep it.

    target: `module:attribute`, with further attributes after dots.
    used_in: The files that use it, below `updraft/`.
    """

    target: str
    used_in: tuple[str, ...]
    reason: str


SEAMS: Mapping[str, Seam] = {
    seam.name: seam
    for seam in (
        Seam(
            "scheduler_sleep",
            "The idle scheduler sleeps until its SQLite database holds something new for it, 5 s at most. On another "
            "database nothing is changed.",
            "A short fixed sleep costs CPU for ever, and a long one delays every step of every job.",
            "The idle scheduler sleeps for a second at a time, which each step of a job waits for.",
            (
                SourcePlace(
                    "airflow.jobs.scheduler_job_runner:SchedulerJobRunner._run_scheduler_loop",
                    "the loop sleeps only when it found nothing to do",
                ),
                SourcePlace(
                    "airflow.jobs.scheduler_job_runner",
                    "the module uses `time` for that sleep only, since the name is replaced",
                    uses_of="time",
                ),
            ),
        ),
        Seam(
            "trigger_events",
            "The triggerer hands over a trigger's event when the trigger ends.",
            "Airflow's loop does so once per second, so that each job loses half a second at each of its waits.",
            "Each wait of a job takes half a second longer.",
            (
                SourcePlace(
                    "airflow.jobs.triggerer_job_runner:TriggerRunner.arun",
                    "the loop pauses for as long as `_stop_event` is not set, a second at most, and then looks at all "
                    "triggers",
                ),
                SourcePlace(
                    "airflow.jobs.triggerer_job_runner",
                    "the module uses `anyio` for that pause only, since the name is replaced",
                    uses_of="anyio",
                ),
                SourcePlace(
                    "airflow.jobs.triggerer_job_runner:TriggerRunner._handle_signal",
                    "a stop sets the flag `stop` as well, since the pause clears its event",
                ),
                SourcePlace(
                    "airflow.jobs.triggerer_job_runner:TriggerRunner.run_trigger",
                    "it returns when the trigger has ended",
                ),
                SourcePlace(
                    "airflow.jobs.triggerer_job_runner:TriggerRunner.cancel_triggers",
                    "it cancels what is in `to_cancel`, again at each call",
                ),
                SourcePlace(
                    "airflow.jobs.triggerer_job_runner:TriggerRunner.sync_state_to_supervisor",
                    "each answer of the supervisor names all triggers to cancel again, until they have ended",
                ),
                SourcePlace(
                    "airflow.jobs.triggerer_job_runner:TriggerRunnerSupervisor.run_in_process",
                    "the class is looked up by its name in the module, since the name is replaced",
                ),
            ),
        ),
        Seam(
            "sqlite_sessions",
            "On SQLite, a thread of the api-server writes the audit log and deletes expired revoked tokens.",
            "Airflow does both on the event loop, which then waits for the write lock of a request that only that loop "
            "can end.",
            "Two requests at once may make the api-server stand still until SQLite's timeout.",
            (
                SourcePlace(
                    "airflow.settings:configure_orm",
                    "all sessions come from the configured maker, which is called with the engine; the arguments of "
                    "Airflow's own are repeated",
                ),
                SourcePlace(
                    "airflow.api_fastapi.logging.decorators:action_logging",
                    "nothing reads the audit log's row after its commit",
                ),
                SourcePlace(
                    "airflow.models.revoked_token:RevokedToken._maybe_cleanup_expired",
                    "nothing reads the answer of the deletion",
                ),
            ),
        ),
        Seam(
            "task_processes",
            "The executor starts a process for each task, which shares no queue and no lock with others.",
            "LocalExecutor's idle workers share a queue; when the one that reads it is killed, no task starts again.",
            "LocalExecutor runs the tasks; if one of its idle workers is killed, tasks wait for a restart of the "
            "scheduler.",
            (
                SourcePlace(
                    "airflow.executors.base_executor:BaseExecutor.heartbeat",
                    "`running` counts against the slots, and `sync` is called at each heartbeat",
                ),
                SourcePlace(
                    "airflow.executors.base_executor:BaseExecutor.trigger_tasks",
                    "it hands `_process_workloads` what to start; a workload that is not taken from its queue is "
                    "handed over again",
                ),
                SourcePlace(
                    "airflow.executors.base_executor:BaseExecutor.trigger_connection_tests",
                    "connection tests too are handed to `_process_workloads`",
                ),
                SourcePlace(
                    "airflow.executors.base_executor:BaseExecutor.change_state", "it takes the key out of `running`"
                ),
                SourcePlace(
                    "airflow.executors.base_executor:BaseExecutor.run_workload",
                    "it runs a workload in this process to its end and raises if that fails",
                ),
                SourcePlace(
                    "airflow.executors.local_executor:LocalExecutor",
                    "everything but `start`, `sync`, `end` and `_process_workloads` fits an executor without queues",
                ),
            ),
        ),
        Seam(
            "dead_schedulers",
            "A scheduler that starts closes the records of the earlier schedulers of its host.",
            "Airflow frees the tasks of a killed scheduler only when its last heartbeat is 30 s old.",
            "Tasks of a killed scheduler wait for up to a minute.",
            (
                SourcePlace(
                    "airflow.jobs.scheduler_job_runner:SchedulerJobRunner.adopt_or_reset_orphaned_tasks",
                    "tasks are freed whose scheduler's record is not running; deferred tasks are left alone",
                ),
            ),
        ),
        Seam(
            "shared_imports",
            "Scheduler, triggerer and DAG processor import once what tasks, triggers and DAG files import.",
            "Each task would spend seconds and memory of its own on these imports, each start of the triggerer would "
            "hold up all triggers, and each parse would take 0.3 s longer.",
            "Each task and each parse of the DAG files imports the platform anew, for seconds.",
            (
                SourcePlace(
                    "airflow.sdk.execution_time.supervisor:WatchedSubprocess.start",
                    "the process of a task, of the triggers and of a parse is forked",
                ),
            ),
        ),
        Seam(
            "failure_log",
            "The log of a task that fails for good ends with the reason alone.",
            "Airflow logs the exception with a traceback of its own and the platform's frames, and the reason stands "
            "above them.",
            "The reason of a failure stands above a traceback in the task's log.",
            (
                SourcePlace(
                    "airflow.sdk.execution_time.task_runner:_run_task_and_map_outcome",
                    "a failure is logged with the exception that is being handled",
                ),
                SourcePlace(
                    "airflow.sdk._shared.logging.structlog:configure_logging",
                    "structlog is configured with a list of processors, which its loggers hold too",
                ),
            ),
        ),
    )
}

_HOOKS = "airflow.providers.cncf.kubernetes.hooks.kubernetes"
_RESOURCES = "airflow.api_fastapi.auth.managers.models.resource_details"
_AUTH = "airflow.api_fastapi.auth.managers"
_HITL = "airflow.sdk.execution_time.hitl"
_RUNNER = "airflow.sdk.execution_time.task_runner:RuntimeTaskInstance"

INTERNALS: tuple[Internal, ...] = (
    Internal(
        f"{_HITL}:upsert_hitl_detail",
        ("operators/asking.py",),
        "the question to a person; Airflow's own operator writes it too, and then waits where no code of ours runs",
    ),
    Internal(f"{_HITL}:HITLUser", ("operators/asking.py",), "who may answer that question"),
    Internal("airflow.dag_processing.bundles.base:BaseDagBundle", ("bundle.py",), "the base of bundles of one's own"),
    Internal(f"{_AUTH}.base_auth_manager:ResourceMethod", ("auth.py",), "what a request does with a DAG"),
    Internal(
        f"{_AUTH}.simple.simple_auth_manager:SimpleAuthManager",
        ("auth.py",),
        "whose users, log-in and roles the auth manager of tenants has",
    ),
    Internal(f"{_AUTH}.simple.user:SimpleAuthManagerUser", ("auth.py",), "that manager's user"),
    Internal(
        f"{_HOOKS}:KubernetesHook._get_field",
        ("kubernetes/clients.py",),
        "what Airflow's connection says of its kubeconfig, before the client takes a context that was not named",
    ),
    Internal(f"{_HOOKS}:AsyncKubernetesHook._get_field", ("kubernetes/clients.py",), "the same on an event loop"),
    Internal(
        f"{_HOOKS}:AsyncKubernetesHook._load_config",
        ("kubernetes/clients.py",),
        "the client's configuration without a client, so that its connection limit can be lifted",
    ),
    Internal(
        "kubernetes.client:ApiClient.sanitize_for_serialization",
        ("kubernetes/gang.py", "kubernetes/base_pod.py"),
        "objects in API form; the generated client documents it nowhere",
    ),
    Internal(
        "airflow.jobs.triggerer_job_runner:TriggerRunner._stop_event",
        ("airflow_seams/trigger_events.py",),
        "what the loop pauses on",
    ),
    Internal(
        "airflow.executors.base_executor:BaseExecutor._process_workloads",
        ("airflow_seams/task_processes.py",),
        "what a subclass must implement",
    ),
    Internal("airflow.jobs:scheduler_job_runner", ("stack/airflow_scheduler.py",), "the module that gets the sleep"),
    Internal("airflow.jobs:triggerer_job_runner", ("airflow_seams/trigger_events.py",), "the module that is changed"),
    Internal("airflow.jobs.job:Job", ("airflow_seams/dead_schedulers.py",), "the table of schedulers"),
    Internal("airflow.jobs.job:JobState", ("airflow_seams/dead_schedulers.py",), "their states"),
    Internal("airflow._shared.timezones:timezone", ("airflow_seams/dead_schedulers.py",), "the time as Airflow has it"),
    Internal("airflow.utils.net:get_hostname", ("airflow_seams/dead_schedulers.py",), "the host's name in that table"),
    Internal(
        "airflow.utils.session:create_session",
        ("airflow_seams/dead_schedulers.py", "api/accepted.py", "api/champion_events.py"),
        "a session of Airflow's database",
    ),
    Internal("airflow.assets.manager:asset_manager", ("api/champion_events.py",), "adds the event of a roll-back"),
    Internal("airflow.models.asset:AssetModel", ("api/champion_events.py",), "whether a DAG begins with that event"),
    Internal("airflow.models.dag:DagModel", ("api/accepted.py",), "which DAGs train, and whether they are paused"),
    Internal("airflow.models.dag:DagTag", ("api/accepted.py",), "the tag of DAGs that train"),
    Internal("airflow.models.dagrun:DagRun", ("api/accepted.py",), "runs whose job is not recorded yet"),
    Internal("airflow.api_fastapi.app:get_auth_manager", ("api/access.py",), "Airflow's rights, for our routes"),
    Internal("airflow.api_fastapi.core_api.security:get_user", ("api/access.py",), "who asks, for our routes"),
    Internal(f"{_RESOURCES}:DagAccessEntity", ("api/access.py", "auth.py"), "the right that our routes ask for"),
    Internal(f"{_RESOURCES}:DagDetails", ("api/access.py", "auth.py"), "the DAG that the right is asked for"),
    Internal(f"{_RUNNER}.get_dagrun_state", ("triggers/reaper.py",), "Airflow's word on a run, asked from a trigger"),
    Internal(
        f"{_RUNNER}.get_task_states",
        ("triggers/reaper.py", "triggers/checkpoints.py", "operators/job.py"),
        "Airflow's word on a run's tasks",
    ),
    Internal("airflow.__main__:main", ("stack/airflow_scheduler.py",), "Airflow's command, after what comes before"),
)
