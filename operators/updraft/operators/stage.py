"""Bring code and data into the content store, and have the data validated, before a learner starts.

A worker never reads the content of a tenant's files: it checks what the store has, and asks a pod of the job for the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from updraft.controller import data_versions, drift, environments, init_from, prepare
from updraft.controller.environments import JobEnvironment
from updraft.controller.init_from import InitFrom
from updraft.controller.prepare import PreparePlan
from updraft.controller.programs import PREPARE_COMMAND
from updraft.controller.records import manifest_of
from updraft.exceptions import DataError, NotFoundError, RefusedError, UpdraftError
from updraft.lifecycle import State
from updraft.lifecycle.workflow import BUILD_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.manifest import parse_source
from updraft.operators.job import advance, ends_job, stop_if_over
from updraft.operators.learner import LearnerOperator
from updraft.operators.lineage import Lineage, TellsLineage, facts_of, trained_on
from updraft.operators.links import LINKS
from updraft.recovery.outcome import FailureClass
from updraft.services import UsesServices
from updraft_learner.prepare.documents import CODE, SourceRequest, data_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Attempt, Job, Validation
    from updraft.manifest import Data, Manifest
    from updraft.services import Services
    from updraft.storage import Staged
    from updraft.storage.prepared import Prepared


LOCK_ARTIFACT = "environment.json"  # among the run's artifacts


class StageOperator(TellsLineage, LearnerOperator):
    """Turn the manifest's code and data into trees of the content store, and record which trees the job uses.

    A source that the store already has in its present form needs no pod. For all others, and for data that its suite
    has not judged yet, one pod of the role `prepare` is launched and awaited, as in LearnerOperator.
    """

    ui_color = "#e6f4ea"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(role=PREPARE_ROLE, **kwargs)

    def execute(self, context: Context) -> None:
        """Look at every source, launch the pod if one is needed, and record the trees."""
        with ends_job(self.services, context, FailureClass.DATA, must_run=True) as job:
            if self.services.ledger.attempts.current(job.id, TRAIN_ROLE) is not None:  # a user cleared this task
                self.log.info("The learners were launched with what was staged before; that stays")
                return
            self._stage(context, job)

    def finished(self, context: Context, event: dict[str, Any]) -> None:
        """Continue after GangTrigger: record the trees that the pod made."""
        with ends_job(self.services, context, FailureClass.DATA, must_run=True) as job:
            self._stage(context, job)

    def _stage(self, context: Context, job: Job) -> None:
        manifest = manifest_of(job)
        plan = prepare.recorded(self.services, job) or self._plan(context, job, manifest)
        staged = dict(plan.known)
        if plan.requests:
            self._go_on(context, job, manifest, PREPARE_COMMAND)
            staged |= _made(self.services, job, plan)
        code = staged.get(CODE)
        data = [self._input(job, manifest, n, item, staged) for n, item in enumerate(manifest.data)]
        self.services.ledger.jobs.set_inputs(job.id, code.tree_sha256 if code else None, data)
        environment = self._environment(context, job, manifest)
        init = init_from.resolve(self.services, job, manifest)
        total = sum(d["bytes"] for d in data)
        files = sum(d["files"] for d in data)
        evidence: dict[str, Any] = {"code": code.tree_sha256 if code else None, "data": [d["tree"] for d in data]}
        if environment:
            evidence["environment"] = environment.tree
        if init:
            self.log.info("Begins with %s", init.reason)
            evidence["init_from"] = init.reason
        advance(self.services, job.id, State.DEPLOYING, f"staged {files} data file(s), {total / 1e6:.1f} MB", evidence)
        self._lineage(job, code, data, environment, init)

    def _environment(self, context: Context, job: Job, manifest: Manifest) -> JobEnvironment | None:
        """Have the job's packages built, once the code is in the store; return what the programs get."""
        if manifest.environment is None:
            return None
        self._check_node_cache(job, "environment", needed=False)
        job = self.services.ledger.jobs.get(job.id)  # its code is recorded by now
        found = environments.recorded(self.services, job.id) or environments.reuse(self.services, job)
        if found is None:
            self.role = BUILD_ROLE  # the second role of this task; deferring names it to the trigger
            self._go_on(context, job, manifest, environments.BUILD_COMMAND)
            found = environments.record_built(self.services, job)
        count = len(found.packages)
        self.log.info("Environment of %d packages, tree %s%s", count, found.tree, ", reused" if found.reused else "")
        return found

    def _told(self, job: Job, attempt: Attempt) -> str | None:
        from updraft.storage import environments as built
        from updraft.storage.prepared import reason_of

        if self.role == BUILD_ROLE:
            return built.reason_of(job.tenant, job.id, attempt.number, store=self.services.store)
        return reason_of(job.tenant, job.id, attempt.number, store=self.services.store)

    # --- what the store has, and what the pod has to do -------------------------------------------------------------

    def _plan(self, context: Context, job: Job, manifest: Manifest) -> PreparePlan:
        """Look at every source. A plan that asks for a pod is recorded, so that each launch asks for the same."""
        stop_if_over(self.services, context, job.id)
        known: dict[str, Staged] = {}
        requests: list[SourceRequest] = []
        if manifest.code is not None:
            source, limit = str(manifest.code), self.services.settings.code_limit_bytes
            self._check_local("code", source)
            found = self._look(context, job, CODE, source, limit, manifest.code_secret)
            self._sort(found, CODE, known, requests)
        for number, item in enumerate(manifest.data):
            if item.parsed().kind != "pvc":
                self._plan_data(context, job, data_name(number), item, known, requests)
        plan = PreparePlan(known, tuple(requests))
        return prepare.record(self.services, job, plan) if requests else plan

    def _plan_data(
        self,
        context: Context,
        job: Job,
        name: str,
        item: Data,
        known: dict[str, Staged],
        requests: list[SourceRequest],
    ) -> None:
        from updraft_data.suite import suite_digest

        self._check_local("data.source", item.source)
        limit = prepare.data_limit_bytes(self.services.settings, item)
        if item.needs_node_cache or item.how == "stream":
            self._check_node_cache(job, f"data.mode: {item.source}", needed=item.needs_node_cache)
        found = self._look(context, job, name, item.source, limit, item.secret, stream=item.how == "stream")
        suite = None if item.expectations is None else _suite_of(item)
        digest = None if suite is None else suite_digest(suite, item.format)
        if isinstance(found, SourceRequest):
            if digest is not None:
                found = replace(
                    found, format=item.format, judged=self.services.ledger.validations.judged(job.tenant, digest)
                )
        else:
            if found.files == 0:
                raise DataError(f"data.source: {item.source} holds no files; upload the data or correct the source")
            if (
                digest is not None
                and self.services.ledger.validations.get(job.tenant, found.tree_sha256, digest) is None
            ):
                tree = found.tree_sha256
                requests.append(SourceRequest(name, item.source, "tree", limit, tree=tree, format=item.format))
        self._sort(found, name, known, requests)

    @staticmethod
    def _sort(
        found: Staged | SourceRequest, name: str, known: dict[str, Staged], requests: list[SourceRequest]
    ) -> None:
        if isinstance(found, SourceRequest):
            requests.append(found)
        else:
            known[name] = found

    def _look(
        self,
        context: Context,
        job: Job,
        name: str,
        source: str,
        limit_bytes: int,
        secret: str | None,
        *,
        stream: bool = False,
    ) -> Staged | SourceRequest:
        from updraft.storage import Staged, look

        credentials: Mapping[str, str] | None = None
        if secret and name != CODE:  # a secret for git is used by the pod alone
            from updraft.kubernetes.secrets import read_secret

            credentials = read_secret(self.services.core, self.services.settings.namespace(job.tenant), secret)

        def progress(line: str) -> None:
            self.log.info(line)
            stop_if_over(self.services, context, job.id)

        progress(f"Staging {source}")
        found = look(
            source,
            self.services.content(job.tenant),
            name=name,
            settings=self.services.settings,
            limit_bytes=limit_bytes,
            credentials=credentials,
            secret_name=secret,
            progress=progress,
            stream=stream,
        )
        if isinstance(found, Staged):
            self._say_staged(source, found)
        else:
            self.log.info("%s is prepared by a pod of the job", source)
        return found

    def _say_staged(self, source: str, staged: Staged) -> None:
        self.log.info(
            "Staged %s: %d files, %.1f MB, tree %s", source, staged.files, staged.bytes / 1e6, staged.tree_sha256
        )

    def _check_node_cache(self, job: Job, field: str, *, needed: bool) -> None:
        """Raise RefusedError for a cache that cannot be used: pods that name it would never start."""
        from updraft.kubernetes.pod_needs import why_no_node_cache

        settings = self.services.settings
        if settings.node_cache_claim is None and not needed:
            return
        problem = why_no_node_cache(self.services.core, settings.namespace(job.tenant), settings.node_cache_claim)
        if problem is not None:
            raise RefusedError(f"{field}: {problem}")

    def _check_local(self, field: str, source: str) -> None:
        """Refuse a worker's own folders unless the platform's operator has opened them to manifests."""
        parsed = parse_source(source, git=True)
        if parsed.kind != "local":
            return
        path = Path(parsed.path).expanduser().resolve()
        if not any(path.is_relative_to(root.resolve()) for root in self.services.settings.local_sources):
            raise RefusedError(
                f"{field}: {source!r} is a folder of the worker, which this platform does not read; submit with "
                "`updraft submit`, which uploads local folders, or use s3:// or git+https://"
            )

    # --- what the job uses ------------------------------------------------------------------------------------------

    def _input(
        self, job: Job, manifest: Manifest, number: int, item: Data, staged: Mapping[str, Staged]
    ) -> dict[str, Any]:
        if item.parsed().kind == "pvc":
            return self._claimed(job, manifest, item)
        found = staged[data_name(number)]
        part = data_versions.increment(self.services, job, manifest, item, found) if item.increment else found
        record = {
            "source": item.source,
            "mount": item.mount,
            "tree": part.tree_sha256,
            "files": part.files,
            "bytes": part.bytes,
            "provenance": dict(part.provenance),
        }
        if part is not found:
            record["whole"] = found.tree_sha256
            self.log.info("%s: %d of %d files are new since the champion", item.source, part.files, found.files)
        if item.how != "copy":
            record["mode"] = item.how
        if item.is_listed:
            record |= {"bucket": item.parsed().bucket, "secret": item.secret}
        return record

    def _claimed(self, job: Job, manifest: Manifest, item: Data) -> dict[str, Any]:
        """Return the record of a data set on a claim. Nothing is copied: the volume is all that is known of the
        data."""
        from updraft.kubernetes.claims import read_claim

        source = item.parsed()
        namespace = self.services.settings.namespace(job.tenant)
        found = read_claim(self.services.core, namespace, source.claim, manifest.resources.learners)
        uid, volume = found["metadata"]["uid"], (found.get("spec") or {}).get("volumeName", "")
        self.log.info("%s: claim %s, volume %s; mounted as it is", item.source, uid, volume)
        return {
            "source": item.source,
            "mount": item.mount,
            "tree": f"claim {uid}",
            "files": 0,
            "bytes": 0,
            "claim": source.claim,
            "path": source.key,
            "provenance": {"source": item.source, "claim_uid": uid, "volume": volume},
        }

    def _lineage(
        self,
        job: Job,
        code: Staged | None,
        data: list[dict[str, Any]],
        environment: JobEnvironment | None,
        init: InitFrom | None,
    ) -> None:
        from updraft import tracking

        job = self.services.ledger.jobs.get(job.id)  # with its inputs
        self.lineage = Lineage(inputs=trained_on(job), tags=facts_of(job))
        if not job.mlflow_run_id:
            return
        tags = {"updraft.code_tree": code.tree_sha256 if code else ""}
        if code:
            tags |= {f"updraft.code.{key}": str(value) for key, value in code.provenance.items()}
        if environment:
            tags |= {"updraft.environment_tree": environment.tree, "updraft.environment_lock": environment.lock_sha256}
        if init:
            tags["updraft.init_from"] = init.reason
        client = self.services.tracking
        tracking.set_tags(client, job.mlflow_run_id, tags)
        tracking.log_datasets(client, job.mlflow_run_id, data)
        if environment:
            lock = environments.lock_of(self.services, job, environment)
            document = {"sha256": environment.lock_sha256, "tree": environment.tree, "lock": lock}
            tracking.log_json(client, job.mlflow_run_id, LOCK_ARTIFACT, document)


