"""Bring code and data into the content store, then judge the data before a learner starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from updraft.exceptions import DataError, RefusedError
from updraft.guardian.records import ledger, manifest_of
from updraft.lifecycle import State
from updraft.manifest import parse_source
from updraft.operators.job import advance, ends_job, stop_if_over
from updraft.operators.links import LINKS
from updraft.recovery.outcome import Cause
from updraft.settings import settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Job
    from updraft.manifest import Data, Manifest
    from updraft.storage import Staged


class StageOperator(BaseOperator):
    """Turns every source of the manifest into a tree of the content store, and records which.

    What is in the store already is not fetched again; sources that have not changed are not even read.
    """

    operator_extra_links = LINKS
    ui_color = "#e6f4ea"

    def execute(self, context: Context) -> None:
        with ends_job(context, Cause.DATA) as job:
            manifest = manifest_of(job)
            code = self._stage_code(context, job, manifest) if manifest.code else None
            data = [self._stage_data(context, job, manifest, item) for item in manifest.data]
            ledger().set_inputs(job.id, code.tree_sha256 if code else None, data)
            total = sum(d["bytes"] for d in data)
            files = sum(d["files"] for d in data)
            evidence = {"code": code.tree_sha256 if code else None, "data": [d["tree"] for d in data]}
            advance(job.id, State.DEPLOYING, f"staged {files} data file(s), {total / 1e6:.1f} MB", evidence)
            self._lineage(job, code, data)

    def _stage_code(self, context: Context, job: Job, manifest: Manifest) -> Staged:
        source = str(manifest.code)
        self._check_local("code", source)
        return self._stage(context, job, source, settings().code_limit_bytes, manifest.code_secret)

    def _stage_data(self, context: Context, job: Job, manifest: Manifest, item: Data) -> dict[str, Any]:
        if item.parsed().kind == "pvc":
            return self._claimed(job, manifest, item)
        self._check_local("data.source", item.source)
        limit = min(item.limit_bytes or settings().data_limit_bytes, settings().data_limit_bytes)
        staged = self._stage(context, job, item.source, limit, item.secret)
        if staged.files == 0:
            raise DataError(f"data.source: {item.source} holds no files; upload the data or correct the source")
        return {
            "source": item.source,
            "mount": item.mount,
            "tree": staged.tree_sha256,
            "files": staged.files,
            "bytes": staged.bytes,
            "provenance": dict(staged.provenance),
        }

    def _claimed(self, job: Job, manifest: Manifest, item: Data) -> dict[str, Any]:
        """Nothing is copied: which volume it was is all that is known of the data."""
        from updraft.kubernetes.claims import read_claim
        from updraft.kubernetes.secrets import core_api

        source = item.parsed()
        found = read_claim(
            core_api(settings()), settings().namespace(job.tenant), source.claim, manifest.resources.learners
        )
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

    def _stage(self, context: Context, job: Job, source: str, limit_bytes: int, secret: str | None) -> Staged:
        from updraft.storage import content_store, stage_source

        credentials: Mapping[str, str] | None = None
        if secret:
            from updraft.kubernetes.secrets import read_secret

            credentials = read_secret(settings(), job.tenant, secret)

        def progress(line: str) -> None:
            self.log.info(line)
            stop_if_over(context, job.id)

        progress(f"Staging {source}")
        staged = stage_source(
            source,
            content_store(job.tenant),
            settings=settings(),
            limit_bytes=limit_bytes,
            credentials=credentials,
            secret_name=secret,
            progress=progress,
        )
        self.log.info(
            "Staged %s: %d files, %.1f MB, tree %s", source, staged.files, staged.bytes / 1e6, staged.tree_sha256
        )
        return staged

    def _check_local(self, field: str, source: str) -> None:
        """A worker's own folders are open to manifests only where an operator of the platform says so."""
        parsed = parse_source(source, git=True)
        if parsed.kind != "local":
            return
        path = Path(parsed.path).expanduser().resolve()
        if not any(path.is_relative_to(root.resolve()) for root in settings().local_sources):
            raise RefusedError(
                f"{field}: {source!r} is a folder of the worker, which this platform does not read; submit with "
                "`updraft submit`, which uploads local folders, or use s3:// or git+https://"
            )

    def _lineage(self, job: Job, code: Staged | None, data: list[dict[str, Any]]) -> None:
        from updraft import tracking

        if not job.mlflow_run_id:
            return
        tags = {"updraft.code_tree": code.tree_sha256 if code else ""}
        if code:
            tags |= {f"updraft.code.{key}": str(value) for key, value in code.provenance.items()}
        client = tracking.client()
        tracking.set_tags(client, job.mlflow_run_id, tags)
        tracking.log_datasets(client, job.mlflow_run_id, data)


class ValidateOperator(BaseOperator):
    """Runs each data source's Great Expectations suite; a verdict is kept with the data's fingerprint.

    Data that was judged by the same suite before is not judged again, and Great Expectations is not imported.
    """

    operator_extra_links = LINKS
    ui_color = "#e6f4ea"

    def execute(self, context: Context) -> None:
        with ends_job(context, Cause.DATA) as job:
            manifest = manifest_of(job)
            failed: list[str] = []
            judged: list[str] = []
            for item, staged in zip(manifest.data, job.data or (), strict=True):
                if item.expectations is None:
                    self.log.info("%s: no expectations", item.source)
                    continue
                stop_if_over(context, job.id)
                failed += self._validate(job, item, staged)
                judged.append(item.source)
            if failed:
                raise DataError(f"the data does not meet {len(failed)} expectation(s): " + "; ".join(failed))
            reason = "data is valid" if judged else "the manifest asks for no check of its data"
            advance(job.id, State.DEPLOYING, reason, {"judged": judged})

    def _validate(self, job: Job, item: Data, staged: Mapping[str, Any]) -> list[str]:
        from updraft.validation import suite_digest

        suite = item.expectations
        if not isinstance(suite, Mapping):
            raise RefusedError(
                f"data.expectations: {suite!r} is a file that was not sent along; submit with `updraft submit`, or "
                "write the suite itself into the manifest"
            )
        fingerprint, digest = staged["tree"], suite_digest(suite, item.format)
        known = ledger().validation(job.tenant, fingerprint, digest)
        if known is None:
            from updraft.storage import content_store
            from updraft.validation import validate_stored

            self.log.info("Validating %s", item.source)
            store = content_store(job.tenant)
            result = validate_stored(store.fetch, store.get_tree(fingerprint), suite, format=item.format)
            known = ledger().record_validation(
                job.tenant, fingerprint, digest, success=result.success, result=result.to_json()
            )
            self.log.info("%s: %d expectations evaluated", item.source, result.evaluated)
            for warning in result.warnings:
                self.log.warning("%s: %s", item.source, warning)
        else:
            self.log.info("%s: unchanged since it was judged at %s; not judged again", item.source, known.at)
        if known.success:
            return []
        texts = known.result.get("failed") or ["does not meet its suite"]
        return [f"{item.source}: {text}" for text in texts]
