"""Start a DAG run from a manifest on this machine: read, check, ask for the platform's health, pack, upload, start.

The run is started only after everything is uploaded: a submission that stops before leaves only blobs behind, which the
next one uses.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from updraft.client.code_scan import export_warning
from updraft.client.http import ConflictError, InvalidRequestError
from updraft.client.transfer import upload_tree
from updraft.exceptions import DataError, RefusedError, UnavailableError
from updraft.lifecycle import is_job_id
from updraft.lifecycle import job_id as new_job_id
from updraft.lifecycle.names import JOB_ID_LENGTH
from updraft.manifest import (
    Loaded,
    Manifest,
    ManifestError,
    load_any,
    local_sources,
    parse,
    parse_any,
    refuse_unsupported,
    with_files,
    with_params,
    with_trees,
)
from updraft.schemas import NOT_NEEDED_TO_SUBMIT, PART_TITLES, Health, Limits, TreeBody
from updraft_learner import trees

if TYPE_CHECKING:
    from updraft.client.client import Client

    OnProgress = Callable[[str, int, int], None]

START_ATTEMPTS = 3  # a busy Airflow may not answer within the timeout of one request


@dataclass(frozen=True)
class Started:
    """A job that Airflow has accepted; see `updraft.client.Job`."""

    id: str
    warnings: tuple[str, ...] = ()
    existed: bool = False


def submit(
    client: Client,
    manifest: str | Path | Mapping[str, Any],
    *,
    job_id: str | None,
    base: Path | None,
    on_progress: OnProgress | None,
    params: Mapping[str, str] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Started:
    """See `Client.submit`."""
    if job_id is not None and not is_job_id(job_id):
        raise RefusedError(
            f"id: {job_id!r} is not allowed; it names pods, so use at most {JOB_ID_LENGTH} of a-z, 0-9 and '-', "
            "beginning with a letter and ending with a letter or digit"
        )
    loaded = read_manifest(manifest, base)
    if params:
        changed = parse(with_params(loaded.manifest.given(), params), source="--params")
        loaded = replace(loaded, manifest=changed)
    folder = base_folder(manifest, base)
    health = client.check_health(on_wait)
    ask_platform(client, loaded.manifest, secrets=loaded.secrets)
    ready = upload_sources(client, loaded.manifest, folder, health.limits, on_progress)
    for name, values in loaded.secrets.items():
        client.set_secret(name, dict(values), tenant=loaded.manifest.tenant)
    return start(client, ready, job_id, (*loaded.warnings, *told_later(health)))


def told_later(health: Health) -> tuple[str, ...]:
    """Return what the job's submitter is to know of parts that are away and that accepting it does not need."""
    away = [part for part in health.parts if not part.ok and part.name in NOT_NEEDED_TO_SUBMIT]
    return tuple(
        f"{PART_TITLES[part.name]} does not answer ({part.detail}); the job is accepted and begins once it does"
        for part in away
    )


def read_manifest(manifest: str | Path | Mapping[str, Any], base: Path | None = None) -> Loaded:
    """Return the manifest with local files checked and expectations read in. Raises ManifestError, also for values that
    this version does not act on; whether the tenant exists is for the platform to say."""
    if isinstance(manifest, Mapping):
        loaded = parse_any(manifest, base)
    else:
        loaded = load_any(manifest)
        if base is not None:
            loaded = replace(loaded, manifest=with_files(loaded.manifest, base))
    source = "manifest" if isinstance(manifest, Mapping) else Path(manifest).name
    if errors := refuse_unsupported(loaded.manifest, tenants=(loaded.manifest.tenant,)):
        raise ManifestError(errors, source)
    if loaded.manifest.schedule is not None:
        once = "schedule: a submitted job runs once, now; put its folder below jobs/ for a DAG that runs by its cron"
        loaded = replace(loaded, warnings=(*loaded.warnings, once))
    if code := local_sources(loaded.manifest).get("code"):
        forgotten = export_warning(loaded.manifest, base_folder(manifest, base) / code)
        loaded = replace(loaded, warnings=(*loaded.warnings, *([forgotten] if forgotten else [])))
    return loaded


def base_folder(manifest: str | Path | Mapping[str, Any], base: Path | None) -> Path:
    if base is not None:
        return base
    if isinstance(manifest, Path) or (isinstance(manifest, str) and "\n" not in manifest):
        return Path(manifest).parent
    return Path.cwd()


