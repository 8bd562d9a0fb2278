"""Turns a source (s3://, git+https://, zip, local folder, tree) into a tree of the content store.

Staging the same source again fetches only what changed: the last listing of a bucket is kept with the digests that its
objects had. Called by the staging operator. What a worker may read of its own disk is the caller's decision.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic_core import PydanticCustomError

from updraft.exceptions import DataError
from updraft.manifest.errors import filled
from updraft.manifest.sources import Source, parse_source
from updraft.settings import Settings
from updraft.settings import settings as process_settings
from updraft.storage import git
from updraft.storage.content import ContentStore
from updraft.storage.errors import tree_errors
from updraft.storage.remote import stage_bucket
from updraft.storage.staged import Staged, check_limit
from updraft_learner import trees
from updraft_learner.trees import Tree, megabytes

LIMIT_FILES = 200_000


def stage_source(
    source: str,
    content: ContentStore,
    *,
    limit_bytes: int,
    settings: Settings | None = None,
    credentials: Mapping[str, str] | None = None,
    secret_name: str | None = None,
    progress: Callable[[str], None] | None = None,
    base: Path | None = None,
    unpack_zip: bool = True,
    allow_file_git: bool = False,
) -> Staged:
    """Stages `source` and returns what it became.

    Args:
        credentials: content of the secret named `secret_name`; without it, the platform's own access to its store.
        progress: gets lines for people.
        base: what relative local paths are relative to.
        unpack_zip: whether a source that is one `.zip` file is unpacked; name its folder to get it as it is.
        allow_file_git: allow `git+file://`, for repositories on the worker's disk.

    Raises:
        DataError, LimitError, NotFoundError, UnavailableError: with a sentence for the job's reason.
    """
    say = progress or (lambda line: None)
    parsed = _parse(source)
    if parsed.kind == "tree":
        return _known_tree(source, parsed.tree, content, limit_bytes)
    with tempfile.TemporaryDirectory(prefix="updraft-stage-") as temporary:
        work = Path(temporary)
        unpack = unpack_zip and parsed.is_archive
        if parsed.kind == "s3":
            staged = stage_bucket(
                source,
                parsed,
                content,
                limit_bytes=limit_bytes,
                limit_files=LIMIT_FILES,
                settings=settings or process_settings(),
                credentials=credentials,
                secret_name=secret_name,
                say=say,
            )
            return _unpack_staged(source, parsed, staged, content, work, limit_bytes, say) if unpack else staged
        if parsed.kind == "git":
            protocols = (*git.PROTOCOLS, "file") if allow_file_git else git.PROTOCOLS
            found = git.checkout(
                parsed.url,
                parsed.ref,
                parsed.subfolder,
                work,
                limit_bytes=limit_bytes,
                limit_files=LIMIT_FILES,
                credentials=credentials,
                secret_name=secret_name,
                protocols=protocols,
                say=say,
            )
            staged = _stage_folder(source, found.folder, content, limit_bytes, say)
            return _with(staged, repository=parsed.url, commit=found.commit)
        return _stage_local(source, parsed, content, work, limit_bytes, base, unpack, say)


def _parse(source: str) -> Source:
    try:
        return parse_source(source, git=True)
    except PydanticCustomError as exc:
        fields = [filled(field, "source", value).text for field, value in (exc.context or {}).get("fields", ())]
        raise DataError("; ".join(fields) or "source: cannot be read") from exc


def _known_tree(source: str, digest: str, content: ContentStore, limit_bytes: int) -> Staged:
    tree = content.get_tree(digest)
    check_limit(source, tree.size_bytes, limit_bytes)
    absent = content.missing(tree)
    if absent:
        raise DataError(f"{source}: {len(absent)} of its contents are not in the store; submit again to upload them")
    return _staged(source, tree)


def _stage_local(
    source: str,
    parsed: Source,
    content: ContentStore,
    work: Path,
    limit_bytes: int,
    base: Path | None,
    unpack: bool,
    say: Callable[[str], None],
) -> Staged:
    path = ((base or Path.cwd()) / Path(parsed.path).expanduser()).resolve()
    if path.is_dir():
        return _stage_folder(source, path, content, limit_bytes, say)
    if not path.is_file():
        raise DataError(f"{source}: no such file or folder on the worker; correct the path")
    if unpack:
        return _stage_zip(source, path, content, work, limit_bytes, say)
    check_limit(source, path.stat().st_size, limit_bytes)
    digest, size_bytes = trees.hash_file(path)
    content.put_blob(path, digest)
    tree = Tree((trees.TreeFile(path.name, digest, size_bytes),))
    content.put_tree(tree)
    return _staged(source, tree)


def _unpack_staged(
    source: str,
    parsed: Source,
    staged: Staged,
    content: ContentStore,
    work: Path,
    limit_bytes: int,
    say: Callable[[str], None],
) -> Staged:
    tree = content.get_tree(staged.tree_sha256)
    if len(tree.files) != 1:  # a prefix that happens to end in .zip
        return staged
    content.fetch(tree, work / "download")
    unpacked = _stage_zip(source, work / "download" / tree.files[0].path, content, work, limit_bytes, say)
    return _with(unpacked, **{**staged.provenance, **unpacked.provenance})


def _stage_zip(
    source: str, archive: Path, content: ContentStore, work: Path, limit_bytes: int, say: Callable[[str], None]
) -> Staged:
    with tree_errors(source):
        folder = trees.from_zip(archive, work / "unpacked", limit_bytes=limit_bytes, limit_files=LIMIT_FILES)
    return _with(_stage_folder(source, folder, content, limit_bytes, say), archive_sha256=trees.hash_file(archive)[0])


def _stage_folder(
    source: str, folder: Path, content: ContentStore, limit_bytes: int, say: Callable[[str], None]
) -> Staged:
    with tree_errors(source):
        tree, blobs = trees.scan(folder, limit_bytes=limit_bytes, limit_files=LIMIT_FILES)
    if not tree.files:
        raise DataError(f"{source}: holds no files; correct the path or add files")
    new = content.put_blobs(blobs)
    content.put_tree(tree)
    say(f"{len(tree.files)} files, {megabytes(tree.size_bytes)}; {new} contents are new")
    return _staged(source, tree)


def _staged(source: str, tree: Tree) -> Staged:
    return Staged(tree.sha256, len(tree.files), tree.size_bytes, {"source": source})


def _with(staged: Staged, **provenance: object) -> Staged:
    return replace(staged, provenance={**staged.provenance, **provenance})
