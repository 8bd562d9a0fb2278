"""Store the small files of an environment together.

A package has thousands of small files, and an object of its own for each costs more time than all of their bytes. So
files below SMALL_BYTES are stored in packs: tar archives at `.packs/NUMBER.tar` of the environment's tree, in the order
of their paths. Called by `keeping` and `stage`. Standard library only.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from updraft_learner.below import make_folder, replacing
from updraft_learner.trees import (
    DigestMismatch,
    Tree,
    TreeError,
    TreeFile,
    files_in,
    hash_file,
    materialise,
    megabytes,
    safe_path,
)

FOLDER = ".packs"
SMALL_BYTES = 1 << 20
PACK_BYTES = 8 << 20  # a few packs are in memory at a time
PACK_LIMIT_BYTES = 4 * PACK_BYTES  # of what a learner reads as one
HEADER_BYTES = 3 << 10  # of a file in an archive, with a long path and what fills the last block
THREADS = 4
Store = Callable[[str, bytes | Path], None]  # gets a digest and the content


@dataclass(frozen=True)
class _File:
    path: str
    place: Path
    size: int
    mode: int


def store_packed(folder: Path, store: Store, *, limit_bytes: int, limit_files: int) -> Tree:
    """Store the files of a folder; return their tree.

    Args:
        store: Stores content under its digest. Called from several threads.

    Raises:
        TreeError: as `trees.scan` does; or the folder has a file below `.packs`.
    """
    found = _listed(folder, limit_bytes, limit_files)
    files: list[TreeFile] = []
    with ThreadPoolExecutor(THREADS, thread_name_prefix="packs") as pool:
        waiting = []
        for file in found:
            if file.size >= SMALL_BYTES:
                digest, size = hash_file(file.place)
                files.append(TreeFile(file.path, digest, size, file.mode))
                waiting.append(pool.submit(store, digest, file.place))
        for number, group in enumerate(_groups(file for file in found if file.size < SMALL_BYTES)):
            content = _packed(group)
            digest = hashlib.sha256(content).hexdigest()
            files.append(TreeFile(f"{FOLDER}/{number:05}.tar", digest, len(content)))
            waiting.append(pool.submit(store, digest, content))
            while len(waiting) > 2 * THREADS:  # packs that wait are in memory
                waiting.pop(0).result()
        for future in waiting:
            future.result()
    return Tree(tuple(files))


def _listed(folder: Path, limit_bytes: int, limit_files: int) -> list[_File]:
    found: list[_File] = []
    total_bytes = 0
    for path, place in files_in(folder, ignores=False):
        if _is_pack(path):
            raise TreeError(f"{path!r} is in the folder {FOLDER}, which the platform uses; leave that package out")
        facts = place.stat()
        found.append(_File(path, place, facts.st_size, 0o755 if facts.st_mode & stat.S_IXUSR else 0o644))
        total_bytes += facts.st_size
        if len(found) > limit_files:
            raise TreeError(f"the packages have too many files; the limit is {limit_files}. Ask for fewer")
    if total_bytes > limit_bytes:
        has, limit = megabytes(total_bytes), megabytes(limit_bytes)
        raise TreeError(f"the packages have {has}; the limit is {limit}. Ask for fewer")
    return found


def _is_pack(path: str) -> bool:
    return path.split("/", 1)[0] == FOLDER


def _groups(files: Iterable[_File]) -> Iterator[list[_File]]:
    """Yield the files of each pack."""
    group: list[_File] = []
    size = 0
    for file in files:
        needs = file.size + HEADER_BYTES
        if group and size + needs > PACK_BYTES:
            yield group
            group, size = [], 0
        group.append(file)
        size += needs
    if group:
        yield group


def _packed(files: Iterable[_File]) -> bytes:
    """Return an archive. Equal files have equal archives: no time and no owner is in them."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for each in files:
            with each.place.open("rb", buffering=0) as file:
                content = file.read(SMALL_BYTES)
            entry = tarfile.TarInfo(each.path)
            entry.size, entry.mode = len(content), each.mode
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def lay_packed(
    tree: Tree,
    target: Path,
    fetch: Callable[[TreeFile], BinaryIO],
    *,
    anchor: Path,
    progress: Callable[[TreeFile, bool], None],
) -> None:
    """Lay a tree of `store_packed` out below `target`, as `trees.materialise` does, and unpack its packs.

    Raises DigestMismatch, TreeError.
    """
    packs = [file for file in tree.files if _is_pack(file.path)]
    others = Tree(tuple(file for file in tree.files if not _is_pack(file.path)))
    materialise(others, target, fetch, anchor=anchor, threads=THREADS, progress=progress)
    base = target.relative_to(anchor).as_posix()

    def read(file: TreeFile) -> tuple[TreeFile, bytes]:
        if file.size > PACK_LIMIT_BYTES:
            raise TreeError(f"{file.path!r} has {file.size} bytes; a pack has at most {PACK_LIMIT_BYTES}")
        with fetch(file) as source:
            content = source.read(file.size + 1)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise DigestMismatch(f"{file.path!r} does not match its digest, {file.sha256[:12]}")
        return file, content

    made: set[str] = set()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="packs") as pool:
        for start in range(0, len(packs), THREADS):  # a few are in memory at a time
            for file, content in pool.map(read, packs[start : start + THREADS]):
                _unpack(content, anchor, base, made)
                progress(file, False)


def _unpack(content: bytes, anchor: Path, base: str, made: set[str]) -> None:
    """Write the files of an archive; `made` are the folders that are there."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for entry in archive:
                path = f"{base}/{safe_path(entry.name)}"
                source = archive.extractfile(entry) if entry.isreg() else None
                if source is None:
                    raise TreeError(f"{entry.name!r} of a pack is no file")
                parent = path.rpartition("/")[0]
                if parent not in made:
                    make_folder(anchor, parent)
                    made.add(parent)
                with replacing(anchor, path, 0o775 if entry.mode & stat.S_IXUSR else 0o664) as out:
                    shutil.copyfileobj(source, out, 1 << 20)
    except (tarfile.TarError, EOFError) as exc:
        raise TreeError(f"a pack cannot be read ({exc})") from exc
