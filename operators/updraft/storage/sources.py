"""Find out whether the content store has a source of code or data already; a pod of the job prepares all others.

It parses no tenant's files, and reads only listings of buckets. The caller decides what a worker may read of its own
disk. Called by the staging operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from updraft.exceptions import DataError
from updraft.manifest.errors import filled
from updraft.manifest.sources import Source, parse_source
from updraft.settings import Settings
from updraft.storage.content import ContentStore
from updraft.storage.errors import platform_errors, source_errors
from updraft.storage.remote import look_at_bucket
from updraft.storage.staged import Staged
from updraft_learner import trees
from updraft_learner.prepare import memory
from updraft_learner.prepare.documents import LIMIT_FILES, SourceRequest
from updraft_learner.prepare.errors import check_limit, tree_errors
from updraft_learner.trees import Tree, megabytes

_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)

Say = Callable[[str], None]


def look(
    source: str,
    content: ContentStore,
    *,
    name: str,
    limit_bytes: int,
    settings: Settings,
    credentials: Mapping[str, str] | None = None,
    secret_name: str | None = None,
    progress: Say | None = None,
    base: Path | None = None,
    unpack_zip: bool = True,
    stream: bool = False,
) -> Staged | SourceRequest:
    """Return what `source` is, if the content store has it as it is now; otherwise what a pod is asked for.

    Args:
        name: of the source in what the pod is asked for.
        credentials: content of the secret named `secret_name`; without it, the platform's own access to its store.
        progress: gets lines for people.
        base: what relative local paths are relative to.
        unpack_zip: whether a source that is one `.zip` file is unpacked; name its folder to get it as it is.
        stream: whether the objects of a bucket are only listed. The result then names the list and not a tree.

    Raises:
        DataError, LimitError, NotFoundError, RefusedError, UnavailableError: with a sentence for the job's reason.
    """
    parsed, say = _parse(source), progress or (lambda line: None)
    wanted = SourceRequest(name, source, "tree", limit_bytes, secret=secret_name)
    listed = stream and parsed.kind == "s3"
    archive = unpack_zip and parsed.is_archive and not listed
    with source_errors():
        if parsed.kind == "tree":
            return _known_tree(source, parsed.tree, content, limit_bytes)
        if parsed.kind == "git":
            return _repository(parsed, wanted, content, settings, secret_name)
        if parsed.kind == "s3":
            wanted = replace(wanted, kind="s3", bucket=parsed.bucket, key=parsed.key, unpack=archive, stream=listed)
            found = look_at_bucket(parsed, wanted, content, settings=settings, credentials=credentials, say=say)
            if found is None:
                return wanted
            if not archive or found.files != 1:  # not an archive: a prefix that happens to end in .zip
                return found
            return _archive(wanted, found, content)
        return _local(source, parsed, wanted, content, base, archive, say)


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
    return staged_of(source, tree)


def _repository(
    parsed: Source, wanted: SourceRequest, content: ContentStore, settings: Settings, secret_name: str | None
) -> Staged | SourceRequest:
    """Return what a repository is staged as, or the request to fetch it. A tag may be moved, and a short commit may
    name more than one commit: both are fetched each time."""
    scheme = urlsplit(parsed.url).scheme
    if scheme not in settings.git_protocols:
        allowed = " or ".join(f"git+{protocol}://" for protocol in settings.git_protocols)
        raise DataError(f"code: git over {scheme!r} is not allowed here; use {allowed}")
    request = replace(wanted, kind="git", url=parsed.url, ref=parsed.ref, subfolder=parsed.subfolder)
    if not _FULL_SHA.fullmatch(parsed.ref):
        return request
    known = _made(memory.commit(parsed.url, parsed.ref, parsed.subfolder), wanted, content)
    return request if known is None else _with(known, repository=parsed.url, commit=parsed.ref)


def _archive(wanted: SourceRequest, packed: Staged, content: ContentStore) -> Staged | SourceRequest:
    """Return what an archive that lies in the content store was unpacked to, if it was."""
    sha256 = content.get_tree(packed.tree_sha256).files[0].sha256
    known = _made(memory.archive(sha256), wanted, content)
    if known is None:
        return wanted
    return _with(known, **{**packed.provenance, "archive_sha256": sha256})


def _made(what: list[str], wanted: SourceRequest, content: ContentStore) -> Staged | None:
    """Return what was made of it before, while all of that is in the store."""
    with platform_errors():
        digest = memory.remembered(content.store, content.keys, what)
    if digest is None or (tree := content.find_tree(digest)) is None or content.missing(tree):
        return None
    check_limit(wanted.source, tree.size_bytes, wanted.limit_bytes)
    return staged_of(wanted.source, tree)


def _local(
    source: str,
    parsed: Source,
    wanted: SourceRequest,
    content: ContentStore,
    base: Path | None,
    archive: bool,
    say: Say,
) -> Staged | SourceRequest:
    path = ((base or Path.cwd()) / Path(parsed.path).expanduser()).resolve()
    if path.is_dir():
        return _folder(source, path, content, wanted.limit_bytes, say)
    if not path.is_file():
        raise DataError(f"{source}: no such file or folder on the worker; correct the path")
    if not archive:
        check_limit(source, path.stat().st_size, wanted.limit_bytes)
    digest, size_bytes = trees.hash_file(path)
    content.put_blob(path, digest)
    tree = Tree((trees.TreeFile(path.name, digest, size_bytes),))
    content.put_tree(tree)
    found = staged_of(source, tree)
    return _archive(replace(wanted, tree=tree.sha256, unpack=True), found, content) if archive else found


def _folder(source: str, folder: Path, content: ContentStore, limit_bytes: int, say: Say) -> Staged:
    with tree_errors(source):
        tree, blobs = trees.scan(folder, limit_bytes=limit_bytes, limit_files=LIMIT_FILES)
    if not tree.files:
        raise DataError(f"{source}: holds no files; correct the path or add files")
    new = content.put_blobs(blobs)
    content.put_tree(tree)
    say(f"{len(tree.files)} files, {megabytes(tree.size_bytes)}; {new} contents are new")
    return staged_of(source, tree)


def staged_of(source: str, tree: Tree, **provenance: object) -> Staged:
    """Return `tree` as what `source` became."""
    return Staged(tree.sha256, len(tree.files), tree.size_bytes, {"source": source, **provenance})


def _with(staged: Staged, **provenance: object) -> Staged:
    return replace(staged, provenance={**staged.provenance, **provenance})