class ValidateOperator(UsesServices, BaseOperator):
    """End the job if its data does not meet its suites of expectations, or if its schedule asks for drift and there is
    none.

    Before that, the result for each data set is recorded with the data's fingerprint, so that the same suite does not
    judge the same data again.
    """

    operator_extra_links = LINKS
    ui_color = "#e6f4ea"

    def execute(self, context: Context) -> None:
        """Check the verdict on every data set that has a suite. Raises EndTaskError if one is not met."""
        with ends_job(self.services, context, FailureClass.DATA) as job:
            manifest = manifest_of(job)
            failed: list[str] = []
            judged: list[str] = []
            for number, (item, staged) in enumerate(zip(manifest.data, job.data or (), strict=True)):
                if item.expectations is None:
                    self.log.info("%s: no expectations", item.source)
                    continue
                stop_if_over(self.services, context, job.id)
                failed += self._validate(job, data_name(number), item, staged)
                judged.append(item.source)
            if failed:
                raise DataError(f"the data does not meet {len(failed)} expectation(s): " + "; ".join(failed))
            reason = "data is valid" if judged else "the manifest asks for no check of its data"
            advance(self.services, job.id, State.DEPLOYING, reason, {"judged": judged})
            if (why := drift.why_not_needed(self.services, job, manifest)) is not None:
                raise AirflowSkipException(why)

    def _validate(self, job: Job, name: str, item: Data, staged: Mapping[str, Any]) -> list[str]:
        from updraft_data.suite import suite_digest

        fingerprint, digest = data_versions.whole_tree(staged), suite_digest(_suite_of(item), item.format)
        known = self.services.ledger.validations.get(job.tenant, fingerprint, digest)
        if known is None:
            known = self._reported(job, name, item, fingerprint, digest)
        else:
            self.log.info("%s: unchanged since it was judged at %s; not judged again", item.source, known.at)
        if known.success:
            return []
        texts = known.result.get("failed") or ["does not meet its suite"]
        return [f"{item.source}: {text}" for text in texts]

    def _reported(self, job: Job, name: str, item: Data, fingerprint: str, digest: str) -> Validation:
        """Return what the job's pod says of this very data, recorded. Raises what it could not judge, as an error."""
        report = prepared_of(self.services, job).report
        judgement = report.judged.get(name) if report is not None else None
        if judgement is not None and judgement.tree == fingerprint:
            if judgement.error is not None:
                raise judgement.error.error()
            if judgement.result is not None:
                result = judgement.result.verdict()
                self.log.info("%s: %d expectations evaluated", item.source, result.evaluated)
                for warning in result.warnings:
                    self.log.warning("%s: %s", item.source, warning)
                return self.services.ledger.validations.record(
                    job.tenant, fingerprint, digest, success=result.success, result=result.to_json()
                )
        raise NotFoundError(f"{item.source} was staged, but not judged; clear the task stage_data to have it judged")


