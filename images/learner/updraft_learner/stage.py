"""Stage code, data, checkpoint and results in the pod before the program starts; the sidecar's first work.

The program's container waits for `contract.STAGED_FILE`. If staging fails, it finds `contract.STAGING_FAILED_FILE`
instead, prints the reason, and exits with the `contract.ExitCode` in it. A damaged or incomplete checkpoint has a code
of its own, because an older checkpoint may work. Every digest is verified. A second run in the same pod continues where
the first one stopped.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TextIO

from updraft_learner import contract
from updraft_learner.adopted import restore_adopted
from updraft_learner.below import facts_below, link_below, make_folder, replacing, write_text_below
from updraft_learner.contract import ExitCode, Keys, PodConfig
from updraft_learner.launcher_file import launcher_file
from updraft_learner.pod import PodPaths
from updraft_learner.store import ObjectStore, StorageError
from updraft_learner.trees import (
    DigestMismatch,
    Tree,
    TreeError,
    TreeFile,
    materialise,
    megabytes,
    safe_path,
    write_verified,
)

PROGRESS_SECONDS = 2.0
THREADS = 4
ENVIRONMENT = "environment"  # the name of the tree of the packages that a job adds
NO_FACTS = [-1, -1]  # size and mtime of a stored file that is not in RESULT_DIR


class StageError(Exception):
    """Staging failed; the pod ends with `code`."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def stage_once(config: PodConfig, paths: PodPaths, store: ObjectStore, out: TextIO = sys.stdout) -> None:
    """Lay everything out, unless an earlier sidecar of this pod has done it.

    Raises:
        StageError: with the code that the pod ends with, and the message for the user.
    """
    before = os.umask(0o002)  # the program may run as another user than the files' owner, in the same group
    try:
        if paths.staged_file.exists():
            _link_shared(config, paths, store, out)  # the sidecar that staged has ended, and its locks with it
        else:
            stage(config, paths, store, out)
            paths.staged_file.touch()
    except StorageError as exc:
        raise StageError(ExitCode.DATA if exc.kind == "missing" else ExitCode.STORAGE, str(exc)) from exc
    except (DigestMismatch, TreeError) as exc:
        raise StageError(ExitCode.DATA, str(exc)) from exc
    except OSError as exc:
        name = exc.filename or "a file"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"no space left on the pod's disk while writing {name}"
        else:
            text = f"{name} cannot be written: {exc.strerror or exc}"
        raise StageError(ExitCode.STORAGE, text) from exc
    finally:
        os.umask(before)


def let_program_start(paths: PodPaths) -> None:
    """Open the gate in which the program's container waits."""
    make_folder(paths.root, paths.below(contract.IO_DIR))
    with suppress(IsADirectoryError):  # the program of a pod whose sidecar was restarted has made it
        write_text_below(paths.root, paths.below(contract.STAGED_FILE), "")


def tell_failure(paths: PodPaths, code: int, reason: str) -> None:
    """End the program's container in place of the program."""
    make_folder(paths.root, paths.below(contract.IO_DIR))
    line = f"{code} {' '.join(reason.split())}\n"
    write_text_below(paths.root, paths.below(contract.STAGING_FAILED_FILE), line)


