"""Export a job's results afterwards: in a new job that begins with the stored results of a job that has ended.

A final state is never left, so the ended job does not change. The new job has the given manifest, or that of the ended
job. Instead of the program, it copies the stored results into RESULT_DIR and repeats the last metrics. Evaluation,
export, registration and promotion follow as in every job.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from updraft.client.client import Client, Job
from updraft.client.submission import ask_platform, base_folder, pack, read_manifest, start, upload_sources
from updraft.client.transfer import upload_tree
from updraft.exceptions import DataError, RefusedError
from updraft.manifest import Manifest
from updraft.schemas import TreeBody

if TYPE_CHECKING:
    from updraft.client.transfer import OnProgress

ENDS = ("COMPLETED", "FAILED", "CANCELLED")
MOUNT = ".updraft-source"
COMMAND = (
    f'cp -R "$DATA_DIR"/{MOUNT}/results/. "$RESULT_DIR"/ && cat "$DATA_DIR"/{MOUNT}/metrics.jsonl '
    '>> "$UPDRAFT_METRICS_FILE"'
)
_LEARNER = re.compile(r"learner-(\d+)")
_RESULT = re.compile(r"learner-\d+/.")
_MODEL = re.compile(r"learner-\d+/model/(model\.json|MLmodel)")


def export_again(
    client: Client, job_id: str, manifest: Path | None = None, *, on_progress: OnProgress | None = None
) -> Job:
    """Start a job that evaluates, exports, registers and promotes what `job_id` stored; returns the new job.

    Without `manifest`, by that job's own. Raises RefusedError when that job has not ended or the manifest has neither
    `export` nor `evaluate`, DataError when it stored no model and there is an `export`, or nothing at all.
    """
    job = client.job(job_id)
    loaded = read_manifest(client.manifest(job_id) if manifest is None else manifest)
    if loaded.manifest.export is None and loaded.manifest.evaluate is None:
        whose = f"the manifest of job {job_id}" if manifest is None else manifest
        raise RefusedError(
            f"{whose} has neither `export` nor `evaluate`; add what is to be done with the results and name the file: "
            f"`updraft export {job_id} MANIFEST`"
        )
    if job.state not in ENDS:
        raise RefusedError(f"job {job_id} is {job.state}; what its manifest asks for follows when its training is done")
    _check_stored(client, job_id, loaded.manifest)
    health = client.check_health()
    ask_platform(client, loaded.manifest)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="updraft-export-")))
        client.download(job_id, "results", folder / "stored")
        source = lay_out(folder, client.metrics(job_id).last)
        tree, blobs = pack("results", source, health.limits.data_bytes, stack)
        body = TreeBody.model_validate(json.loads(tree.to_json()))
        upload_tree(client.http, loaded.manifest.tenant, tree.sha256, body, blobs, on_progress, "results")
    ready = upload_sources(client, loaded.manifest, base_folder(manifest or {}, None), health.limits, on_progress)
    for name, values in loaded.secrets.items():
        client.set_secret(name, dict(values), tenant=loaded.manifest.tenant)
    started = start(client, from_results(ready, job_id, tree.sha256), None, loaded.warnings)
    return Job(started.id, client, started.warnings, started.existed)


def _check_stored(client: Client, job_id: str, manifest: Manifest) -> None:
    files = client.files(job_id, "results").files
    if not any(_RESULT.match(file.path) for file in files):
        raise DataError(
            f"job {job_id} stored no results: its program wrote nothing to RESULT_DIR. Its checkpoints can be "
            f"downloaded (`updraft download {job_id} checkpoint:latest`)"
        )
    if manifest.export is not None and not any(_MODEL.fullmatch(file.path) for file in files):
        raise DataError(
            f"job {job_id} stored no model: its program did not call save_model. Its other results and checkpoints can "
            f"be downloaded (`updraft download {job_id} results`, or `checkpoint:latest`)"
        )


def lay_out(folder: Path, last: Mapping[str, float | None]) -> Path:
    """Make one folder of what each learner stored, the lowest learner's files first, and the run's last metrics."""
    learners = {int(m[1]): path for path in (folder / "stored").iterdir() if (m := _LEARNER.fullmatch(path.name))}
    source = folder / "source"
    for number in sorted(learners, reverse=True):
        shutil.copytree(learners[number], source / "results", dirs_exist_ok=True)
    metrics = {
        name: value
        for name, value in last.items()
        if value is not None and math.isfinite(value) and not name.startswith("system/")
    }
    line = json.dumps({"t": time.time(), "step": 0, "metrics": metrics})
    (source / "metrics.jsonl").write_text(f"{line}\n", encoding="utf-8")
    return source


def from_results(manifest: Manifest, job_id: str, tree: str) -> Manifest:
    """Return the manifest with the copying of the stored results in place of its program."""
    raw = manifest.canonical()
    raw["command"] = COMMAND
    kept = [item for item in raw["data"] if item.get("as") != MOUNT]  # the ended job may itself be such a job
    raw["data"] = [*kept, {"source": f"tree:{tree}", "as": MOUNT}]
    raw["resources"] = {**raw["resources"], "learners": 1}
    raw["annotations"] = {**raw["annotations"], "exported_from": job_id}
    for field in ("checkpoints", "failures", "schedule"):
        raw.pop(field)
    return Manifest.model_validate(raw)