def prepared_of(services: Services, job: Job) -> Prepared:
    """Return what the job's `prepare` pod reported. Raises UpdraftError for a report that is missing or unreadable."""
    from updraft.storage.prepared import Prepared, read_prepared

    attempt = services.ledger.attempts.current(job.id, PREPARE_ROLE)
    if attempt is None:
        return Prepared()
    found = read_prepared(job.tenant, job.id, attempt.number, store=services.store)
    if found is None:
        raise UpdraftError(f"attempt {attempt.number} of prepare left no word of its trees; submit the job again")
    return found


def _made(services: Services, job: Job, plan: PreparePlan) -> dict[str, Staged]:
    """Return the trees that the pod made of what was not known. Raises the pod's own reason where it made none."""
    from updraft.storage import Staged
    from updraft.storage.sources import staged_of

    prepared = prepared_of(services, job)
    if prepared.error is not None:
        raise prepared.error.error()
    content = services.content(job.tenant)
    made: dict[str, Staged] = {}
    for request in plan.requests:
        if request.name in plan.known:
            continue
        found = prepared.sources.get(request.name)
        if found is None:
            raise UpdraftError(f"{request.source}: the pod that prepares it left no tree of it; submit the job again")
        provenance = found.provenance.model_dump(exclude_none=True)
        if request.stream:
            listing = content.get_listing(found.tree)
            origin = {"source": request.source, **provenance}
            made[request.name] = Staged(found.tree, len(listing.objects), listing.size_bytes, origin)
        else:
            made[request.name] = staged_of(request.source, content.get_tree(found.tree), **provenance)
    return made


def _suite_of(item: Data) -> Mapping[str, Any]:
    suite = item.expectations
    if not isinstance(suite, Mapping):
        raise RefusedError(
            f"data.expectations: {suite!r} is a file that was not sent along; submit with `updraft submit`, or "
            "write the suite itself into the manifest"
        )
    return suite