def ask_platform(client: Client, manifest: Manifest, *, secrets: Iterable[str] = ()) -> None:
    """Let the platform check what only it knows: tenants, images, nodes, data, and secrets other than those about to be
    made. Raises InvalidRequestError."""
    answer = client.possible(manifest.given(), secrets=secrets)
    if not answer.valid:
        fields = tuple((error.field, error.message) for error in answer.errors)
        raise InvalidRequestError("the platform refuses the manifest; nothing was submitted", fields)


def upload_sources(
    client: Client, manifest: Manifest, folder: Path, limits: Limits, on_progress: OnProgress | None
) -> Manifest:
    """Return the manifest with each local source replaced by the tree that was uploaded of it."""
    uploaded: dict[str, str] = {}
    with ExitStack() as stack:
        packed = {}
        for field, path in local_sources(manifest).items():
            limit_bytes = limits.code_bytes if field == "code" else limits.data_bytes
            packed[field] = pack(field, folder / path, limit_bytes, stack)
        for field, (tree, sources) in packed.items():
            body = TreeBody.model_validate(json.loads(tree.to_json()))
            upload_tree(client.http, manifest.tenant, tree.sha256, body, sources, on_progress, field)
            uploaded[field] = tree.sha256
    return with_trees(manifest, uploaded)


def pack(field: str, path: Path, limit_bytes: int, stack: ExitStack) -> tuple[trees.Tree, dict[str, Path]]:
    """Return the tree of a code folder, a code archive, a data folder or a data file, and where its blobs lie.

    An archive is unpacked into a folder that lives as long as `stack`. Raises DataError naming the field.
    """
    try:
        if path.is_file() and field != "code":
            tree, blobs = _one_file(path, limit_bytes)
        else:
            source = path
            if path.is_file():
                unpacked = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="updraft-code-")))
                source = trees.from_zip(path, unpacked, limit_bytes=limit_bytes)
            tree, blobs = trees.scan(source, limit_bytes=limit_bytes, default_ignores=field == "code")
    except trees.TreeError as exc:
        raise DataError(f"{field}: {exc}") from exc
    except OSError as exc:
        raise DataError(f"{field}: {exc.filename or path} cannot be read ({exc.strerror})") from exc
    if not tree.files:
        raise DataError(f"{field}: {path} holds no file that is not ignored; nothing would be uploaded")
    return tree, blobs


def _one_file(path: Path, limit_bytes: int) -> tuple[trees.Tree, dict[str, Path]]:
    size_bytes = path.stat().st_size
    if size_bytes > limit_bytes:
        raise trees.TreeError(f"{path} has {size_bytes} bytes; the limit is {limit_bytes}")
    digest, size_bytes = trees.hash_file(path)
    return trees.Tree((trees.TreeFile(path.name, digest, size_bytes),)), {digest: path}


def start(client: Client, manifest: Manifest, job_id: str | None, warnings: tuple[str, ...]) -> Started:
    chosen = job_id or new_job_id(manifest.name, datetime.now(UTC), secrets.token_bytes(8))
    conf = {"manifest": manifest.given()}
    dag_id = client.dag_for(chosen, manifest.name, manifest.tenant)
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            client.trigger(chosen, conf, dag_id)
        except ConflictError:
            if not _same(client.run_conf(chosen), conf):
                raise RefusedError(
                    f"id: {chosen!r} is the id of a job with another manifest; choose another id, or none"
                ) from None
            return Started(chosen, warnings, existed=attempt == 1)
        except UnavailableError as exc:
            # Airflow may have started the run although its answer was lost; asking again with the same id is harmless.
            try:
                taken = _same(client.run_conf(chosen), conf)
            except UnavailableError:
                raise UnavailableError(
                    f"{exc}; whether job {chosen} was accepted is not known: submit with --id {chosen}"
                ) from exc
            if not taken and attempt == START_ATTEMPTS:
                raise
            if not taken:
                continue
        except InvalidRequestError as exc:
            raise InvalidRequestError(f"Airflow refuses the run: {exc}", exc.fields) from exc
        break
    return Started(chosen, warnings)


def _same(found: Mapping[str, Any] | None, conf: Mapping[str, Any]) -> bool:
    def text(value: object) -> str:
        return json.dumps(value, sort_keys=True)

    return found is not None and text(found.get("manifest")) == text(conf["manifest"])
