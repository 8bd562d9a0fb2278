"""Uploads finished checkpoints: verified, in the background, and complete in the store or not there at all.

A folder in CHECKPOINT_DIR with the file COMPLETE is finished. Its files are hashed, compared with the program's own
manifest where there is one, uploaded, and MANIFEST.json last. One that does not match its manifest is set aside. Old
local copies are removed when they are stored. The format on disk is `checkpoint_format`'s; retention in the store is
the platform's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from updraft_learner import contract
from updraft_learner.checkpoint_format import BAD_PREFIX, HASH_CHUNK_BYTES
from updraft_learner.contract import Keys, PodConfig, StoredCheckpoint
from updraft_learner.pod import PodPaths
from updraft_learner.sidecar.files import FoundFile, find_below, open_below, read_below, read_json, write_json
from updraft_learner.sidecar.report import Warnings, log
from updraft_learner.store import ObjectStore

KEEP_LOCAL = 2
SHOWN = 50
FOLDER = str(Path(contract.CHECKPOINT_DIR).relative_to(contract.ROOT_DIR))


class Damaged(Exception):
    """A checkpoint's files are not those that its manifest describes."""


class Unusable(Exception):
    """A checkpoint that cannot be stored whole."""


class Changed(Exception):
    """A checkpoint was rewritten while it was uploaded; it is taken up again later."""


@dataclass(frozen=True)
class Local:
    """A finished checkpoint on disk. `identity` changes when the program writes it anew."""

    name: str
    identity: str
    completed_ns: int


