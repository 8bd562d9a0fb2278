"""Adopt the checkpoints that an unchanged program writes by itself: `checkpoints.from` of the manifest.

What a glob names below the working directory is watched. When it has not changed for QUIET_SECONDS, and no name in it
says that it is unfinished, a copy becomes a checkpoint in CHECKPOINT_DIR (`adopted_copy`), and is stored from there
like each other one. If it changes later, it is adopted again. What lay there before the program started is not adopted.
Only the first learner adopts: the others get its checkpoints when they resume.

A single file that nothing has open for writing is copied after CLOSED_SECONDS already, since a program may rewrite it
all the time. The copy counts QUIET_SECONDS after the file's last change: a program that was killed in the middle of a
write leaves a closed file too, but then the pod ends earlier.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from updraft_learner import contract
from updraft_learner.below import facts_below, folder_below
from updraft_learner.contract import PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.files import read_json
from updraft_learner.record.report import Warnings, log
from updraft_learner.sidecar.adopted_copy import Copy, Disturbed, clean_up, discard, make_copy, publish
from updraft_learner.sidecar.adopted_scan import (
    MOST_MATCHES,
    NotAdopted,
    State,
    is_closed,
    look,
    matches,
    require_solid,
)
from updraft_learner.sidecar.checkpoints import FOLDER
from updraft_learner.trees import megabytes

QUIET_SECONDS = 5.0
CLOSED_SECONDS = 1.0
SPARE_BYTES = 64 << 20  # stay free on the pod's disk after a copy
MOST_REFUSED = 5  # matches that are named in warnings at a time
MOST_COPIES = 5  # checkpoints in CHECKPOINT_DIR: while the store is slow, no more are copied
STEP_DIGITS = 18  # numbers with more are no steps
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")


@dataclass(frozen=True)
class Watched:
    """A match in a state, and since when it is in this state, by the monotonic clock."""

    path: str
    state: State
    since: float


class Adopter:
    """Adopts what matches `config.adopt`; does nothing without it. One thread at a time calls `poll`.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        config: PodConfig,
        paths: PodPaths,
        warnings: Warnings,
        *,
        disk: PodDisk = POD_DISK,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._root, self._warnings, self._disk, self._clock = config, paths.root, warnings, disk, clock
        self._pattern, self._working = config.adopt, paths.below(paths.code)
        self._state_file = paths.private / "adopted.json"
        self._watched: dict[str, Watched] = {}
        self._early: dict[str, tuple[Watched, Copy]] = {}  # by path: copies that do not count yet
        self._known: dict[str, str] = {}  # path -> digest of the state that was adopted, or was there before
        self._steps: dict[str, str] = {}  # step -> path
        self._unreadable: dict[str, str] = {}  # path -> digest of a state that is not tried again
        self._refused: set[str] = set()
        self._highest = step_of(read_json(paths.restored_file, {}).get("local", "")) or 0
        if self._pattern is not None:
            clean_up(self._root)
            self._begin(read_json(self._state_file, None))

    def poll(self, last: bool = False) -> None:
        """Adopt what has become quiet. With `last`, when the program has ended, report what will not be adopted.

        Raises OSError if a copy cannot be written.
        """
        if self._pattern is None:
            return
        self._watch()
        changed = [each for each in self._watched.values() if self._known.get(each.path) != each.state.digest()]
        quiet = [each for each in changed if self._is_quiet(each)]
        if self._config.learner > 1:
            self._leave(quiet)
            return
        self._publish_early()
        quiet = [each for each in quiet if self._known.get(each.path) != each.state.digest()]
        quiet.sort(key=lambda each: (each.state.changed_ns, each.path))
        for each in quiet[-self._room() :] if self._room() else []:
            if (copy := self._copy(each)) is not None:
                self._publish(each, copy)
        if last:
            self._report(changed)
            return
        for each in changed:
            wanted = each.path not in self._early and self._is_closed(each) and self._room()
            if wanted and (copy := self._copy(each)) is not None:
                self._early[each.path] = (each, copy)

    def _begin(self, kept: dict[str, Any] | None) -> None:
        """Go on from what an earlier sidecar of this pod has written; else note what lies there already."""
        if kept is None:
            self._watch()
            self._known = {path: each.state.digest() for path, each in self._watched.items()}
            self._save()
        else:
            self._known, self._steps = dict(kept["known"]), dict(kept["steps"])
            self._highest = max(self._highest, int(kept["highest"]))

    def _watch(self) -> None:
        before, self._watched = self._watched, {}
        found = matches(self._root, self._working, self._pattern or "")
        for gone in self._refused - {*found}:
            self._accept(gone)
        if len(found) >= MOST_MATCHES:
            self._warnings.add("adopted many", f"more than {MOST_MATCHES} paths match {self._pattern}; remove old ones")
        for path in found:
            try:
                state = look(self._root, f"{self._working}/{path}")
            except NotAdopted as exc:
                self._refuse(path, str(exc))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                self._refuse(path, "it cannot be read by the sidecar; make its files readable for their owner")
            else:
                last = before.get(path)
                same = last is not None and last.state == state
                self._watched[path] = last if last and same else Watched(path, state, self._clock())

    def _is_quiet(self, each: Watched) -> bool:
        return self._is_whole(each) and self._clock() - each.since >= QUIET_SECONDS

    def _is_closed(self, each: Watched) -> bool:
        """Return whether it is a single file that is whole although it has changed lately."""
        single = each.state.entries.keys() == {""} == each.state.files.keys()
        age_seconds = self._clock() - each.since
        if not single or not self._is_whole(each) or not CLOSED_SECONDS <= age_seconds < QUIET_SECONDS:
            return False
        return is_closed(self._root, f"{self._working}/{each.path}")

    def _is_whole(self, each: Watched) -> bool:
        if self._unreadable.get(each.path) == each.state.digest():
            return False
        return bool(each.state.files) and each.state.unfinished(PurePosixPath(each.path).name) is None

    def _publish_early(self) -> None:
        for path, (each, copy) in list(self._early.items()):
            if self._clock() - each.since >= QUIET_SECONDS:
                del self._early[path]
                self._publish(each, copy)

    def _publish(self, each: Watched, copy: Copy) -> None:
        step = step_of(each.path)
        number = self._highest + 1 if step is None else step
        publish(self._root, copy, number, self._config.attempt)
        self._adopted(each, number)

    def _copy(self, each: Watched) -> Copy | None:
        """Return a copy of the match; None if it cannot be adopted in this state."""
        try:
            require_solid(self._root, f"{self._working}/{each.path}", each.state)
            self._require_disk(each.state.size_bytes)
            return make_copy(self._root, self._working, each.path, each.state)
        except NotAdopted as exc:
            self._refuse(each.path, str(exc))
        except PermissionError as exc:
            self._unreadable[each.path] = each.state.digest()
            name = exc.filename or "a file"
            self._refuse(each.path, f"{name} cannot be read by the sidecar; make its files readable for their owner")
        except (Disturbed, FileNotFoundError, NotADirectoryError):
            log(f"{each.path} changed while it was copied; it is not adopted in this state")
        return None

    def _adopted(self, each: Watched, step: int) -> None:
        other = self._steps.get(str(step), each.path)
        if other != each.path:
            text = f"{other} and {each.path} have the same step {step}; the one that was adopted last counts"
            self._warnings.add("adopted twice", text)
        self._known[each.path], self._steps[str(step)] = each.state.digest(), each.path
        self._highest = max(self._highest, step)
        self._accept(each.path)
        self._save()
        log(f"{each.path} is adopted as the checkpoint of step {step}: {megabytes(each.state.size_bytes)}")

    def _save(self) -> None:
        gone = self._known.keys() - self._watched.keys()
        self._known = {path: digest for path, digest in self._known.items() if path not in gone}
        self._disk.save_json(self._state_file, {"known": self._known, "steps": self._steps, "highest": self._highest})

    def _require_disk(self, size_bytes: int) -> None:
        free = self._disk.free_bytes(self._root)
        if free is not None and size_bytes + SPARE_BYTES > free:
            raise NotAdopted(f"its copy needs {megabytes(size_bytes)}, and the pod's disk has {megabytes(free)} free")

    def _room(self) -> int:
        """Return how many more copies may lie in CHECKPOINT_DIR."""
        try:
            with folder_below(self._root, FOLDER) as folder:
                names = [name for name in os.listdir(folder) if not name.startswith(".")]
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return 0
            raise
        return max(0, MOST_COPIES - sum(map(self._is_complete, names)))

    def _is_complete(self, name: str) -> bool:
        try:
            return facts_below(self._root, f"{FOLDER}/{name}/{contract.CHECKPOINT_LOCAL_MARKER}") is not None
        except OSError:  # a file, or a link such as `latest`
            return False

    def _leave(self, quiet: list[Watched]) -> None:
        for each in quiet[:1]:
            text = f"learner {self._config.learner} writes {each.path}: only what learner 1 writes is adopted"
            self._warnings.add("adopted elsewhere", text)

    def _report(self, changed: list[Watched]) -> None:
        for _, copy in self._early.values():
            discard(self._root, copy.name)
        if not self._steps and not changed:
            text = f"nothing that the program wrote below its working directory matches {self._pattern}"
            self._warnings.add("adopted nothing", f"{text}, as checkpoints.from says; no checkpoint was adopted")
        for each in changed:
            if each.state.digest() in (self._known.get(each.path), self._unreadable.get(each.path)):
                continue
            unfinished = each.state.unfinished(PurePosixPath(each.path).name)
            if unfinished is not None:
                self._refuse(each.path, f"the name {unfinished} in it says that it is unfinished")
            elif not self._is_quiet(each):
                self._refuse(each.path, f"it changed in the last {QUIET_SECONDS:g} s before the end; it may be torn")

    def _refuse(self, path: str, reason: str) -> None:
        """Warn about a match, unless enough others are named: a program may write any number of them."""
        if path in self._refused or len(self._refused) < MOST_REFUSED:
            self._refused.add(path)
            self._warnings.add(f"adopted {path}", f"{path} is not adopted as a checkpoint: {reason}")

    def _accept(self, path: str) -> None:
        self._refused.discard(path)
        self._warnings.clear(f"adopted {path}")


def step_of(path: str) -> int | None:
    """Return the last number in the last part of a path, but not in a file's ending such as `.h5`; or None."""
    numbers = re.findall(r"[0-9]+", _ENDING.sub("", PurePosixPath(path).name))
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= STEP_DIGITS else None
