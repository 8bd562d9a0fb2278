"""The one subclass of KubernetesPodOperator: builds one pod through it, launches a gang of it, and waits.

`execute` builds, submits or re-attaches, and defers; `finished` reads the evidence again, judges and frees. Stopping
this task stops nothing by itself: see `on_kill`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowSkipException

from updraft.exceptions import RefusedError
from updraft.kubernetes import gang, objects
from updraft.kubernetes.objects import Launch
from updraft.operators.job import ends_job, fail, ledger, manifest_of, memory_mib, stop_if_over
from updraft.operators.links import LINKS
from updraft.recovery.outcome import Cause, Outcome, evidence, judge
from updraft.settings import settings
from updraft.triggers.gang import GangTrigger, tails_of
from updraft_learner import contract

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import CoreV1Api

    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest

STOP_SECONDS = 30  # what the peers of a failed learner are given to leave
ENDINGS = {
    "cancelled": Cause.CANCELLED,
    "deadline": Cause.DEADLINE,
    "blocked": Cause.CONFIGURATION,
}


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
            attempt = ledger().current_attempt(job.id, self.role)
            if attempt is None:
                stop_if_over(context, job.id)
                number = ledger().open_attempt(job.id, self.role)
            elif attempt.ended_at is not None:  # this task was killed between judging and its own end
                self._end(context, job, manifest, attempt)
                return
            else:
                number = attempt.number
                self.log.info("Re-attaching to attempt %d", number)
            launch = self._launch(job, manifest, number)
            self._deploy(context, job, manifest, launch, command)
            self._wait(job, manifest, launch)

    def finished(self, context: Context, event: dict[str, Any]) -> None:
        with ends_job(context, Cause.INFRASTRUCTURE, must_run=True) as job:
            manifest = manifest_of(job)
            attempt = ledger().current_attempt(job.id, self.role)
            if attempt is None:
                raise RuntimeError(f"job {job.id} has no attempt of {self.role}")  # a defect of ours
            if attempt.ended_at is None:
                launch = self._launch(job, manifest, attempt.number)
                outcome = self._judge(manifest, launch, event)
                if outcome is None:
                    self.log.info("The learners are alive; going on (%s)", event["reason"])
                    self._wait(job, manifest, launch)
                # Recorded before the pods are deleted: without them nobody could judge a second time.
                attempt = ledger().close_attempt(
                    job.id, self.role, launch.attempt, outcome.cause.value, outcome.reason, dict(outcome.evidence)
                )
            self._end(context, job, manifest, attempt)

    def _end(self, context: Context, job: Job, manifest: Manifest, attempt: Attempt) -> None:
        """Frees what a closed attempt held and ends the task as the attempt ended. Harmless when done twice."""
        done = attempt.outcome == Cause.DONE
        self._free(self._launch(job, manifest, attempt.number), stop=not done)
        if not done:
            raise fail(context, job.id, Cause(str(attempt.outcome)), str(attempt.reason))
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

    def _launch(self, job: Job, manifest: Manifest, attempt: int) -> Launch:
        learners = manifest.resources.learners if self.role == "train" else 1
        return Launch(settings().namespace(job.tenant), job.tenant, job.id, self.role, attempt, learners)

    def _deploy(self, context: Context, job: Job, manifest: Manifest, launch: Launch, command: str) -> None:
        """Create the gang, once per attempt: pods that vanish later are not made again under the same number."""
        deployed = f"deployed {launch.role} {launch.attempt}"
        if ledger().effect(job.id, deployed) is not None:
            return
        stop_if_over(context, job.id)
        config = self._config(job, manifest, launch)
        pod = objects.learner_pod(
            self._base_pod(context, job, manifest, launch, command),
            config,
            sidecar_image=settings().sidecar_image,
            grace_seconds=settings().store_grace_seconds,
        )
        core = self._core()
        gang.ensure_namespace(core, launch.namespace)
        gang.create(
            core,
            launch,
            secret=objects.credentials_secret(launch, _pod_credentials()),
            service=objects.headless_service(launch) if launch.learners > 1 else None,
            pods=objects.role_to_pods(pod, launch, config),
        )
        if ledger().job(job.id).ended:  # `release` came first: this process was taken for dead
            gang.delete(core, launch.namespace, launch.selector, grace_seconds=0)
            raise RefusedError(f"job {job.id} ended while its learners were being created; they are removed")
        ledger().record_effect(job.id, deployed, {"pods": [launch.pod_name(n + 1) for n in range(launch.learners)]})
        self.log.info("Launched %d learner(s) of %s as attempt %d", launch.learners, launch.role, launch.attempt)

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
            amounts["nvidia.com/gpu"] = str(resources.gpus)
            selector = {"updraft.dev/gpu-type": resources.gpu_type} if resources.gpu_type else {}
        self.kubernetes_conn_id = settings().kubernetes_conn_id
        self.namespace = launch.namespace
        self.name = launch.pod_name(1)
        self.image = image_of(manifest, settings().framework_images)
        self.cmds = ["/bin/sh", "-c"]
        self.arguments = [command]
        self.labels = launch.labels(1)
        self.node_selector = selector
        self.container_resources = V1ResourceRequirements(requests=amounts, limits=amounts)
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

    def _config(self, job: Job, manifest: Manifest, launch: Launch) -> contract.PodConfig:
        from updraft.storage import objects as stored

        restore = None
        if launch.role == "train" and launch.attempt > 1:
            restore = stored.latest_checkpoint(job.tenant, job.id)
            self.log.info("Resume plan: %s", f"from checkpoint {restore}" if restore else "from the beginning")
        return contract.PodConfig(
            job_id=job.id,
            tenant=job.tenant,
            role=launch.role,
            attempt=launch.attempt,
            learner=1,
            learners=launch.learners,
            bucket=settings().bucket,
            prefix=job.tenant,
            mlflow_run_id=job.mlflow_run_id or "",
            mlflow_experiment_id=job.mlflow_experiment_id or "",
            code_tree=job.code_tree,
            data=tuple(contract.DataMount(d["tree"], d["mount"]) for d in job.data or ()),
            params=dict(manifest.params),
            restore_checkpoint=restore,
            restore_results=launch.role != "train",
        )

    # --- wait, judge, free --------------------------------------------------------------------------------------

    def _wait(self, job: Job, manifest: Manifest, launch: Launch) -> NoReturn:
        limit = manifest.budget.max_runtime
        attempts = {a.number: a for a in ledger().attempts(job.id) if a.role == self.role}
        launched = min(a.started_at for a in attempts.values())
        # From the attempt's start, so that waking and waiting again does not put the end off.
        deploy_by = attempts[launch.attempt].started_at.timestamp() + settings().deploy_timeout_seconds
        self.defer(
            trigger=GangTrigger(
                conn_id=settings().kubernetes_conn_id,
                namespace=launch.namespace,
                tenant=launch.tenant,
                job_id=launch.job_id,
                role=launch.role,
                attempt=launch.attempt,
                learners=launch.learners,
                deploy_by=deploy_by,
                deadline=(launched + limit).timestamp() if limit else None,
                store_seconds=float(settings().store_grace_seconds),
            ),
            method_name="finished",
        )

    def _judge(self, manifest: Manifest, launch: Launch, event: dict[str, Any]) -> Outcome | None:
        """From pods and markers as they are now; the event only says why the watching ended. None: nothing ended."""
        from updraft.storage import objects as stored

        pods = gang.observe(self._core(), launch)
        learners = range(1, launch.learners + 1)
        markers = {n: stored.read_done(launch.tenant, launch.job_id, launch.role, launch.attempt, n) for n in learners}
        outcome = judge(
            pods,
            learners=launch.learners,
            markers=markers,
            tails=tails_of(event),
            memory=f"{memory_mib(manifest)} MiB",
        )
        if outcome is None and event["kind"] not in ENDINGS:
            return None
        outcome = outcome or Outcome(ENDINGS[event["kind"]], event["reason"], evidence(pods, markers))
        if event["kind"] in ENDINGS and not outcome.ok and outcome.cause is not Cause.PROGRAM:
            return Outcome(ENDINGS[event["kind"]], event["reason"], outcome.evidence)
        if outcome.ok and launch.role == "train" and manifest.checkpoints is not None:
            final = stored.latest_checkpoint(launch.tenant, launch.job_id)
            if final is None:
                return Outcome(
                    Cause.PROGRAM,
                    "the manifest asks for checkpoints, but the program wrote none: call "
                    "updraft_learner.Checkpointer, or write a folder with a COMPLETE file below $CHECKPOINT_DIR, "
                    "or remove `checkpoints` from the manifest",
                    outcome.evidence,
                )
            return Outcome(outcome.cause, outcome.reason, {**outcome.evidence, "final_checkpoint": final})
        return outcome

    def _free(self, launch: Launch, *, stop: bool) -> None:
        core = self._core()
        grace = STOP_SECONDS if stop else 0
        gang.delete(core, launch.namespace, launch.selector, grace_seconds=grace)
        gang.wait_gone(core, launch.namespace, launch.selector, timeout_seconds=grace + 30)

    def _core(self) -> CoreV1Api:
        from updraft.kubernetes.secrets import core_api

        return core_api(settings())


def _pod_credentials() -> dict[str, Any]:
    credentials = settings().credentials()
    return {
        "s3": {
            "endpoint": settings().s3_endpoint,
            "region": settings().s3_region,
            "access_key": credentials.s3.access_key.get_secret_value(),
            "secret_key": credentials.s3.secret_key.get_secret_value(),
        },
        "mlflow": {
            "uri": settings().mlflow_uri,
            "username": credentials.mlflow.username,
            "password": credentials.mlflow.password.get_secret_value(),
        },
    }
