"""Pass the platform's requests to the program: to stop, and to show what its threads are doing.

Objects in the store become files in IO_DIR, which the program, or `updraft_learner` inside it, reads.
"""

from __future__ import annotations

import stat

from updraft_learner import contract
from updraft_learner.below import facts_below, write_text_below
from updraft_learner.contract import SIGNAL_LIMIT_BYTES, Keys, PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.record.report import log
from updraft_learner.store import ObjectStore


class SignalReader:
    """Reads the platform's requests. One thread calls `poll`; any thread may call `stop`."""

    def __init__(self, config: PodConfig, paths: PodPaths, store: ObjectStore) -> None:
        keys, place = Keys(config.prefix), (config.job_id, config.role, config.attempt, config.learner)
        self._stop_key, self._dump_key = keys.stop(*place), keys.dump(*place)
        self._paths, self._store = paths, store
        self._dump = ""

    def poll(self) -> None:
        """Look for requests and pass them on; raises StorageError or OSError, and looks again at the next call."""
        if self._store.get_bytes(self._stop_key, SIGNAL_LIMIT_BYTES) is not None:
            self.stop("a stop was requested")
        dump = (self._store.get_bytes(self._dump_key, SIGNAL_LIMIT_BYTES) or b"")[:20]
        number = dump.decode("ascii", "replace").strip()
        if number.isdecimal() and number != self._dump:
            write_text_below(self._paths.root, self._paths.below(contract.DUMP_FILE), number)
            self._dump = number
            log(f"the stacks of the program's threads were asked for (request {number})")

    def stop(self, reason: str) -> None:
        """Make the stop file, in place of a link that the program put there; raises OSError."""
        path = self._paths.below(contract.STOP_FILE)
        facts = facts_below(self._paths.root, path)
        if facts is None or stat.S_ISLNK(facts.st_mode):
            write_text_below(self._paths.root, path, "")
            log(f"{reason}; the program is told through the stop file")
