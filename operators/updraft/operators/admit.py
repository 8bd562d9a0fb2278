"""Run the first task of a job: validate the manifest, record the job, open its MLflow run, wait in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSkipException

from updraft.controller import queueing
from updraft.controller.outbox import require_tracking
from updraft.controller.records import manifest_of, memory_mib
from updraft.exceptions import RefusedError, UnavailableError, UpdraftError
from updraft.lifecycle import State, job_id_of_run
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.operators.ending import EndTaskError
from updraft.operators.job import ends_job, fail, record_failure, run_key
from updraft.operators.links import LINKS
from updraft.recovery.outcome import FailureClass
from updraft.services import UsesServices
from updraft.settings import refuse_open_login
from updraft.tenants import completed, refusals, refuse_tenant, refuse_user
from updraft.triggers.admit import AdmitTrigger
from updraft.triggers.tracking import TrackingTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Job
    from updraft.manifest import Manifest
    from updraft.services import Services

NAME_CHARACTERS = 40  # a longer name is invalid, and the job is not named after it


class AdmitOperator(UsesServices, BaseOperator):
    """Validate the manifest, record the job, open its MLflow run and wait until the whole gang has a grant.

    Args:
        form: Default values of the DAG's form, by field. They show which values a user has changed: Airflow writes the
            run's configuration into the DAG's own params.
        tenant: The tenant of the DAG, which is that of its jobs.

    Returns the job's id. Defers while MLflow does not answer (TrackingTrigger) and while the job is in the queue
    (AdmitTrigger). Ends the task without a retry if the manifest is wrong, a secret is missing, or this cluster can
    never run the job.
    """

    operator_extra_links = LINKS
    ui_color = "#e8f0fe"

    def __init__(self, *, form: Mapping[str, Any], tenant: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.form = form
        self.tenant = tenant

    def execute(self, context: Context) -> str:
        """Admit the job of this run, or defer until it can be admitted. Returns the job's id."""
        return self._enter(context)

    def tracked(self, context: Context, event: dict[str, Any]) -> str:
        """Continue after MLflow has answered. `event` is TrackingTrigger's."""
        self.log.info("%s", event["reason"])
        return self._enter(context)

    def admitted(self, context: Context, event: dict[str, Any]) -> str:
        """Continue after the queue has decided. `event` is AdmitTrigger's."""
        with ends_job(self.services, context, FailureClass.CONFIGURATION) as job:
            return self._admit(context, job, event["kind"], event["reason"])

    def _enter(self, context: Context) -> str:
        manifest = self._judge(context)
        fired = fired_keys(context)
        self._refuse_second(fired, _job_id(context, manifest.name))
        recorded = self._record(context, manifest)
        self._take(context, recorded, fired)
        with ends_job(self.services, context, FailureClass.CONFIGURATION) as job:
            self._check_cluster(job, manifest)
            self._check_secrets(job, manifest)
            self._check_claims(job, manifest)
            self._check_pod(job, manifest)
            try:
                require_tracking(self.services)
                self._open_run(context, job, manifest)
                self._check_model(job, manifest)
            except UnavailableError as exc:  # the job can wait as long as MLflow is unavailable
                self._wait_for_tracking(job, str(exc))
            if self.services.ledger.attempts.current(job.id, TRAIN_ROLE) is not None:  # a user cleared this task
                self.log.info("The job was admitted before, and its learners were launched")
                return job.id
            answer = ("waiting", job.reason)
            if job.state is not State.HALTED:
                queueing.enqueue(self.services, job)
                if job.state is State.PENDING:
                    self.services.ledger.jobs.move(job.id, State.QUEUED, "waiting to be admitted")
                queueing.plan(
                    self.services, _nodes(self.services)
                )  # the first job in the queue does not wait for the planner
                answer = queueing.ask(self.services, job.id)
            if answer[0] in ("waiting", "halt"):
                self.log.info("QUEUED: %s", answer[1])
                self.defer(
                    trigger=AdmitTrigger(conn_id=self.services.settings.kubernetes_conn_id, job_id=job.id),
                    method_name="admitted",
                )
            return self._admit(context, job, *answer)

    def _refuse_second(self, fired: Sequence[str], job_id: str) -> None:
        """Skip this run if other jobs have taken all firings that started it: Airflow was told of one twice."""
        events = [self.services.ledger.series.find(key) for key in fired]
        owners = {event.job_id for event in events if event is not None and event.job_id is not None}
        if owners and job_id not in owners and all(event and event.job_id for event in events):
            raise AirflowSkipException(f"{', '.join(sorted(owners))} was started for the same reason; nothing to do")

    def _take(self, context: Context, job: Job, fired: Sequence[str]) -> None:
        """Give the firings that started this run to its job, and note why it was started."""
        for key in fired:
            owner = self.services.ledger.schedules.take(key, job.id)
            if owner is not None and owner != job.id:
                reason = f"job {owner} was started for the same reason"
                raise fail(self.services, context, job.id, FailureClass.CANCELLED, reason)
            event = self.services.ledger.series.find(key)
            if event is not None and job.state is State.PENDING:
                self.services.ledger.jobs.move(job.id, State.PENDING, f"started by its schedule: {event.reason}")

    def _wait_for_tracking(self, job: Job, why: str) -> NoReturn:
        reason = f"waiting for MLflow, which every job's run is opened in: {why}"
        self.log.warning("%s", reason)
        if job.state is State.PENDING:
            self.services.ledger.jobs.move(job.id, State.PENDING, reason)
        self.defer(trigger=TrackingTrigger(job_id=job.id), method_name="tracked")

    def _admit(self, context: Context, job: Job, kind: str, reason: str) -> str:
        if kind == "cancelled":
            raise fail(self.services, context, job.id, FailureClass.CANCELLED, reason)
        if kind in ("impossible", "expired"):
            raise RefusedError(reason)
        manifest = manifest_of(job)
        sized = self.services.ledger.queue.size(job.id)
        granted = _amounts(manifest, sized[0] if sized is not None else manifest.resources.learners)
        evidence = {"granted": manifest.canonical()["resources"]}
        self.services.ledger.jobs.move(job.id, State.DEPLOYING, f"admitted: {granted}", evidence)
        self.log.info("Admitted: %s", granted)
        return job.id

    def _judge(self, context: Context) -> Manifest:
        """Validate the whole manifest before anything is staged; all wrong fields are in the first lines of the log."""
        from updraft.manifest import ManifestError, export_image_of, image_of, read_form
        from updraft.manifest.pod_rules import judge
        from updraft.manifest.submission import unknown_notifiers

        raw = dict(context["params"])
        try:
            refuse_open_login(conf.getboolean("core", "simple_auth_manager_all_admins"))
        except UpdraftError as exc:
            raise EndTaskError(str(exc)) from exc
        try:
            loaded = read_form(raw, defaults=self.form, tenant=self.tenant)
            for warning in loaded.warnings:
                self.log.warning(warning)
            tenancy = self.services.tenancy()
            manifest = completed(loaded.manifest, tenancy)
            refused = [
                *refuse_tenant(manifest.tenant, self.tenant, run_key(context)[0]),
                *refusals(manifest, tenancy),
                *(refuse_user(tenancy, self.tenant, user) if (user := _submitter(context)) else ()),
                *judge(manifest.pod, self.services.settings.pod_policy_of(manifest.tenant)),
                *unknown_notifiers(manifest, [*self.services.settings.notifiers]),
            ]
            if refused:
                raise ManifestError(refused)
            image_of(manifest, self.services.settings.framework_images)
            if manifest.export is not None:
                export_image_of(manifest, self.services.settings.framework_images, self.services.settings.sidecar_image)
        except ManifestError as exc:
            self._record_refused(context, raw, exc)
            raise EndTaskError(str(exc)) from exc
        return manifest

    def _record_refused(self, context: Context, raw: Mapping[str, Any], error: Exception) -> None:
        """Record a refused manifest as a job too: it can be listed, with its reason, and it ends FAILED."""
        box = raw.get("manifest")
        name = raw.get("name") or (box.get("name") if isinstance(box, Mapping) else None)
        if not isinstance(name, str) or not name.isprintable() or len(name) > NAME_CHARACTERS:
            name = "invalid"
        tenancy, user = self.services.tenancy(), _submitter(context)
        own = self.tenant in tenancy.names and not (user and refuse_user(tenancy, self.tenant, user))
        tenant = self.tenant if own else tenancy.home_of(user)
        job = self._record_as(context, name, tenant, {"name": name})
        for key in fired_keys(context):  # or the schedule would start such a job again and again
            self.services.ledger.schedules.take(key, job.id)
        record_failure(self.services, job.id, self.task_id, FailureClass.CONFIGURATION, str(error))

    def _record(self, context: Context, manifest: Manifest) -> Job:
        job = self._record_as(context, manifest.name, manifest.tenant, manifest.canonical())
        self.log.info("Job %s of tenant %s", job.id, job.tenant)
        return job

    def _record_as(self, context: Context, name: str, tenant: str, canonical: Mapping[str, Any]) -> Job:
        from updraft.ledger import NewJob

        dag_id, run_id = run_key(context)
        new = NewJob(
            id=_job_id(context, name),
            tenant=tenant,
            name=name,
            dag_id=dag_id,
            run_id=run_id,
            manifest=dict(canonical),
            submitted_by=_submitter(context) or "schedule",
        )
        try:
            return self.services.ledger.jobs.record(new)
        except UnavailableError:
            raise
        except UpdraftError as exc:  # the id belongs to another run, or the manifest was renamed since
            raise EndTaskError(str(exc)) from exc

    def _check_cluster(self, job: Job, manifest: Manifest) -> None:
        """Check what no waiting changes now, and not when the job's turn has come."""
        from updraft.kubernetes import clients, preflight, rbac

        clients.check_connection(self.services.settings)
        configured = self.services.settings
        namespace, rights = configured.namespace(job.tenant), rbac.needed(configured)
        tolerated = (*configured.tolerations, *(manifest.pod.tolerated if manifest.pod else ()))
        preflight.require(self.services.core, namespace, rights, tolerated)

    def _check_secrets(self, job: Job, manifest: Manifest) -> None:
        """Check the secrets before the job is queued: a missing one would only be found when its learners start."""
        from updraft.kubernetes.secrets import list_secrets
        from updraft.manifest import named_secrets

        named = named_secrets(manifest)
        missing = (
            sorted(
                named - set(list_secrets(self.services.core, self.services.settings.namespace(job.tenant), job.tenant))
            )
            if named
            else []
        )
        if missing:
            raise RefusedError(
                f"secrets: {', '.join(map(repr, missing))} not found; `updraft secrets set {missing[0]}` creates one, "
                "`updraft secrets list` shows those that exist"
            )

    def _check_claims(self, job: Job, manifest: Manifest) -> None:
        from updraft.kubernetes.claims import read_claim

        named = dict.fromkeys(d.parsed().claim for d in manifest.data if d.parsed().kind == "pvc")
        for name in named:
            read_claim(
                self.services.core, self.services.settings.namespace(job.tenant), name, manifest.resources.learners
            )

    def _check_pod(self, job: Job, manifest: Manifest) -> None:
        """Check what the section `pod` names before the job is queued: its pods would wait for it until the timeout."""
        from updraft.kubernetes.pod_needs import lacking

        namespace = self.services.settings.namespace(job.tenant)
        found = lacking(self.services.core, namespace, manifest.pod, manifest.resources.learners)
        if found:
            raise RefusedError("; ".join(f"{field}: {problem}" for field, problem in found))

    def _check_model(self, job: Job, manifest: Manifest) -> None:
        """Check that the model's name is the tenant's, before the job trains for days under another tenant's."""
        from updraft import tracking

        if manifest.export is not None and manifest.export.register_as is not None:
            tracking.check_owner(self.services.tracking, manifest.export.register_as, job.tenant)

    def _open_run(self, context: Context, job: Job, manifest: Manifest) -> None:
        from updraft import tracking

        if job.mlflow_run_id:
            return
        dag_id, run_id = run_key(context)
        tags = {
            tracking.TAG_TENANT: job.tenant,
            "updraft.name": job.name,
            "updraft.airflow_run": f"{self.services.settings.airflow_public_uri}/dags/{dag_id}/runs/{run_id}",
            "updraft.manifest_sha256": manifest.digest(),
            "mlflow.user": job.submitted_by,
            "mlflow.note.content": manifest.description or "",
        }
        if fired_keys(context):
            tags["updraft.started_by"] = self.services.ledger.jobs.get(job.id).reason
        ref = tracking.open_run(
            self.services.tracking,
            job_id=job.id,
            experiment=job.name if job.tenant == "default" else f"{job.tenant}/{job.name}",
            params={**manifest.params, **_described(manifest)},
            tags=tags,
            manifest=manifest.canonical(),
        )
        self.services.ledger.jobs.set_run(job.id, ref.run_id, ref.experiment_id)
        self.log.info("MLflow run %s", ref.run_id)


