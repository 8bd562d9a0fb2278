"""The one subclass of KubernetesPodOperator: builds one pod through it, launches a gang of it, and waits.

`execute` builds the pod, records it as the role's template, launches and defers; from then on the trigger drives the
role to its end (`updraft.guardian`), and `finished` ends the task as the ledger says. Stopping this task stops nothing
by itself: see `on_kill`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowSkipException

from updraft.exceptions import QuotaError, UnavailableError, UpdraftError
from updraft.guardian import attempts, pods
from updraft.guardian.records import (
    disk_amounts,
    first_launch,
    launch_of,
    manifest_of,
    memory_limit_mib,
    memory_mib,
)
from updraft.guardian.standing import Due, Over, standing
from updraft.kubernetes import objects
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.operators.ending import LAST_LINES, say_last_lines
from updraft.operators.job import ends_job, fail, require_trained, stop_if_over
from updraft.operators.links import LINKS
from updraft.recovery.ends import EndKind
from updraft.recovery.outcome import Cause
from updraft.services import UsesServices
from updraft.taints import GPU_RESOURCE, GPU_TAINT
from updraft.triggers.gang import GangTrigger
from updraft_learner import contract
from updraft_learner.prepare.documents import CREDENTIALS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest


PREPARE_CPUS = 1.0  # a suite's libraries take seconds of a whole CPU to load


class LearnerOperator(UsesServices, KubernetesPodOperator):
    """Runs one role of a job as a gang of pods, from launch to relaunch, until it succeeds or its budget is used.

    Args:
        role: `train`, `evaluate`, `export` or `prepare`. `train` and `evaluate` run in the job's own image; `export`,
            whose report decides what is registered, and `prepare` run in an image of the platform, without the job's
            code, data and environment.

    Defers to GangTrigger, which relaunches; no retries of Airflow are spent on that. Ends the task without a retry when
    the job has failed or was cancelled. Skips when the manifest does not ask for this role. Running it twice is
    harmless.
    """

    operator_extra_links = LINKS
    ui_color = "#fff3e0"

    def __init__(self, *, role: str, **kwargs: Any) -> None:
        super().__init__(
            deferrable=True,
            random_name_suffix=False,
            get_logs=False,
            do_xcom_push=False,
            on_finish_action="keep_pod",
            durable=False,  # re-attaching goes by the ledger's attempt and deterministic names
            kubernetes_conn_id=None,
            **kwargs,
        )
        self.role = role

    def execute(self, context: Context) -> None:
        """Launch the role's learners, or re-attach to those that run, and defer until the role has ended."""
        with ends_job(self.services, context, Cause.CONFIGURATION, must_run=True) as job:
            manifest = manifest_of(job)
            command = self._command(manifest)
            if command is None:
                raise AirflowSkipException(f"the manifest asks for no {self.role}")
            self._go_on(context, job, manifest, command)

    def finished(self, context: Context, event: dict[str, Any]) -> None:
        """Continue after GangTrigger: end the task as the role ended, or defer again after a revision."""
        with ends_job(self.services, context, Cause.INFRASTRUCTURE, must_run=True) as job:
            manifest = manifest_of(job)
            self._go_on(context, job, manifest, self._command(manifest) or "")

    def _go_on(self, context: Context, job: Job, manifest: Manifest, command: str) -> None:
        """From wherever the ledger says that the role stands; harmless when done twice. Returns when it has ended
        well."""
        attempt = self.services.ledger.current_attempt(job.id, self.role)
        halt_asked = self.services.ledger.pending(job.id, "halt") is not None
        where = standing(job, attempt, halt_asked=halt_asked, now=self.services.ledger.now())
        if isinstance(where, Over):
            self._end(context, job, manifest, attempt, where.reason)
            return
        if attempt is None:
            stop_if_over(self.services, context, job.id)
            if self.role not in (TRAIN_ROLE, PREPARE_ROLE):
                require_trained(self.services, job)
        else:
            self.log.info("Re-attaching to attempt %d", attempt.number)
        if not pods.has_template(self.services, job, self.role):
            launch = first_launch(self.services.settings, job, manifest, self.role)
            pods.record_template(self.services, job, self.role, self._base_pod(context, job, manifest, launch, command))
        if where == Due(None):  # the first launch needs not wait for a triggerer
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
        except QuotaError as exc:  # learners that were made are gone again: the number has been used
            attempts.conclude(
                self.services, core, job.id, self.role, attempt.number, attempts.Seen(EndKind.QUOTA, str(exc))
            )

    def _end(self, context: Context, job: Job, manifest: Manifest, attempt: Attempt | None, reason: str) -> None:
        """Ends the task as the role ended; before that, what its trigger may have left is freed."""
        if attempt is None:
            stop_if_over(self.services, context, job.id)
        if attempt is None or attempt.outcome == Cause.HALTED:  # cancelled before it was launched, or while halted
            raise fail(self.services, context, job.id, Cause.CANCELLED, reason)
        done = attempt.outcome == Cause.DONE
        launch = launch_of(self.services.settings, job, attempt)
        try:
            pods.free(
                self.services,
                self.services.core,
                launch,
                grace_seconds=0 if done else self.services.settings.stop_grace_seconds,
            )
        except UnavailableError as exc:  # its end is known and recorded; `release` and the reaper remove what is left
            self.log.warning("%s", exc)
        if not done:
            cancelled = self.services.ledger.job(job.id).cancel_requested_by
            cause = Cause.CANCELLED if attempt.relaunch and cancelled else Cause(str(attempt.outcome))
            self._say_last_lines(job, attempt)
            raise fail(self.services, context, job.id, cause, self._told(job, attempt) or reason)
        self.log.info("%s: %s", self.role, attempt.reason)

    def _say_last_lines(self, job: Job, attempt: Attempt) -> None:
        """Of the learner that failed; the trigger has shown all lines as they came, among what others said."""
        from updraft.storage import objects

        codes = attempt.evidence.get("exit_codes") or {}
        learner = next((int(number) for number, code in codes.items() if code), None)
        if learner is None:
            return
        try:
            lines = objects.read_log_end(
                job.tenant, job.id, self.role, attempt.number, learner, limit=LAST_LINES, store=self.services.store
            )
        except UpdraftError as exc:  # the reason is told in any case
            self.log.warning("The program's last lines cannot be read: %s", exc)
            return
        say_last_lines(f"Last lines of learner {learner}:", [str(line["line"]) for line in lines])

    def _told(self, job: Job, attempt: Attempt) -> str | None:
        """What the attempt itself says of its failure, where that is more than its pods show."""
        return None

    def on_kill(self) -> None:
        """Delete nothing: this also runs when a worker is stopped.

        `cancel` is a request in the ledger, which the trigger obeys; `release` removes what a user's "mark failed"
        leaves.
        """

    # --- build ------------------------------------------------------------------------------------------------

    def _command(self, manifest: Manifest) -> str | None:
        from updraft.manifest import render_command

        if self.role == TRAIN_ROLE:
            return render_command(manifest)
        if self.role == EVALUATE_ROLE:
            return render_command(manifest, manifest.evaluate.command) if manifest.evaluate else None
        if manifest.export is None:
            return None
        # Isolated: neither the working directory nor a variable says where Python looks for modules.
        return f"exec python -I -m updraft_learner.export --formats {','.join(manifest.export.formats)}"

    def _base_pod(
        self, context: Context, job: Job, manifest: Manifest, launch: Launch, command: str
    ) -> objects.Manifest:
        """KubernetesPodOperator's own building of the pod, in API form."""
        from kubernetes.client import ApiClient, V1ResourceRequirements

        from updraft.manifest import export_image_of, image_of

        resources = manifest.resources
        amounts = {"cpu": f"{resources.cpus:g}", "memory": f"{memory_mib(manifest)}Mi"}
        limits = {**amounts, "memory": f"{memory_limit_mib(self.services.settings, manifest, self.role)}Mi"}
        selector = {}
        if self.role == PREPARE_ROLE:  # alone with the job's grant so far, which is a learner's at least
            limits["cpu"] = f"{max(resources.cpus, PREPARE_CPUS):g}"
        elif resources.gpus:
            amounts[GPU_RESOURCE] = limits[GPU_RESOURCE] = str(resources.gpus)
            selector = {"updraft.dev/gpu-type": resources.gpu_type} if resources.gpu_type else {}
        self.kubernetes_conn_id = self.services.settings.kubernetes_conn_id
        self.namespace = launch.namespace
        self.name = launch.pod_name(1)
        images = self.services.settings.framework_images
        if self.role == EXPORT_ROLE:
            self.image = export_image_of(manifest, images, self.services.settings.sidecar_image)
        elif self.role == PREPARE_ROLE:
            self.image = self.services.settings.data_image
        else:
            self.image = image_of(manifest, images)
        self.cmds = ["/bin/sh", "-c"]
        self.arguments = [command]
        self.labels = launch.labels(1)
        self.node_selector = selector
        disk_request, disk_limit = disk_amounts(self.services.settings, manifest)
        self.container_resources = V1ResourceRequirements(
            requests={**amounts, objects.DISK_RESOURCE: disk_request},
            limits={**limits, objects.DISK_RESOURCE: disk_limit},
        )
        pod = self.build_pod_request_obj(context)
        result: objects.Manifest = ApiClient().sanitize_for_serialization(pod)
        main = next(c for c in result["spec"]["containers"] if c["name"] == contract.MAIN_CONTAINER)
        main["env"] = self._environment(job, manifest, launch, command)
        main["ports"] = [{"name": "master", "containerPort": contract.MASTER_PORT}]
        if self.role == PREPARE_ROLE and resources.gpus:  # the room that the job was granted is on nodes with GPUs
            result["spec"]["tolerations"] = [GPU_TAINT.to_object()]
        return result

    def _environment(self, job: Job, manifest: Manifest, launch: Launch, command: str) -> list[objects.Manifest]:
        checkpoints = manifest.checkpoints
        platform = contract.learner_environment(
            job_id=job.id,
            role=launch.role,
            attempt=launch.attempt,
            learner=1,
            learners=launch.membership.size,
            gpus=manifest.resources.gpus,
            run_id=job.mlflow_run_id or "",
            experiment_id=job.mlflow_experiment_id or "",
            master_addr=launch.master_address,
            master_port=contract.MASTER_PORT,
            command=command,
            checkpoint_seconds=checkpoints.every.total_seconds() if checkpoints and checkpoints.every else None,
        )
        from updraft.kubernetes.secrets import object_name

        threads = {"OMP_NUM_THREADS": str(max(1, int(manifest.resources.cpus)))}
        if launch.role == EXPORT_ROLE:
            return objects.environment({**threads, **platform}, ())
        if launch.role == PREPARE_ROLE:
            outside = {contract.ROOT_ENV: contract.ROOT_DIR, **proxies(os.environ)}
            own = objects.environment({**threads, **platform, **outside}, ())
            return [*own, *code_credentials(manifest.code_secret)]
        secrets = tuple((s.env_name, object_name(s.name), s.key) for s in manifest.secrets)
        return objects.environment({**threads, **manifest.env, **platform}, secrets)


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy variables of `environment` that git needs in a pod, without proxies that hold a password."""
    names = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    return {name: environment[name] for name in names if "@" not in environment.get(name, "@")}


def code_credentials(secret: str | None) -> list[objects.Manifest]:
    """Return the environment entries that give git the secret `secret`; each key of the secret is optional."""
    from updraft.kubernetes.secrets import object_name

    if secret is None:
        return []
    name = object_name(secret)
    return [
        {
            "name": variable,
            "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": True}},
        }
        for key, variable in CREDENTIALS.items()
    ]
