"""Define the only subclass of KubernetesPodOperator: it builds one pod, launches a gang of such pods, and waits.

`execute` builds the pod, records it as the role's template, launches the gang and defers. From then on the trigger
drives the role to its end (`updraft.controller`), and `finished` ends the task as the ledger says. Stopping this task
stops no learner: see `on_kill`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowSkipException

from updraft.controller import attempts, comparing, pods
from updraft.controller.next_action import Finished, LaunchDue, next_action
from updraft.controller.programs import command_of, git_proxies, program_of
from updraft.controller.records import (
    first_launch,
    launch_of,
    manifest_of,
)
from updraft.controller.replay import replay_metrics
from updraft.exceptions import QuotaError, UnavailableError, UpdraftError
from updraft.kubernetes.base_pod import ARGUMENTS, base_pod
from updraft.lifecycle.workflow import BEFORE_ROLES, EXPORT_ROLE, TRAIN_ROLE
from updraft.operators.ending import LAST_LINES, say_last_lines
from updraft.operators.job import ends_job, fail, require_trained, stop_if_over
from updraft.operators.links import LINKS
from updraft.recovery.ends import EndKind
from updraft.recovery.outcome import FailureClass
from updraft.services import UsesServices
from updraft.triggers.gang import GangTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest


class LearnerOperator(UsesServices, KubernetesPodOperator):
    """Run one role of a job as a gang of pods, with relaunches, until it succeeds or its budget is used.

    Args:
        role: `train`, `evaluate`, `export` or `prepare`. `train` and `evaluate` run in the job's own image; `export`,
            whose report decides what is registered, and `prepare` run in an image of the platform, without the job's
            code, data and environment.

    Defers to GangTrigger, which relaunches lost attempts; they use no retries of Airflow. Ends the task without a retry
    if the job has failed or was cancelled. Skips if the manifest does not ask for this role. Running it twice is
    harmless.
    """

    operator_extra_links = LINKS
    ui_color = "#fff3e0"
    # What a job's pods are is in its manifest. Airflow takes time for each field, at each parse and in each task.
    template_fields: Sequence[str] = ()

    def __init__(self, *, role: str, **kwargs: Any) -> None:
        super().__init__(
            **ARGUMENTS,
            **kwargs,
        )
        self.role = role

    def execute(self, context: Context) -> None:
        """Launch the role's learners, or re-attach to running ones, and defer until the role has ended."""
        with ends_job(self.services, context, FailureClass.CONFIGURATION, must_run=True) as job:
            manifest = manifest_of(job)
            command = command_of(manifest, self.role)
            if command is None:
                raise AirflowSkipException(f"the manifest asks for no {self.role}")
            self._go_on(context, job, manifest, command)

    def finished(self, context: Context, event: dict[str, Any]) -> None:
        """Continue after GangTrigger: end the task as the role ended, or defer again after a revision."""
        with ends_job(self.services, context, FailureClass.INFRASTRUCTURE, must_run=True) as job:
            manifest = manifest_of(job)
            self._go_on(context, job, manifest, command_of(manifest, self.role) or "")

    def _go_on(self, context: Context, job: Job, manifest: Manifest, command: str) -> None:
        """Continue from the role's state in the ledger. A second call changes nothing. Returns when the role has
        succeeded, and raises an error, or TaskDeferred, before."""
        attempt = self.services.ledger.attempts.current(job.id, self.role)
        halt_asked = self.services.ledger.requests.pending(job.id, "halt") is not None
        where = next_action(job, attempt, halt_asked=halt_asked, now=self.services.ledger.now())
        if isinstance(where, Finished):
            self._end(context, job, manifest, attempt, where.reason)
            return
        if attempt is None:
            stop_if_over(self.services, context, job.id)
            if self.role not in (TRAIN_ROLE, *BEFORE_ROLES):
                require_trained(self.services, job)
            if self.role == EXPORT_ROLE and manifest.export is not None and manifest.export.trust_code:
                replay_metrics(self.services, job)  # the model that the program logged may not be in MLflow yet
        else:
            self.log.info("Re-attaching to attempt %d", attempt.number)
        if not pods.has_template(self.services, job, self.role):
            settings = self.services.settings
            launch = first_launch(settings, job, manifest, self.role)
            program = program_of(
                settings,
                manifest,
                launch,
                command,
                run_id=comparing.run_of(self.services, job, self.role) or "",
                experiment_id=job.mlflow_experiment_id or "",
                proxies=git_proxies(os.environ),
            )
            template = base_pod(self, launch, program, settings.kubernetes_conn_id, context)
            pods.record_template(self.services, job, self.role, template)
        if where == LaunchDue(None):  # the first launch need not wait for a triggerer
            attempt = attempts.begin(self.services, job, self.role, None)
            try:
                self._launch(job, attempt)
            except UnavailableError as exc:
                self.log.warning("%s; the trigger goes on with it, however long that takes", exc)
        self.defer(
            trigger=GangTrigger(
                conn_id=self.services.settings.kubernetes_conn_id,
                namespace=self.services.settings.namespace(job.tenant),
                job_id=job.id,
                role=self.role,
            ),
            method_name="finished",
        )

    def _launch(self, job: Job, attempt: Attempt) -> None:
        core = self.services.core
        try:
            pods.deploy(self.services, core, job, attempt)
        except QuotaError as exc:  # pods of this attempt were removed again, and its number is used
            attempts.conclude(
                self.services, core, job.id, self.role, attempt.number, attempts.EndSignal(EndKind.QUOTA, str(exc))
            )

    def _end(self, context: Context, job: Job, manifest: Manifest, attempt: Attempt | None, reason: str) -> None:
        """End the task as the role ended; before that, what its trigger may have left is freed."""
        if attempt is None:
            stop_if_over(self.services, context, job.id)
        if (
            attempt is None or attempt.outcome == FailureClass.HALTED
        ):  # cancelled before its first launch, or while halted
            raise fail(self.services, context, job.id, FailureClass.CANCELLED, reason)
        done = attempt.outcome == FailureClass.DONE
        launch = launch_of(self.services.settings, job, attempt)
        try:
            pods.free(
                self.services,
                self.services.core,
                launch,
                grace_seconds=0 if done else self.services.settings.stop_grace_seconds,
            )
        except UnavailableError as exc:  # the end is already recorded; `release` and the reaper remove the rest
            self.log.warning("%s", exc)
        if not done:
            cancelled = self.services.ledger.jobs.get(job.id).cancel_requested_by
            cause = FailureClass.CANCELLED if attempt.relaunch and cancelled else FailureClass(str(attempt.outcome))
            self._say_last_lines(job, attempt)
            self._failed(context, job, cause, self._told(job, attempt) or reason)
            return
        self.log.info("%s: %s", self.role, attempt.reason)

    def _failed(self, context: Context, job: Job, cause: FailureClass, reason: str) -> None:
        """End the job, because the role has failed or was cancelled."""
        raise fail(self.services, context, job.id, cause, reason)

    def _say_last_lines(self, job: Job, attempt: Attempt) -> None:
        """Log the last lines of the learner that failed; the trigger has logged them mixed with those of other
        learners."""
        from updraft.storage import objects

        learner = next((number for number, code in attempt.evidence.exit_codes.items() if code), None)
        if learner is None:
            return
        try:
            lines = objects.read_log_end(
                job.tenant, job.id, self.role, attempt.number, learner, limit=LAST_LINES, store=self.services.store
            )
        except UpdraftError as exc:  # the reason is reported without these lines
            self.log.warning("The program's last lines cannot be read: %s", exc)
            return
        say_last_lines(f"Last lines of learner {learner}:", [str(line["line"]) for line in lines])

    def _told(self, job: Job, attempt: Attempt) -> str | None:
        """Return what the attempt itself says of its failure, where that is more than its pods show."""
        return None

    def on_kill(self) -> None:
        """Delete nothing: this also runs when a worker is stopped.

        `cancel` is a request in the ledger, which the trigger obeys; `release` removes what a user's "mark failed"
        leaves.
        """
