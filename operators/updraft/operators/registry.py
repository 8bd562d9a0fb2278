"""Register the exported model as one version of the registry, then promote it if its rule says so."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from updraft.controller.idempotency import (
    DECISION,
    MODEL_VERSION,
    PROMOTION,
    Promotion,
    PromotionDecision,
    RegisteredModel,
)
from updraft.controller.records import manifest_of
from updraft.controller.replay import replay_metrics
from updraft.exceptions import DataError
from updraft.lifecycle import State
from updraft.lifecycle.workflow import EXPORT_ROLE
from updraft.operators.job import ends_job
from updraft.operators.links import LINKS
from updraft.recovery.outcome import FailureClass
from updraft.services import UsesServices

if TYPE_CHECKING:
    from airflow.sdk import Context
    from mlflow import MlflowClient

    from updraft.ledger import Job
    from updraft.manifest import Export
    from updraft.tracking import VersionRef


class RegisterOperator(UsesServices, BaseOperator):
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


class PromoteOperator(UsesServices, BaseOperator):
    """Move the alias `champion` to the job's model version if the manifest's `promote_if` rules hold; log why if not.

    Skips if the manifest names no model or no rule.
    """

    operator_extra_links = LINKS
    ui_color = "#fce8e6"

    def execute(self, context: Context) -> None:
        """Decide about the promotion once, record the decision, and move the alias."""
        from updraft import tracking

        with ends_job(self.services, context, FailureClass.INFRASTRUCTURE) as job:
            export = manifest_of(job).export
            if export is None or export.register_as is None:
                raise AirflowSkipException("the manifest has no export.register_as")
            if not export.promote_if:
                raise AirflowSkipException("the manifest has no promote_if rule; the version keeps no alias")
            version = self.services.ledger.idempotency.get(job.id, MODEL_VERSION)
            if version is None:
                raise DataError("no version was registered; look at the log of register_model")
            client = self.services.tracking
            mine = tracking.VersionRef(version.name, version.version, version.model_id, job.mlflow_run_id or "")
            outcome = self.services.ledger.idempotency.get(job.id, PROMOTION)
            if outcome is None:
                replay_metrics(self.services, job)
                # Two jobs of one series decide one after the other: the second one compares itself with the first.
                with self.services.ledger.leases.lock(f"promote {mine.name}"):
                    outcome = self._promote(job, client, mine, export)
            tags = {
                "updraft.promoted": str(outcome.promoted).lower(),
                "updraft.promotion_reason": outcome.reason,
            }
            tracking.tag_version(client, mine, tags)
            self.log.info("%s: %s", "Promoted" if outcome.promoted else "Not promoted", outcome.reason)

    def _promote(self, job: Job, client: MlflowClient, mine: VersionRef, export: Export) -> Promotion:
        """Decide once, and move the alias at most once.

        The decision is recorded with the champion it was compared to, so a second run moves the alias only while that
        version is still the champion.
        """
        from updraft import tracking
        from updraft.manifest import decide

        current = tracking.champion(client, mine.name)
        holder = current[0].version if current else None
        decision = self.services.ledger.idempotency.get(job.id, DECISION)
        if decision is None:
            found = decide(export.rules, tracking.metrics(client, mine.run_id), current[1] if current else None)
            decision = PromotionDecision(found.promote, found.reason, over=holder)
            decision = self.services.ledger.idempotency.record(job.id, DECISION, decision)
        promoted, reason = decision.promote, decision.reason
        if promoted and holder != mine.version:
            if holder == decision.over:
                tracking.set_champion(client, mine)
            else:
                promoted, reason = False, f"version {holder} became the champion while this task was interrupted"
        return self.services.ledger.idempotency.record(
            job.id, PROMOTION, Promotion(promoted, reason, alias=tracking.CHAMPION)
        )
