"""The one subclass of KubernetesPodOperator: builds one pod through it, launches a gang of it, and waits.

`execute` builds the pod, records it as the role's template, launches and defers; from then on the trigger drives the
role to its end (`updraft.guardian`), and `finished` ends the task as the ledger says. Stopping this task stops nothing
by itself: see `on_kill`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowSkipException

from updraft.exceptions import QuotaError, UnavailableError
from updraft.guardian import attempts, pods
from updraft.guardian.records import disk_amounts, launch_of, ledger, manifest_of, memory_mib
from updraft.guardian.standing import Due, Over, standing
from updraft.kubernetes import objects
from updraft.kubernetes.objects import Launch
from updraft.operators.job import ends_job, fail, require_trained, stop_if_over
from updraft.operators.links import LINKS
from updraft.recovery.outcome import Cause
from updraft.settings import settings
from updraft.taints import GPU_RESOURCE
from updraft.triggers.gang import GangTrigger
from updraft_learner import contract

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import CoreV1Api

    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest


class LearnerOperator(KubernetesPodOperator):
    """Runs one role of a job (`train`, `evaluate`, `export`) as a gang of pods in the job's own image."""

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
        with ends_job(context, Cause.CONFIGURATION, must_run=True) as job:
            manifest = manifest_of(job)
            command = self._command(manifest)
            if command is None:
                raise AirflowSkipException(f"the manifest asks for no {self.role}")
            self._go_on(context, job, manifest, command)

    def finished(self, context: Context, event: dict[str, Any]) -> None:
        with ends_job(context, Cause.INFRASTRUCTURE, must_run=True) as job:
            manifest = manifest_of(job)
            self._go_on(context, job, manifest, self._command(manifest) or "")

    def _go_on(self, context: Context, job: Job, manifest: Manifest, command: str) -> None:
        """From wherever the ledger says that the role stands; harmless when done twice."""
        attempt = ledger().current_attempt(job.id, self.role)
        halt_asked = ledger().pending(job.id, "halt") is not None
        where = standing(job, attempt, halt_asked=halt_asked, now=ledger().now())
        if isinstance(where, Over):
            self._end(context, job, manifest, attempt, where.reason)
            return
        if attempt is None:
            stop_if_over(context, job.id)
            if self.role != "train":
                require_trained(job)
        else:
            self.log.info("Re-attaching to attempt %d", attempt.number)
        if not pods.has_template(job, self.role):
            launch = launch_of(job, manifest, self.role, 1)
            pods.record_template(job, self.role, self._base_pod(context, job, manifest, launch, command))
        if where == Due(None):  # the first launch needs not wait for a triggerer
            attempt = attempts.begin(job, self.role, None)
            try:
                self._launch(job, attempt)
            except UnavailableError as exc:
                self.log.warning("%s; the trigger goes on with it, however long that takes", exc)
        self.defer(
            trigger=GangTrigger(
                conn_id=settings().kubernetes_conn_id,
                namespace=settings().namespace(job.tenant),
                job_id=job.id,
                role=self.role,
            ),
            method_name="finished",
        )

    def _launch(self, job: Job, attempt: Attempt) -> None:
        core = self._core()
        try:
            pods.deploy(core, job, attempt)
        except QuotaError as exc:  # learners that were made are gone again: the number has been used
            attempts.conclude(core, job.id, self.role, attempt.number, attempts.Seen("quota", str(exc)))

    def _end(self, context: Context, job: Job, manifest: Manifest, attempt: Attempt | None, reason: str) -> None:
        """Ends the task as the role ended; before that, what its trigger may have left is freed."""
        if attempt is None:
            stop_if_over(context, job.id)
        if attempt is None or attempt.outcome == Cause.HALTED:  # cancelled before it was launched, or while halted
            raise fail(context, job.id, Cause.CANCELLED, reason)
        done = attempt.outcome == Cause.DONE
        launch = launch_of(job, manifest, self.role, attempt.number)
        try:
            pods.free(self._core(), launch, grace_seconds=0 if done else settings().stop_grace_seconds)
        except UnavailableError as exc:  # its end is known and recorded; `release` and the reaper remove what is left
            self.log.warning("%s", exc)
        if not done:
            cancelled = ledger().job(job.id).cancel_requested_by
            cause = Cause.CANCELLED if attempt.relaunch and cancelled else Cause(str(attempt.outcome))
            raise fail(context, job.id, cause, reason)
        self.log.info("%s: %s", self.role, attempt.reason)

    def on_kill(self) -> None:
        """Nothing is deleted here: this also runs when a worker is stopped. `cancel` is a request in the ledger that
        the trigger obeys, and `release` removes what a person's "mark failed" leaves."""

    # --- build ------------------------------------------------------------------------------------------------

    def _command(self, manifest: Manifest) -> str | None:
        from updraft.manifest import render_command

        if self.role == "train":
            return render_command(manifest)
        if self.role == "evaluate":
            return render_command(manifest, manifest.evaluate.command) if manifest.evaluate else None
        if manifest.export is None:
            return None
        return f"python -m updraft_learner.export --formats {','.join(manifest.export.formats)}"

    def _base_pod(
        self, context: Context, job: Job, manifest: Manifest, launch: Launch, command: str
    ) -> objects.Manifest:
        """KubernetesPodOperator's own building of the pod, in API form."""
        from kubernetes.client import ApiClient, V1ResourceRequirements

        from updraft.manifest import image_of

        resources = manifest.resources
        amounts = {"cpu": f"{resources.cpus:g}", "memory": f"{memory_mib(manifest)}Mi"}
        selector = {}
        if resources.gpus:
            amounts[GPU_RESOURCE] = str(resources.gpus)
            selector = {"updraft.dev/gpu-type": resources.gpu_type} if resources.gpu_type else {}
        self.kubernetes_conn_id = settings().kubernetes_conn_id
        self.namespace = launch.namespace
        self.name = launch.pod_name(1)
        self.image = image_of(manifest, settings().framework_images)
        self.cmds = ["/bin/sh", "-c"]
        self.arguments = [command]
        self.labels = launch.labels(1)
        self.node_selector = selector
        disk_request, disk_limit = disk_amounts(manifest)
        self.container_resources = V1ResourceRequirements(
            requests={**amounts, objects.DISK_RESOURCE: disk_request},
            limits={**amounts, objects.DISK_RESOURCE: disk_limit},
        )
        pod = self.build_pod_request_obj(context)
        result: objects.Manifest = ApiClient().sanitize_for_serialization(pod)
        main = next(c for c in result["spec"]["containers"] if c["name"] == contract.MAIN_CONTAINER)
        main["env"] = self._environment(job, manifest, launch, command)
        main["ports"] = [{"name": "master", "containerPort": contract.MASTER_PORT}]
        return result

    def _environment(self, job: Job, manifest: Manifest, launch: Launch, command: str) -> list[objects.Manifest]:
        checkpoints = manifest.checkpoints
        platform = contract.learner_environment(
            job_id=job.id,
            role=launch.role,
            attempt=launch.attempt,
            learner=1,
            learners=launch.learners,
            gpus=manifest.resources.gpus,
            run_id=job.mlflow_run_id or "",
            experiment_id=job.mlflow_experiment_id or "",
            master_addr=launch.master_address,
            master_port=contract.MASTER_PORT,
            command=command,
            checkpoint_seconds=checkpoints.every.total_seconds() if checkpoints and checkpoints.every else None,
        )
        from updraft.kubernetes.secrets import object_name

        secrets = tuple((s.env_name, object_name(s.name), s.key) for s in manifest.secrets)
        threads = {"OMP_NUM_THREADS": str(max(1, int(manifest.resources.cpus)))}
        return objects.environment({**threads, **manifest.env, **platform}, secrets)

    def _core(self) -> CoreV1Api:
        from updraft.kubernetes.secrets import core_api

        return core_api(settings())
