"""Register the exported model as one version of the registry, then promote it if its rule says so."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from updraft.controller import approval, comparing, data_versions, notices, promotion
from updraft.controller.idempotency import (
    ANSWER,
    DECISION,
    MODEL_VERSION,
    PROMOTION,
    Promotion,
    PromotionDecision,
    RegisteredModel,
)
from updraft.controller.programs import command_of
from updraft.controller.records import manifest_of
from updraft.controller.replay import replay_metrics
from updraft.exceptions import DataError
from updraft.lifecycle import State
from updraft.lifecycle.workflow import EXPORT_ROLE, champion_role, compare_role
from updraft.operators.asking import ask_person
from updraft.operators.job import ends_job
from updraft.operators.learner import LearnerOperator
from updraft.operators.lineage import Lineage, TellsLineage, facts_of, model, trained_on
from updraft.operators.links import LINKS
from updraft.recovery.outcome import FailureClass
from updraft.services import UsesServices

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from updraft.ledger import Job
    from updraft.manifest import Export, Manifest
    from updraft.manifest.gate import Gate
    from updraft.tracking import VersionRef


MODELS = AssetAlias(name="updraft models")


def model_asset(tenant: str, model: str) -> Asset:
    """Return the asset that has an event for each new champion of the tenant's model. Its name is its address, so that
    other DAGs can be scheduled on `Asset("updraft://models/TENANT/MODEL")`: to Airflow, two names are two assets."""
    return Asset(promotion.champion_asset(tenant, model), group="updraft")


class RegisterOperator(TellsLineage, UsesServices, BaseOperator):
    """Register the exported model as one version in MLflow's registry.

    Uploads the folder that the export pod made and checked; the worker never loads the model. Skips if the manifest has
    no `export.register_as`. Running it twice makes one version.
    """

    operator_extra_links = LINKS
    ui_color = "#fce8e6"

    def execute(self, context: Context) -> None:
        """Register the model. Ends the job as failed when the export left no report."""
        with ends_job(self.services, context, FailureClass.INFRASTRUCTURE) as job:
            export = manifest_of(job).export
            if export is None or (name := self._name(job, export)) is None:
                raise AirflowSkipException("the manifest has no export.register_as; the exported files are kept")
            self.services.ledger.jobs.move(job.id, State.STORING, f"registering {name}")
            replay_metrics(self.services, job)  # the logged model copies the run's metrics
            version = self._register(job, name, export)
            self.services.ledger.idempotency.record(job.id, MODEL_VERSION, version)
            made = model(job.tenant, version.name, version.version)
            self.lineage = Lineage(trained_on(job), (made,), facts_of(job))
            self.log.info("Model %s version %s", version.name, version.version)

    def _name(self, job: Job, export: Export) -> str | None:
        """Return the name to register under: the manifest's, or the one that the program asked for with
        `mlflow.register_model`, if the manifest trusts the job's code.

        Raises DataError for a name that no registered model can have.
        """
        if export.register_as is not None or not export.trust_code or not job.mlflow_run_id:
            return export.register_as
        from updraft import tracking
        from updraft.manifest.values import is_model_name

        replay_metrics(self.services, job)  # the request is a tag, which MLflow may lack yet
        name = tracking.requested_model(self.services.tracking, job.mlflow_run_id)
        if name is not None and not is_model_name(name):
            raise DataError(
                f"the program registers a model as {name[:200]!r}; a name has letters, digits, dots, hyphens and "
                "underscores, at most 100. Correct the program, or set export.register_as"
            )
        return name

    def _exported_by(self, job: Job) -> int:
        """Return the attempt whose report counts: the ledger says that it ended, and how."""
        attempt = self.services.ledger.attempts.current(job.id, EXPORT_ROLE)
        if attempt is None or attempt.outcome != FailureClass.DONE:
            raise DataError("the export did not end well; look at the log of export_model")
        return attempt.number

    def _register(self, job: Job, name: str, rules: Export) -> RegisteredModel:
        from updraft import tracking
        from updraft.storage import objects

        client = self.services.tracking
        with tempfile.TemporaryDirectory(prefix="updraft-register-") as folder:
            limit_bytes = self.services.settings.export_limit_bytes
            trusted = rules.trust_code
            attempt = self._exported_by(job)
            export = objects.fetch_export(
                job.tenant,
                job.id,
                attempt,
                Path(folder),
                trust_code=trusted,
                limit_bytes=limit_bytes,
                store=self.services.store,
            )
            if export is None:
                raise DataError("the export left no export.json; look at the log of export_model")
            with self.services.ledger.leases.lock(f"register {name}"):
                tracking.claim(client, name, job.tenant)
            data = job.data or ()
            checked = f"checked against the program's own output: {export.checks}"
            warning = "NOT CHECKED. Loading this model runs code of the job (export.trust_code in its manifest)"
            tags = {
                "updraft.code_tree": job.code_tree or "",
                "updraft.data_fingerprints": ",".join(str(d["tree"]) for d in data),
                "updraft.data_sources": ",".join(str(d["source"]) for d in data),
                "updraft.formats": ",".join(export.formats),
                "updraft.run_id": job.mlflow_run_id or "",
                "updraft.trust_code": str(trusted).lower(),
            }
            ref = tracking.register(
                client,
                name=name,
                folder=export.model_folder,
                job_id=job.id,
                run_id=job.mlflow_run_id or "",
                experiment_id=job.mlflow_experiment_id or "",
                params={"formats": ",".join(export.formats), "model_class": export.model_class},
                tags=tags,
                description=f"Trained by job {job.id}; {warning if trusted else checked}",
            )
        return RegisteredModel(ref.name, ref.version, ref.model_id, tuple(export.formats))


class PromoteOperator(TellsLineage, LearnerOperator):
    """Move the alias `champion` to the job's model version if the manifest's rules hold; log why if not.

    The rules are `promote_if` and `gate`. For a gate, pods of the job evaluate the champion and compare it with the
    version, again if another version has become the champion meanwhile. With `export.approval: required`, a version
    whose rules hold waits for a person in Airflow's list of required actions. On approval, the rules are judged again
    against the champion of that moment. Skips if the manifest names no model or no rule.
    """

    ui_color = "#fce8e6"
    ask = staticmethod(ask_person)  # replaced in tests

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(role=compare_role(None), outlets=[MODELS], **kwargs)  # the role is set again for each pod

    def execute(self, context: Context) -> None:
        """Decide about the promotion once, record the decision, and move the alias."""
        with ends_job(self.services, context, FailureClass.INFRASTRUCTURE) as job:
            self._version(job, manifest_of(job))  # skips the task where there is nothing to decide
            replay_metrics(self.services, job)
            self._decide(context, job)

    def finished(self, context: Context, event: dict[str, Any]) -> None:
        """Continue after GangTrigger: a pod of the gate has ended."""
        with ends_job(self.services, context, FailureClass.INFRASTRUCTURE) as job:
            self._decide(context, job)

    def answered(self, context: Context, event: dict[str, Any]) -> None:
        """Continue after a person's answer, or after ApprovalTrigger: promote, or record why not."""
        with ends_job(self.services, context, FailureClass.INFRASTRUCTURE) as job:
            self.services.ledger.idempotency.record(job.id, ANSWER, approval.answer_of(event))
            self._decide(context, job)

    def _decide(self, context: Context, job: Job) -> None:
        """Continue from what is recorded, so that an interrupted task repeats nothing. Defers while pods of the gate
        run, and while a person is asked."""
        manifest = manifest_of(job)
        export, mine = self._version(job, manifest)
        book = self.services.ledger.idempotency
        answer = book.get(job.id, ANSWER)
        if answer is not None and not answer.approved:
            self._tell(context, job, mine, promotion.decline(self.services, job, mine, answer.reason, answer.by))
            return
        outcome = book.get(job.id, PROMOTION)
        while outcome is None:
            if export.gate is not None and book.get(job.id, DECISION) is None:
                self._compare(context, job, manifest, export.gate, mine)
            if export.approval == "required" and answer is None:
                gate = promotion.pass_gate(self.services, job, mine, export)
                if gate is None:  # another version became the champion during the comparison
                    continue
                if gate.promote:
                    self._wait_for_approval(context, job, mine, gate)
            outcome = promotion.promote(self.services, job, mine, export, approval=answer)
        self._tell(context, job, mine, outcome)

    def _compare(self, context: Context, job: Job, manifest: Manifest, gate: Gate, mine: VersionRef) -> None:
        """Have the version compared with the champion of this moment. Returns when it was, and defers before."""
        from updraft import tracking

        current = tracking.champion(self.services.tracking, mine.name)
        champion = current[0].version if current else None
        if comparing.reported(self.services, job.id, champion):
            return
        compared = comparing.begin(self.services, job, gate, current[0] if current else None)
        if compared.version is not None and compared.evaluated:
            self._run(context, job, manifest, champion_role(compared.version))
        self._run(context, job, manifest, compare_role(champion))
        comparing.attach_report(self.services, job, mine, champion)

    def _run(self, context: Context, job: Job, manifest: Manifest, role: str) -> None:
        self.role = role
        book = self.services.ledger
        if book.attempts.current(job.id, role) is None and not book.queue.holds(job.id):
            # It released its grant while a person was asked.
            why = "another version is the champion now: the version is compared with that"
            book.jobs.move(job.id, State.QUEUED, why, only_from=State.STORING)
        self._go_on(context, book.jobs.get(job.id), manifest, command_of(manifest, role) or "")

    def _failed(self, context: Context, job: Job, cause: FailureClass, reason: str) -> None:
        """Go on without the pod's result: that two models cannot be compared is an outcome of the gate."""
        if cause is FailureClass.CANCELLED:
            super()._failed(context, job, cause, reason)
        self.log.warning("%s: %s", self.role, reason)

    def _version(self, job: Job, manifest: Manifest) -> tuple[Export, VersionRef]:
        from updraft import tracking

        export = manifest.export
        if export is None or export.register_as is None:
            raise AirflowSkipException("the manifest has no export.register_as")
        if not export.judged:
            raise AirflowSkipException("the manifest has no promote_if and no gate; the version keeps no alias")
        version = self.services.ledger.idempotency.get(job.id, MODEL_VERSION)
        if version is None:
            raise DataError("no version was registered; look at the log of register_model")
        return export, tracking.VersionRef(version.name, version.version, version.model_id, job.mlflow_run_id or "")

    def _wait_for_approval(self, context: Context, job: Job, mine: VersionRef, gate: PromotionDecision) -> NoReturn:
        from updraft.triggers.approval import ApprovalTrigger

        settings = self.services.settings
        question = approval.question(self.services, job, mine, gate)
        self.ask(context, question)
        self.services.ledger.jobs.move(job.id, State.STORING, question.subject)
        self.services.ledger.queue.release(job.id)  # a person may need days: others can use its room
        notices.tell(self.services, job, "waiting", f"{question.subject}; {gate.reason}")
        self.services.ledger.series.record(approval.waiting_event(job, mine, gate, question))
        self.log.info("%s. Answer in Airflow, under Required Actions", question.subject)
        trigger = ApprovalTrigger(job_id=job.id, wait_seconds=3600 * settings.approval_hours)
        self.defer(trigger=trigger, method_name="answered")

    def _tell(self, context: Context, job: Job, mine: VersionRef, outcome: Promotion) -> None:
        """Tell MLflow of the result, and Airflow that the model has changed."""
        from updraft import tracking

        event = self.services.ledger.series.find(promotion.event_key(job.id))
        data = [] if event is None else event.evidence.get("data") or []
        tags = {
            "updraft.promoted": str(outcome.promoted).lower(),
            "updraft.promotion_reason": outcome.reason,
        }
        if data:
            lines = [f"{change['source']}: {data_versions.DataChange(**change)}" for change in data]
            tags["updraft.data_since_champion"] = "\n".join(lines)
        tracking.tag_version(self.services.tracking, mine, tags)
        self.log.info("%s: %s", "Promoted" if outcome.promoted else "Not promoted", outcome.reason)
        judged = model(job.tenant, mine.name, mine.version)
        champion = model(job.tenant, mine.name, mine.version, alias="champion")
        self.lineage = Lineage((judged,), (champion,) if outcome.promoted else (), facts_of(job))
        if outcome.promoted:
            trees: list[JsonValue] = [str(record["tree"]) for record in job.data or ()]
            facts: dict[str, JsonValue] = {"version": mine.version, "job": job.id, "data": trees}
            context["outlet_events"][MODELS].add(model_asset(job.tenant, mine.name), extra=facts)