class Checkpoints:
    """`poll` is called by one thread; the rest may be read from others."""

    def __init__(
        self,
        config: PodConfig,
        paths: PodPaths,
        store: ObjectStore,
        warnings: Warnings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._paths, self._store, self._warnings, self._clock = config, paths, store, warnings, clock
        self._keys = Keys(config.prefix)
        self._state_file = paths.private / "checkpoints.json"
        # local name -> {"identity", "stored" (name in the store), "step", "bytes", "files", "version"}
        self._state: dict[str, dict[str, Any]] = read_json(self._state_file, {})
        self._restored: dict[str, str] = read_json(paths.restored_file, {})
        self._waiting: dict[str, int] = {}  # local name -> bytes
        self.quarantined: list[str] = []
        self.final: str | None = self._newest_stored()

    @property
    def pending_bytes(self) -> int:
        return sum(dict(self._waiting).values())

    def stored(self) -> list[dict[str, Any]]:
        """Of this attempt, in order of upload."""
        return [entry for entry in list(self._state.values()) if entry["files"]]

    def shown(self) -> tuple[StoredCheckpoint, ...]:
        """For the status: what is stored, then what waits."""
        done = [StoredCheckpoint(e["stored"], e["step"], e["bytes"], True) for e in self.stored()]
        waits = [
            StoredCheckpoint(self._store_name(name, self._version(name)), _step_of(name), size, False)
            for name, size in sorted(dict(self._waiting).items())
        ]
        return tuple((done + waits)[-SHOWN:])

    def poll(self) -> None:
        """Upload what is finished, the newest first; raises StorageError, and goes on at the next call."""
        finished = self._finished()
        todo = [local for local in finished if not self._is_stored(local)]
        self._waiting = {local.name: self._size(local) for local in todo}
        if finished:
            self._point_latest_at(finished[0])
        for local in todo:
            try:
                self._upload(local)
            except Damaged as exc:
                self._quarantine(local, str(exc))
            except (Changed, FileNotFoundError):
                continue
            except Unusable as exc:
                self._warnings.add(f"checkpoint {local.name}", f"checkpoint {local.name} is not stored: {exc}")
                continue
            except PermissionError as exc:
                self._warnings.add(
                    f"checkpoint {local.name}",
                    f"checkpoint {local.name} is not stored: {exc.filename or 'a file'} cannot be read by the sidecar; "
                    "make its files readable for the group",
                )
                continue
            self._waiting.pop(local.name, None)
        self._prune()

    def unfinished(self) -> list[str]:
        """Folders without COMPLETE, for the last word when the program has ended."""
        complete = {local.name for local in self._finished()}
        return [
            entry.name
            for entry in self._scan()
            if entry.name not in complete and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        ]

    def _scan(self) -> list[os.DirEntry[str]]:
        try:
            return sorted(os.scandir(self._paths.checkpoints), key=lambda entry: entry.name)
        except FileNotFoundError:
            return []

    def _finished(self) -> list[Local]:
        """Finished checkpoints on disk, newest first."""
        found = []
        for entry in self._scan():
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            try:
                facts = os.lstat(Path(entry.path) / contract.CHECKPOINT_LOCAL_MARKER)
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode):
                identity = f"{entry.inode()}-{facts.st_ino}-{facts.st_mtime_ns}"
                found.append(Local(entry.name, identity, facts.st_mtime_ns))
        return sorted(found, key=lambda local: (local.completed_ns, local.name), reverse=True)

    def _is_stored(self, local: Local) -> bool:
        known = self._state.get(local.name)
        if known is None and local.name == self._restored.get("local"):
            # Laid there by the init container: it is in the store under its first name.
            entry = {"identity": local.identity, "stored": self._restored["name"], "step": _step_of(local.name)}
            self._state[local.name] = {**entry, "bytes": 0, "files": 0, "version": 1, "order": 0}
            return True
        return known is not None and known["identity"] == local.identity

    def _version(self, name: str) -> int:
        known = self._state.get(name)
        return 1 if known is None or not known["files"] else known["version"] + 1

    def _store_name(self, name: str, version: int) -> str:
        learner = f"-l{self._config.learner}" if self._config.learner > 1 else ""
        again = f"-v{version}" if version > 1 else ""  # the program wrote the same name anew
        return f"{name}-a{self._config.attempt}{learner}{again}"

    def _size(self, local: Local) -> int:
        found, _ = find_below(self._paths.root, f"{FOLDER}/{local.name}")
        return sum(file.size for file in found.values())

    def _upload(self, local: Local) -> None:
        began = time.monotonic()
        folder = f"{FOLDER}/{local.name}"
        found, refused = find_below(self._paths.root, folder)
        if refused:
            raise Unusable(f"{refused[0]} is a link out of it, no file, or a folder that cannot be read")
        digests = {path: self._hash(folder, file) for path, file in found.items()}
        manifest = self._verify(local.name, folder, found, digests)
        version = self._version(local.name)
        name = self._store_name(local.name, version)
        prefix = self._keys.checkpoint(self._config.job_id, name)
        for path, file in found.items():
            self._store.put_file(f"{prefix}/{path}", partial(open_below, self._paths.root, f"{folder}/{file.source}"))
        if self._changed(local, folder, found):
            raise Changed(local.name)
        size = sum(file.size for file in found.values())
        marker = {
            "name": name,
            "local": local.name,
            "job": self._config.job_id,
            "attempt": self._config.attempt,
            "learner": self._config.learner,
            "step": manifest.get("step", _step_of(local.name)),
            "metrics": manifest.get("metrics", {}),
            "created": manifest.get("created") or local.completed_ns / 1e9,
            "bytes": size,
            "files": {path: {"sha256": digests[path], "size": file.size} for path, file in found.items()},
        }
        text = json.dumps(marker, sort_keys=True, allow_nan=False).encode()
        self._store.put_bytes(self._keys.checkpoint_marker(self._config.job_id, name), text)
        order = 1 + max((entry.get("order", 0) for entry in self._state.values()), default=0)
        self._state[local.name] = {
            "identity": local.identity,
            "stored": name,
            "step": marker["step"],
            "bytes": size,
            "files": len(found),
            "version": version,
            "order": order,
            "completed_ns": local.completed_ns,
        }
        self._save()
        seconds = max(time.monotonic() - began, 1e-3)
        log(f"checkpoint {name} is stored: {len(found)} files, {size / 1e6:.1f} MB, {size / 1e6 / seconds:.1f} MB/s")

    def _hash(self, folder: str, file: FoundFile) -> str:
        digest = hashlib.sha256()
        with open_below(self._paths.root, f"{folder}/{file.source}") as stream:
            while chunk := stream.read(HASH_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    def _verify(self, name: str, folder: str, found: dict[str, FoundFile], digests: dict[str, str]) -> dict[str, Any]:
        """The program's own manifest, as far as it is used; empty when there is none."""
        if contract.CHECKPOINT_LOCAL_MANIFEST not in found:
            return {}
        try:
            raw = json.loads(read_below(self._paths.root, f"{folder}/{contract.CHECKPOINT_LOCAL_MANIFEST}") or b"")
            files = {str(path): (facts["sha256"], facts["size"]) for path, facts in raw["files"].items()}
            step = None if raw.get("step") is None else int(raw["step"])
            metrics = {str(key): _plain(float(value)) for key, value in (raw.get("metrics") or {}).items()}
            created = raw.get("created")
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise Damaged(f"checkpoint {name}: {contract.CHECKPOINT_LOCAL_MANIFEST} is unreadable") from exc
        for path, (sha256, size) in files.items():
            if path not in found:
                raise Damaged(f"checkpoint {name}: file {path} is missing")
            if found[path].size != size:
                raise Damaged(f"checkpoint {name}: file {path} has {found[path].size} bytes instead of {size}")
            if digests[path] != sha256:
                raise Damaged(f"checkpoint {name}: file {path} does not match its digest")
        return {"step": step, "metrics": metrics, "created": created}

    def _changed(self, local: Local, folder: str, before: dict[str, FoundFile]) -> bool:
        now, _ = find_below(self._paths.root, folder)
        return now != before or local not in self._finished()

    def _quarantine(self, local: Local, reason: str) -> None:
        if local not in self._finished():
            return  # it was rewritten while it was read
        target, number = self._paths.checkpoints / f"{BAD_PREFIX}{local.name}", 1
        while target.exists():
            number += 1
            target = target.with_name(f"{BAD_PREFIX}{local.name}-{number}")
        try:
            os.rename(self._paths.checkpoints / local.name, target)
            reason = f"{reason}; set aside as {target.name}"
        except OSError as exc:
            reason = f"{reason}; it could not be set aside ({exc.strerror})"
            self._state[local.name] = {
                "identity": local.identity, "stored": "", "step": None, "bytes": 0, "files": 0, "version": 0, "order": 0
            }  # fmt: skip
        if reason not in self.quarantined:
            self.quarantined.append(reason)
        self._warnings.add(f"checkpoint {local.name}", reason)
        self._waiting.pop(local.name, None)

    def _point_latest_at(self, newest: Local) -> None:
        """`latest` for programs that do not keep it themselves."""
        link = self._paths.checkpoints / contract.CHECKPOINT_LATEST
        try:
            if link.is_symlink() and os.readlink(link) == newest.name:
                return
            if link.exists() and not link.is_symlink():
                return
            part = link.with_name(".tmp-latest-sidecar")
            part.unlink(missing_ok=True)
            part.symlink_to(newest.name)
            os.replace(part, link)
        except OSError as exc:
            self._warnings.add("latest", f"the link {link.name} in CHECKPOINT_DIR cannot be set: {exc.strerror}")

    def _prune(self) -> None:
        """Remove stored checkpoints from the pod's disk, but for the newest ones."""
        for local in self._finished()[KEEP_LOCAL:]:
            if not self._is_stored(local) or not self._state[local.name]["stored"]:
                continue
            try:
                shutil.rmtree(self._paths.checkpoints / local.name)
            except OSError as exc:
                self._warnings.add(
                    "prune",
                    f"old checkpoints stay on the pod's disk: {local.name} cannot be removed ({exc.strerror}); "
                    "make checkpoint folders writable for the group",
                )
                return

    def _newest_stored(self) -> str | None:
        entries = [entry for entry in self._state.values() if entry["files"]]
        return max(entries, key=lambda entry: entry.get("completed_ns", 0))["stored"] if entries else None

    def _save(self) -> None:
        write_json(self._state_file, self._state)
        self.final = self._newest_stored()


def _step_of(name: str) -> int | None:
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 19 else None


def _plain(value: float) -> float | None:
    return value if value - value == 0 else None  # NaN and infinities are no JSON