def stage(config: PodConfig, paths: PodPaths, store: ObjectStore, out: TextIO = sys.stdout) -> None:
    """Lay everything out.

    Raises:
        StageError, StorageError, TreeError: with the message for the user.
    """
    keys = Keys(config.prefix)
    make_folder(paths.root)
    for folder in (paths.code, paths.result, paths.checkpoints, paths.logs, paths.io):
        make_folder(paths.root, paths.below(folder))
    # Not if it is there: the local node links a claim that is mounted as DATA_DIR, and then nothing is laid below it.
    covered = any(mount.mode == "mount" and mount.mount == "." for mount in config.data)
    if not covered and facts_below(paths.root, paths.below(contract.DATA_DIR)) is None:
        make_folder(paths.root, paths.below(contract.DATA_DIR))
    paths.private.mkdir(mode=0o700, exist_ok=True)
    params = json.dumps(config.params, sort_keys=True, indent=1) + "\n"
    write_text_below(paths.root, paths.below(contract.PARAMS_FILE), params)
    if config.launcher:
        with replacing(paths.root, paths.below(contract.LAUNCHER_FILE)) as file:
            file.write(launcher_file())

    wanted = [("code", config.code_tree, paths.code)] if config.code_tree is not None else []
    if config.environment_tree is not None and paths.cache is None:
        wanted.append((ENVIRONMENT, config.environment_tree, paths.at(contract.ENVIRONMENT_DIR)))
    for mount in config.data:
        if mount.mode != "copy":
            continue
        target = paths.data if mount.mount == "." else paths.data / _mount(mount.mount)
        wanted.append((f"data {mount.mount!r}", mount.tree, target))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="trees") as pool:
        documents = list(pool.map(lambda part: _read_tree(store, keys, part[1], part[0]), wanted))
    trees = [(name, tree, target) for (name, _, target), tree in zip(wanted, documents, strict=True)]
    _require_disk(paths.root, sum(tree.size_bytes for _, tree, _ in trees), "code and data need")
    for name, tree, target in trees:
        _lay_out(store, keys, name, tree, paths.root, target, out)
    _link_shared(config, paths, store, out)
    if config.role == contract.PREPARE_ROLE:
        _copy_sources(config, paths, store, out)
    if config.role == contract.BUILD_ROLE:
        _lay_out_build(config, paths, store, out)
    if config.init_job is not None and config.init_checkpoint is not None:
        _lay_init(config.init_job, config.init_checkpoint, keys, paths, store, out)
    if config.restore_checkpoint is not None:
        _restore_checkpoint(config.job_id, config.restore_checkpoint, keys, paths, store, out)
    if config.restore_results:
        _restore_results(config, keys, paths, store, out)
    elif config.restore_own_results:
        _restore_own_results(config, keys, paths, store, out)
    _lay_inputs(config, paths, store, out)
    print("stage: done", file=out, flush=True)


