"""Upload finished checkpoints in the background, verified; in the store, a checkpoint is complete or does not exist.

A folder in CHECKPOINT_DIR with the file COMPLETE is finished. Its files are uploaded and hashed at the same time,
compared with the program's own manifest, if there is one, and with the store. MANIFEST.json is written last. A
checkpoint that does not match its manifest is quarantined. If a checkpoint is saved in parts, each learner's sidecar
stores its own part, and `checkpoint_store` joins them. Old local copies are removed once they are stored.
`checkpoint_format` defines the format on disk; the platform removes old checkpoints from the store.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO

from updraft_learner import contract
from updraft_learner.below import facts_below, folder_below, link_below
from updraft_learner.checkpoint_format import BAD_PREFIX
from updraft_learner.checkpoint_names import (
    NAME_CHARS,
    STORED_FILE,
    is_bookkeeping,
    part_name,
    recordable,
    stored_name,
)
from updraft_learner.checkpoint_store import PartsDisagree, join_parts, to_json
from updraft_learner.contract import TEXTS, Keys, PodConfig, StoredCheckpoint
from updraft_learner.pod import PodPaths
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.files import HOLLOW_BYTES, FoundFile, find_below, read_json, write_below
from updraft_learner.record.report import Warnings, cut, log
from updraft_learner.sidecar.checkpoint_manifest import Damaged, Described, Unusable, describe, require_room, shown
from updraft_learner.sidecar.snapshot import FolderSnapshot, Hashing
from updraft_learner.store import ObjectStore, StorageError

KEEP_LOCAL = 2
SHOWN = 50
JOIN_SECONDS = 5.0  # between two checks whether the other learners' parts are stored
FOLDER = str(Path(contract.CHECKPOINT_DIR).relative_to(contract.ROOT_DIR))


class Changed(Exception):
    """A checkpoint was rewritten during its upload; it is uploaded again later."""


@dataclass(frozen=True)
class Local:
    """A finished checkpoint on disk. `identity` changes if the program rewrites it."""

    name: str
    identity: str
    completed_ns: int


class CheckpointUploader:
    """Uploads one learner's checkpoints. One thread calls `poll`; other threads may read the rest.

    Args:
        hollow_bytes: See `find_below`.
    """

    def __init__(
        self,
        config: PodConfig,
        paths: PodPaths,
        store: ObjectStore,
        warnings: Warnings,
        *,
        disk: PodDisk = POD_DISK,
        hollow_bytes: int = HOLLOW_BYTES,
    ) -> None:
        self._config, self._paths, self._store, self._warnings = config, paths, store, warnings
        self._disk, self._hollow_bytes = disk, hollow_bytes
        self._keys = Keys(config.prefix)
        self._state_file = paths.private / "checkpoints.json"
        # local name -> {"identity", "stored" (name in the store), "step", "bytes", "files", "version"}, and "whole":
        # false while parts of other learners are missing
        self._state: dict[str, dict[str, Any]] = read_json(self._state_file, {})
        self._restored: dict[str, str] = read_json(paths.restored_file, {})
        self._waiting: dict[str, int] = {}  # local name -> bytes
        # Of an interrupted upload: path -> the file that was sent, and its digest. The upload continues from there.
        self._sent: tuple[Local, dict[str, tuple[FoundFile, str]]] | None = None
        self._next_join = 0.0
        self._tell_program()
        self.quarantined: list[str] = []
        self.final: str | None = self._newest_stored()

    @property
    def pending_bytes(self) -> int:
        return sum(dict(self._waiting).values())

    def stored(self) -> list[dict[str, Any]]:
        """Return the checkpoints that this attempt stored, in order of upload."""
        return [entry for entry in list(self._state.values()) if entry["files"]]

    def shown(self) -> tuple[StoredCheckpoint, ...]:
        """Return the checkpoints for the status: what is stored, then what waits, also for the parts of other
        learners."""
        done = [StoredCheckpoint(e["stored"], e["step"], e["bytes"], e.get("whole", True)) for e in self.stored()]
        waits = [
            StoredCheckpoint(self._store_name(name, self._version(name)), _step_of(name), size, False)
            for name, size in sorted(dict(self._waiting).items())
        ]
        return tuple((done + waits)[-SHOWN:])

    def poll(self) -> None:
        """Upload finished checkpoints, the newest first. Raises StorageError; the next call continues."""
        seen: set[Local] = set()
        while True:
            # Listed again after each upload: if the store is slow, there may be a newer checkpoint.
            finished = self._finished()
            todo = [local for local in finished if not self._is_stored(local)]
            self._waiting = {local.name: self._size(local) for local in todo}
            if finished:
                self._point_latest_at(finished[0])
            new = [local for local in todo if local not in seen]
            if not new:
                break
            seen.add(new[0])
            self._try_upload(new[0])
        self._join()
        self._prune()

    def _try_upload(self, local: Local) -> None:
        try:
            self._upload(local)
        except Damaged as exc:
            self._quarantine(local, str(exc))
        except (Changed, FileNotFoundError):
            pass
        except Unusable as exc:
            self._warnings.add(f"checkpoint {local.name}", f"checkpoint {local.name} is not stored: {exc}")
        except PermissionError as exc:
            self._warnings.add(
                f"checkpoint {local.name}",
                f"checkpoint {local.name} is not stored: {exc.filename or 'a file'} cannot be read by the sidecar; "
                "make its files readable for their owner",
            )

    def unfinished(self) -> list[str]:
        """Return the folders without COMPLETE, for the last report when the program has ended."""
        complete = {local.name for local in self._finished()}
        return [name for name, _ in self._scan() if name not in complete]

    def _scan(self) -> list[tuple[str, int]]:
        """Return the names of the folders in CHECKPOINT_DIR, without hidden ones, and their inodes; none if it is a
        link."""
        with suppress(FileNotFoundError, NotADirectoryError), self._folder() as folder, os.scandir(folder) as entries:
            found = [(e.name, e.inode()) for e in entries if e.is_dir(follow_symlinks=False)]
            return sorted(each for each in found if not each[0].startswith("."))
        return []

    def _folder(self) -> AbstractContextManager[int]:
        """Open CHECKPOINT_DIR without following a link; gives its descriptor."""
        return folder_below(self._paths.root, FOLDER)

    def _finished(self) -> list[Local]:
        """Return the finished checkpoints on disk, newest first."""
        found = []
        for name, inode in self._scan():
            with suppress(OSError):
                facts = facts_below(self._paths.root, f"{FOLDER}/{name}/{contract.CHECKPOINT_LOCAL_MARKER}")
                if facts is not None and stat.S_ISREG(facts.st_mode):
                    identity = f"{inode}-{facts.st_ino}-{facts.st_mtime_ns}"
                    found.append(Local(name, identity, facts.st_mtime_ns))
        return sorted(found, key=lambda local: (local.completed_ns, local.name), reverse=True)

    def _is_stored(self, local: Local) -> bool:
        known = self._state.get(local.name)
        if known is None and local.name == self._restored.get("local"):
            # Staging restored it: the store has it under its original name.
            entry = {"identity": local.identity, "stored": self._restored["name"], "step": _step_of(local.name)}
            self._state[local.name] = {**entry, "bytes": 0, "files": 0, "version": 1, "order": 0}
            return True
        return known is not None and known["identity"] == local.identity

    def _version(self, name: str) -> int:
        known = self._state.get(name)
        return 1 if known is None or not known["files"] else known["version"] + 1

    def _store_name(self, name: str, version: int, save: str = "") -> str:
        return stored_name(name, self._config.attempt, self._config.learner, version=version, save=save)

    def _size(self, local: Local) -> int:
        found, _ = find_below(self._paths.root, f"{FOLDER}/{local.name}", self._hollow_bytes)
        return sum(file.size for file in found.values())

    def _upload(self, local: Local) -> None:
        began = time.monotonic()
        with FolderSnapshot(self._paths.root, f"{FOLDER}/{local.name}", self._hollow_bytes) as held:
            if held.refused:
                raise Unusable(f"{held.refused[0]} is a link out of it, no file, or a folder that cannot be read")
            if local not in self._finished():
                raise Changed(local.name)
            if taken := [path for path in held.found if is_bookkeeping(path)]:
                raise Unusable(f"file {taken[0]} has a name that the platform writes itself; give it another one")
            if unstored := [(path, file.refused) for path, file in held.found.items() if file.refused]:
                path, why = unstored[0]
                raise Damaged(f"checkpoint {local.name}: file {shown(path)} {why}; write one without such files")
            described = describe(local.name, held, self._config.learners)
            version = self._version(local.name)
            name = self._store_name(local.name, version, described.save)
            if not recordable(name):
                raise Unusable(f"its name is not printable, or with its attempt longer than {NAME_CHARS} characters")
            key = self._keys.checkpoint(self._config.job_id, name)
            # Each part has such a marker; it is made again when the checkpoint is restored.
            left_out = {contract.CHECKPOINT_LOCAL_MARKER} if described.parts > 1 else set()
            files = {path: file for path, file in held.found.items() if path not in left_out}
            require_room(files, described)
            digests = self._send(local, held, files, described, key)
            untouched = held.still_there() and local in self._finished()
            # If the folder was removed or replaced, the sent files still count if they match the program's manifest.
            if held.written_to() or not (untouched or described.files):
                raise Changed(local.name)
            self._confirm(key, files)
        size = sum(file.size for file in files.values())
        marker = {
            "name": name,
            "local": local.name,
            "job": self._config.job_id,
            "attempt": self._config.attempt,
            "learner": self._config.learner,
            "step": _step_of(local.name) if described.step is None else described.step,
            "metrics": dict(described.metrics),
            "created": described.created or local.completed_ns / 1e9,
            "bytes": size,
            "files": {path: {"sha256": digests[path], "size": file.size} for path, file in files.items()},
        }
        if described.parts > 1:
            marker |= {"part": described.part, "parts": described.parts, "save": described.save}
            self._store.put_bytes(f"{key}/{part_name(described.part, described.parts)}", to_json(marker))
        else:
            self._store.put_bytes(self._keys.checkpoint_marker(self._config.job_id, name), to_json(marker))
        order = 1 + max((entry.get("order", 0) for entry in self._state.values()), default=0)
        self._state[local.name] = {
            "identity": local.identity,
            "stored": name,
            "step": marker["step"],
            "bytes": size,
            "files": len(files),
            "version": version,
            "order": order,
            "completed_ns": local.completed_ns,
            "whole": described.parts == 1,
        }
        self._sent, self._next_join = None, 0.0
        self._save()
        seconds = max(time.monotonic() - began, 1e-3)
        part = f"part {described.part} of {described.parts} of " if described.parts > 1 else ""
        speed = f"{size / 1e6:.1f} MB, {size / 1e6 / seconds:.1f} MB/s"
        log(f"{part}checkpoint {name} is stored: {len(files)} files, {speed}")

    def _send(
        self, local: Local, held: FolderSnapshot, files: Mapping[str, FoundFile], described: Described, key: str
    ) -> dict[str, str]:
        """Upload the files that were not sent before; returns the digests of what was sent."""
        if self._sent is None or self._sent[0] != local:
            self._sent = (local, {})
        sent = self._sent[1]
        for path, file in files.items():
            if path not in sent or sent[path][0] != file:
                digest = _put_hashed(self._store, f"{key}/{path}", lambda path=path: held.open(path))  # type: ignore[misc]
                sent[path] = (file, digest)
            expected = described.files.get(path)
            if expected is not None and sent[path][1] != expected[0]:
                for done in sent:
                    self._store.delete(f"{key}/{done}")
                self._sent = None
                raise Damaged(f"checkpoint {local.name}: file {shown(path)} does not match its digest")
        return {path: sent[path][1] for path in files}

    def _confirm(self, key: str, files: Mapping[str, FoundFile]) -> None:
        """Check that the store has what was sent, before the marker is written."""
        sizes = {item.key: item.size for item in self._store.list(f"{key}/")}
        for path, file in files.items():
            if sizes.get(f"{key}/{path}") != file.size:
                self._sent = None
                raise StorageError(
                    "refused",
                    f"writing {key}/{path}: the object store has {sizes.get(f'{key}/{path}', 'none')} of its "
                    f"{file.size} bytes; it is sent again",
                )

    def _join(self) -> None:
        """Make one checkpoint of all learners' parts, once they are stored."""
        if time.monotonic() < self._next_join:
            return
        self._next_join = time.monotonic() + JOIN_SECONDS
        for entry in self.stored():
            if entry.get("whole", True):
                continue
            try:
                joined = join_parts(self._store, self._keys, self._config.job_id, entry["stored"])
            except PartsDisagree as exc:
                self._warnings.add(f"parts of {entry['stored']}", f"{exc}; it is not used")
                joined = "gone"
            if joined == "gone":
                entry["files"] = 0
            if joined != "waiting":
                entry["whole"] = True
                self._save()
                log(f"checkpoint {entry['stored']} is {'whole' if joined == 'whole' else 'gone'} in the store")

    def _quarantine(self, local: Local, reason: str) -> None:
        if local not in self._finished():
            return  # it was rewritten while it was read
        try:
            target = self._set_aside(local.name)
            reason = f"{reason}; set aside as {target}"
        except OSError as exc:
            reason = f"{reason}; it could not be set aside ({exc.strerror})"
            self._state[local.name] = {
                "identity": local.identity, "stored": "", "step": None, "bytes": 0, "files": 0, "version": 0, "order": 0
            }  # fmt: skip
        if cut(reason) not in self.quarantined:
            self.quarantined = [*self.quarantined, cut(reason)][-TEXTS:]
        self._warnings.add(f"checkpoint {local.name}", reason)
        self._waiting.pop(local.name, None)

    def _point_latest_at(self, newest: Local) -> None:
        """Point `latest` at the newest checkpoint, for programs that do not keep it themselves."""
        link = f"{FOLDER}/{contract.CHECKPOINT_LATEST}"
        try:
            facts = facts_below(self._paths.root, link)
            if facts is None or (stat.S_ISLNK(facts.st_mode) and self._latest() != newest.name):
                link_below(self._paths.root, link, newest.name)
        except OSError as exc:
            text = f"the link {contract.CHECKPOINT_LATEST} in CHECKPOINT_DIR cannot be set: {exc.strerror}"
            self._warnings.add("latest", text)

    def _latest(self) -> str:
        with self._folder() as folder:
            return os.readlink(contract.CHECKPOINT_LATEST, dir_fd=folder)

    def _set_aside(self, name: str) -> str:
        """Rename a checkpoint's folder, so that it is not used; return the new name. Raises OSError."""
        with self._folder() as folder:
            taken = {*os.listdir(folder)}
            numbers = chain([""], (f"-{number}" for number in count(2)))
            target = next(new for number in numbers if (new := f"{BAD_PREFIX}{name}{number}") not in taken)
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=folder)
        return target

    def _prune(self) -> None:
        """Remove stored checkpoints from the pod's disk, but for the newest ones."""
        for local in self._finished()[KEEP_LOCAL:]:
            if not self._is_stored(local) or not self._state[local.name]["stored"]:
                continue
            try:
                with self._folder() as folder:
                    shutil.rmtree(local.name, dir_fd=folder)
            except OSError as exc:
                self._warnings.add(
                    "prune",
                    f"old checkpoints stay on the pod's disk: {local.name} cannot be removed ({exc.strerror}); "
                    "make checkpoint folders writable for the group",
                )
                return

    def _newest_stored(self) -> str | None:
        entries = [entry for entry in self._state.values() if entry["files"] and entry.get("whole", True)]
        return max(entries, key=lambda entry: entry.get("completed_ns", 0))["stored"] if entries else None

    def _save(self) -> None:
        self._disk.save_json(self._state_file, self._state)
        self.final = self._newest_stored()
        self._tell_program()

    def _tell_program(self) -> None:
        """Write which folders are stored: with a slow store, learners that save together wait for each other's
        sidecars."""
        names = sorted(name for name, entry in self._state.items() if entry["stored"])
        with suppress(OSError):  # only a hint for the program
            write_below(self._paths.root, f"{self._paths.io.relative_to(self._paths.root)}/{STORED_FILE}", names)


def _put_hashed(store: ObjectStore, key: str, source: Callable[[], BinaryIO]) -> str:
    """Store the content and return the digest of what was sent, which may differ from what was read before or after."""
    last: list[Hashing] = []

    def opened() -> Any:
        last.append(Hashing(source()))
        return last[-1]

    store.put_file(key, opened)
    return last[-1].hexdigest()


def _step_of(name: str) -> int | None:
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 19 else None