def _amounts(manifest: Manifest, learners: int) -> str:
    """Return what is granted, as its submitter wrote it: `2 x (0.5 CPU, 256 MiB)`."""
    resources = manifest.resources
    parts = [f"{resources.cpus:g} CPU", f"{memory_mib(manifest)} MiB"]
    if resources.gpus:
        parts.append(f"{resources.gpus} GPU" + (f" {resources.gpu_type}" if resources.gpu_type else ""))
    return f"{learners} x ({', '.join(parts)})"


def _described(manifest: Manifest) -> dict[str, Any]:
    """Return what is worth comparing between runs, beside the user's own params."""
    resources = manifest.resources
    return {
        "updraft.learners": resources.learners,
        "updraft.cpus": resources.cpus,
        "updraft.gpus": resources.gpus,
        "updraft.command": manifest.command,
    }


def _nodes(services: Services) -> list[dict[str, Any]]:
    from updraft.kubernetes import calls
    from updraft.kubernetes.nodes import TIMEOUT_SECONDS, with_other_pods

    core = services.core
    listed = calls.call("list nodes", core.list_node)
    nodes = list(core.api_client.sanitize_for_serialization(listed)["items"])
    return with_other_pods(core, nodes, TIMEOUT_SECONDS)


def _submitter(context: Context) -> str | None:
    """Return the user who started the run; None for a schedule."""
    user: str | None = context["dag_run"].triggering_user_name
    return user


def _job_id(context: Context, name: str) -> str:
    """Return the id of this run's job; Airflow names runs that events start in its own way."""
    return job_id_of_run(*run_key(context), name)


def fired_keys(context: Context) -> list[str]:
    """Return the keys of the firings whose asset events started this run; none for a run that was started otherwise."""
    found: list[str] = []
    events: Any = context.get("triggering_asset_events") or {}
    for of_asset in events.values():
        for event in of_asset:
            payload = (event.extra or {}).get("payload")
            if isinstance(payload, Mapping) and isinstance(payload.get("fired"), str):
                found.append(payload["fired"])
    return list(dict.fromkeys(found))