def _copy_sources(config: PodConfig, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    from updraft_learner.prepare.copying import copy_sources
    from updraft_learner.prepare.errors import SourceError

    try:
        copy_sources(config, paths, store, out)
    except SourceError as exc:
        raise StageError(exc.code, str(exc)) from exc


def _lay_out_build(config: PodConfig, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    from updraft_learner.environment.laying import lay_out_build, own_uv
    from updraft_learner.prepare.errors import SourceError

    try:
        lay_out_build(config, paths, store, own_uv(), out)
    except SourceError as exc:
        raise StageError(exc.code, str(exc)) from exc


@dataclass(frozen=True)
class _Shared:
    """A tree that lies on the node, and the link to it in the pod."""

    name: str
    tree: str
    place: Path
    source: str


def _shared(config: PodConfig, paths: PodPaths) -> Iterator[_Shared]:
    for mount in config.data:
        if mount.mode == "mount":
            place = paths.data if mount.mount == "." else paths.data / _mount(mount.mount)
            yield _Shared(f"data {mount.mount!r}", mount.tree, place, mount.source)
    if config.environment_tree is not None and paths.cache is not None:
        yield _Shared(ENVIRONMENT, config.environment_tree, paths.at(contract.ENVIRONMENT_DIR), ENVIRONMENT)


def _link_shared(config: PodConfig, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    """Link the trees that lie on the node, copied to it first if they are not there."""
    shared = list(_shared(config, paths))
    if not shared:
        return
    from updraft_learner.streams.node_trees import TooLargeForNode, lay_on_node
    from updraft_learner.streams.opening import cache_of

    if paths.cache is None:
        raise StageError(ExitCode.CONFIGURATION, f"{shared[0].source}: this node has no cache; write mode: copy")
    cache, keys = cache_of(config, paths), Keys(config.prefix)
    for each in shared:
        tree = _read_tree(store, keys, each.tree, each.name)
        copied: list[bool] = []

        def copy(folder: Path, each: _Shared = each, tree: Tree = tree, copied: list[bool] = copied) -> None:
            copied.append(True)
            _lay_out(store, keys, each.name, tree, cache.folder, folder, out)

        def say(line: str, each: _Shared = each) -> None:
            print(f"stage: {each.name}: {line}", file=out, flush=True)

        try:
            folder = lay_on_node(cache, each.tree, tree, copy, say)
        except TooLargeForNode as exc:
            if each.place != paths.at(contract.ENVIRONMENT_DIR):
                raise StageError(ExitCode.STORAGE, f"{each.source}: {exc}") from exc
            _require_disk(paths.root, tree.size_bytes, "the packages need")
            _lay_out(store, keys, each.name, tree, paths.root, each.place, out)
            continue
        if not copied:
            say(f"{len(tree.files)} files, {megabytes(tree.size_bytes)}, already on the node")
        relative = paths.below(each.place)
        make_folder(paths.root, relative.rpartition("/")[0])
        link_below(paths.root, relative, str(folder))


class ProgressPrinter:
    """Prints the progress, at most every two seconds."""

    def __init__(
        self, name: str, files: int, size_bytes: int, out: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._files, self._bytes, self._out, self._clock = name, files, size_bytes, out, clock
        self._done_files = self._done_bytes = self._fetched_bytes = self._kept = 0
        self._began = self._printed = clock()
        self._lock = threading.Lock()

    def __call__(self, file: TreeFile, kept: bool) -> None:
        self.add(file.size, kept)

    def add(self, size_bytes: int, kept: bool = False) -> None:
        with self._lock:
            self._done_files += 1
            self._done_bytes += size_bytes
            self._kept += kept
            self._fetched_bytes += 0 if kept else size_bytes
            if self._clock() - self._printed >= PROGRESS_SECONDS:
                self._printed = self._clock()
                self._print()

    def finish(self) -> None:
        self._print()

    def _print(self) -> None:
        rate = self._fetched_bytes / 1e6 / max(self._clock() - self._began, 1e-3)
        kept = f", {self._kept} already there" if self._kept else ""
        print(
            f"stage: {self._name}: {self._done_files}/{self._files} files, "
            f"{self._done_bytes / 1e6:.1f}/{self._bytes / 1e6:.1f} MB, {rate:.1f} MB/s{kept}",
            file=self._out,
            flush=True,
        )


def _read_tree(store: ObjectStore, keys: Keys, digest: str, name: str) -> Tree:
    text = store.get_bytes(keys.tree(digest), contract.TREE_LIMIT_BYTES)
    if text is None:
        raise StageError(ExitCode.DATA, f"{name}: tree {digest[:12]} is not in the store; submit the job again")
    tree = Tree.from_json(text)
    if tree.sha256 != digest:
        raise StageError(ExitCode.DATA, f"{name}: the document of tree {digest[:12]} does not match its digest")
    return tree


def _mount(mount: str) -> str:
    try:
        return safe_path(mount)
    except TreeError as exc:
        raise StageError(ExitCode.CONFIGURATION, f"data mount: {exc}") from exc


def _require_disk(root: Path, needed_bytes: int, what: str) -> None:
    free_bytes = shutil.disk_usage(root).free
    if needed_bytes > free_bytes:
        raise StageError(
            ExitCode.STORAGE,
            f"{what} {megabytes(needed_bytes)}, but the pod's disk has {megabytes(free_bytes)} free; "
            "use less data or a larger disk",
        )


def _lay_out(store: ObjectStore, keys: Keys, name: str, tree: Tree, root: Path, target: Path, out: TextIO) -> None:
    progress = ProgressPrinter(name, len(tree.files), tree.size_bytes, out)

    def fetch(file: TreeFile) -> BinaryIO:
        return _open(store, keys.blob(file.sha256), f"{name}: {file.path}")

    if name == ENVIRONMENT:
        from updraft_learner.environment.packs import lay_packed

        lay_packed(tree, target, fetch, anchor=root, progress=progress)
    else:
        materialise(tree, target, fetch, anchor=root, threads=THREADS, progress=progress)
    progress.finish()


def _open(store: ObjectStore, key: str, name: str) -> BinaryIO:
    try:
        return store.open(key)
    except StorageError as exc:
        if exc.kind != "missing":
            raise
        raise StageError(ExitCode.DATA, f"{name} is not in the store; submit the job again") from exc


def _restore_checkpoint(job_id: str, name: str, keys: Keys, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    """Lay a checkpoint out under the name that the program gave it; what is wrong with it ends with CHECKPOINT."""
    try:
        _lay_checkpoint(job_id, name, keys, paths, store, out)
    except TreeError as exc:
        raise _bad_checkpoint(name, str(exc)) from exc
    except StorageError as exc:
        if exc.kind not in ("missing", "too large"):
            raise
        raise _bad_checkpoint(name, str(exc)) from exc


def _lay_checkpoint(job_id: str, name: str, keys: Keys, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    local, files, fetch = _stored_checkpoint(job_id, name, keys, store)
    place = f"{paths.below(contract.CHECKPOINT_DIR)}/{local}"
    marker = files.pop(contract.CHECKPOINT_LOCAL_MARKER, None)
    _lay_checkpoint_files(name, place, files, fetch, paths, out)
    local_marker = f"{place}/{contract.CHECKPOINT_LOCAL_MARKER}"  # written last: without it the folder is ignored
    if marker is None:
        write_text_below(paths.root, local_marker, "")
    else:
        write_verified(paths.root, local_marker, *marker, fetch(contract.CHECKPOINT_LOCAL_MARKER))
    restore_adopted(paths, place)
    link_below(paths.root, f"{paths.below(contract.CHECKPOINT_DIR)}/{contract.CHECKPOINT_LATEST}", local)
    paths.restored_file.write_text(json.dumps({"name": name, "local": local}), encoding="utf-8")


def _lay_init(job_id: str, name: str, keys: Keys, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    """Lay another job's checkpoint out in INIT_DIR. If it cannot be used, an older one of this job would not help: the
    job ends with DATA."""
    try:
        _, files, fetch = _stored_checkpoint(job_id, name, keys, store)
        files.pop(contract.CHECKPOINT_LOCAL_MARKER, None)
        _lay_checkpoint_files(name, paths.below(paths.at(contract.INIT_DIR)), files, fetch, paths, out)
    except (TreeError, StageError) as exc:
        if isinstance(exc, StageError) and exc.code != ExitCode.CHECKPOINT:
            raise
        raise StageError(ExitCode.DATA, f"init_from: job {job_id}: {exc}") from exc


Fetch = Callable[[str], BinaryIO]


def _stored_checkpoint(
    job_id: str, name: str, keys: Keys, store: ObjectStore
) -> tuple[str, dict[str, tuple[str, int]], Fetch]:
    """Return the name that the program gave a checkpoint, the digest and size of each of its files by path, and how to
    open one."""
    text = store.get_bytes(keys.checkpoint_marker(job_id, name), contract.MARKER_LIMIT_BYTES)
    if text is None:
        raise StageError(ExitCode.CHECKPOINT, f"checkpoint {name} is not in the store, or was never completed")
    try:
        manifest = json.loads(text)
        local = safe_path(str(manifest.get("local") or name))
        files = {
            safe_path(path): (str(facts["sha256"]), int(facts["size"])) for path, facts in manifest["files"].items()
        }
        if "/" in local:
            raise TreeError(f"checkpoint folder {local!r} is no plain name")
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _bad_checkpoint(name, f"{contract.CHECKPOINT_MARKER} is unreadable ({exc})") from exc
    prefix = keys.checkpoint(job_id, name)

    def fetch(path: str) -> BinaryIO:
        try:
            return store.open(f"{prefix}/{path}")
        except StorageError as exc:
            if exc.kind != "missing":
                raise
            raise _bad_checkpoint(name, f"{path} is not in the store") from exc

    return local, files, fetch


def _lay_checkpoint_files(
    name: str, place: str, files: Mapping[str, tuple[str, int]], fetch: Fetch, paths: PodPaths, out: TextIO
) -> None:
    folder = make_folder(paths.root, place)
    size_bytes = sum(size for _, size in files.values())
    _require_disk(paths.root, size_bytes, f"checkpoint {name} needs")
    progress = ProgressPrinter(f"checkpoint {name}", len(files), size_bytes, out)
    tree = Tree(tuple(TreeFile(path, sha256, size) for path, (sha256, size) in files.items()))
    materialise(tree, folder, lambda file: fetch(file.path), anchor=paths.root, threads=THREADS, progress=progress)
    progress.finish()


def _bad_checkpoint(name: str, reason: str) -> StageError:
    return StageError(ExitCode.CHECKPOINT, f"checkpoint {name}: {reason}")


def _lay_inputs(config: PodConfig, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    """Copy the files that the configuration names from the store to DATA_DIR. A missing file is no error here: the
    program reports it."""
    prefix = f"{config.prefix}/"
    sizes = {
        each: next((found.size for found in store.list(each.key) if found.key == each.key), None)
        for each in config.inputs
    }
    there = {each: size for each, size in sizes.items() if size is not None}
    _require_disk(paths.root, sum(there.values()), "the files to compare need")
    for each, size in there.items():
        if not each.key.startswith(prefix):
            raise StageError(ExitCode.CONFIGURATION, f"{each.path}: its key is not below {prefix}")
        place = f"{paths.below(paths.data)}/{safe_path(each.path)}"
        make_folder(paths.root, place.rpartition("/")[0])
        with _open(store, each.key, each.path) as source, replacing(paths.root, place) as file:
            shutil.copyfileobj(source, file, 1 << 20)
        print(f"stage: {each.path}: {megabytes(size)}", file=out, flush=True)


def _restore_results(config: PodConfig, keys: Keys, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    """Restore the training's results of its learners, for evaluate and export."""
    root = f"{keys.job(config.results_job or config.job_id)}/results/learner-"
    kept = config.result_learners
    by_learner: list[tuple[int, str, str, int]] = []
    for item in store.list(root):
        learner, _, path = item.key[len(root) :].partition("/")
        if learner.isdigit() and path and (kept is None or int(learner) in kept):
            by_learner.append((int(learner), safe_path(path), item.key, item.size))
    chosen: dict[str, tuple[str, int]] = {}
    folders: set[str] = set()
    for _, path, key, size in sorted(by_learner):  # if paths collide, the lowest learner's file is used
        parents = {parent.as_posix() for parent in PurePosixPath(path).parents}
        if path not in chosen and path not in folders and not parents & chosen.keys():
            chosen[path] = (key, size)
            folders |= parents
    _lay_results(chosen, paths, store, out)


def _restore_own_results(config: PodConfig, keys: Keys, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    """Restore what this learner stored in an earlier attempt, except for an MLflow model: MLflow saves a model only to
    a folder that is empty. What the program does not save again is deleted from the store at the attempt's end."""
    root = f"{keys.results(config.job_id, config.role, config.learner)}/"
    found = {safe_path(item.key[len(root) :]): (item.key, item.size) for item in store.list(root)}
    # If the program replaced a file by a folder, the store keeps the file until the attempt's end: skip it.
    folders = {parent.as_posix() for path in found for parent in PurePosixPath(path).parents}
    left_out = {path for path in found if path.startswith("model/")} if "model/MLmodel" in found else set()
    if left_out:
        print("results: the MLflow model of the earlier attempt is left out of RESULT_DIR/model", file=out, flush=True)
    chosen = {path: found[path] for path in found.keys() - left_out if path not in folders}
    _lay_results(chosen, paths, store, out, left_out=left_out)


def _lay_results(
    chosen: Mapping[str, tuple[str, int]],
    paths: PodPaths,
    store: ObjectStore,
    out: TextIO,
    *,
    left_out: Collection[str] = (),
) -> None:
    """Put files, given by path with key and size, into RESULT_DIR. The sidecar stores them again only when they change.
    `left_out`: paths that are stored too."""
    target = paths.result
    total_bytes = sum(size for _, size in chosen.values())
    _require_disk(target, total_bytes, "results need")
    progress = ProgressPrinter("results", len(chosen), total_bytes, out)
    for folder in {paths.below(target / path).rpartition("/")[0] for path in chosen}:
        make_folder(paths.root, folder)

    def lay(path: str) -> tuple[str, list[int]]:
        key, size = chosen[path]
        with _open(store, key, f"result {path}") as source, replacing(paths.root, paths.below(target / path)) as file:
            shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            facts = os.fstat(file.fileno())
        progress.add(size)
        return path, [facts.st_size, facts.st_mtime_ns]

    with ThreadPoolExecutor(THREADS, thread_name_prefix="results") as pool:
        laid = dict(pool.map(lay, chosen)) | dict.fromkeys(left_out, NO_FACTS)
    paths.restored_results_file.write_text(json.dumps(laid), encoding="utf-8")
    progress.finish()
