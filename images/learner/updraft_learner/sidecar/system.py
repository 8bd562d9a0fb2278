"""Sample system metrics, with the names of MLflow's own monitor: `system/node_0/cpu_utilization_percentage`.

The values are the node's, the program's own memory (`learner_memory_...`, for which MLflow has no name), and the
program's GPUs. The pod's probe writes the last two to MEMORY_FILE and GPU_FILE, where the program may write too
(`updraft.kubernetes.samples`). A step is a second since this learner's first attempt began (`first_seen`). So the
points of a later attempt follow those of the earlier one at their true distance, and never overlap them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from updraft_learner.contract import (
    GPU_FIELDS,
    GPU_FILE,
    MEMORY_FILE,
    MEMORY_INTERVALS,
    ROOT_DIR,
    SIGNAL_LIMIT_BYTES,
    Keys,
    PodConfig,
)
from updraft_learner.record.files import open_below
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.store import ObjectStore

SHORTEST_SECONDS = 1.0  # the shortest interval that a sample averages over
OLDEST_SAMPLES = 3  # intervals: an older sample says nothing about now
FILE_LIMIT_BYTES = 16 << 10
NO_LIMIT_BYTES = 1 << 60  # control groups of version 1 show a number above this if there is no limit
MOST_GPUS = 64
MOST = 1e9  # percent, MiB or watts; larger values are ignored, because the program can write the file


def first_seen(config: PodConfig, store: ObjectStore, clock: Callable[[], float] = time.time) -> float:
    """Return when this learner's first attempt began; noted in the store by that attempt. Raises StorageError."""
    key = Keys(config.prefix).first_seen(config.job_id, config.role, config.learner)
    try:
        return float(json.loads(store.get_bytes(key, SIGNAL_LIMIT_BYTES) or b"")["t"])
    except (ValueError, KeyError, TypeError):
        now = clock()
        store.put_bytes(key, json.dumps({"t": now}).encode())
        return now


class SystemMetrics:
    """Samples after `begin` was called. Does nothing if the interval is 0 or psutil is missing."""

    def __init__(
        self,
        config: PodConfig,
        recorder: Recorder,
        warnings: Warnings,
        root: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._recorder, self._warnings, self._clock, self._root = recorder, warnings, clock, root
        self._every_seconds = config.system_metrics_seconds
        self._prefix = f"system/node_{config.learner - 1}/"
        self._began: float | None = None
        self._due = clock() + self._every_seconds  # the first sample needs an interval to average over
        self._last_step = -1
        self._psutil: Any = None
        self._network_start: Any = None

    @property
    def wants_first_seen(self) -> bool:
        return self._began is None and self._every_seconds > 0

    def begin(self, first_seen: float) -> None:
        self._began = first_seen

    def poll(self, *, last: bool = False) -> None:
        """Take a sample when it is time; the last one before: a program shorter than an interval has no other."""
        if self._every_seconds <= 0 or (self._psutil is None and not self._load()):
            return
        now = self._clock()
        early_seconds = max(self._every_seconds - SHORTEST_SECONDS, 0) if last else 0
        if self._began is None or early_seconds < self._due - now <= self._every_seconds:
            return  # if it is due later than one interval from now, the clock was set back: sample now
        self._due = now + self._every_seconds
        step = int(now - self._began)
        if step <= self._last_step:
            return
        self._last_step = step
        values = {self._prefix + name: value for name, value in self._sample(now).items()}
        self._recorder.record(self._recorder.metrics_entries(now, step, values, "system", prefix=False))

    def _load(self) -> bool:
        """Import the libraries, and not when the sidecar starts: the program waits for that."""
        try:
            import psutil
        except ImportError:
            self._warnings.add("psutil", "no system metrics: psutil is not installed beside the sidecar")
            self._every_seconds = 0
            return False
        psutil.cpu_percent()  # the first call returns no value
        self._psutil, self._network_start = psutil, psutil.net_io_counters()
        return True

    def _sample(self, now: float) -> dict[str, float]:
        memory, disk = self._psutil.virtual_memory(), shutil.disk_usage(self._root)
        values = {
            "cpu_utilization_percentage": self._psutil.cpu_percent(),
            "system_memory_usage_megabytes": round(memory.used / 1e6, 1),
            "system_memory_usage_percentage": round(memory.used / memory.total * 100, 1),
            "disk_usage_percentage": round(disk.used / disk.total * 100, 1),
            "disk_usage_megabytes": round(disk.used / 1e6, 1),
            "disk_available_megabytes": round(disk.free / 1e6, 1),
        }
        network = self._psutil.net_io_counters()
        if network is not None and self._network_start is not None:
            values["network_receive_megabytes"] = (network.bytes_recv - self._network_start.bytes_recv) / 1e6
            values["network_transmit_megabytes"] = (network.bytes_sent - self._network_start.bytes_sent) / 1e6
        memory = self._probed(MEMORY_FILE, now, intervals=MEMORY_INTERVALS)
        return {**values, **parse_memory(memory), **parse_gpus(self._probed(GPU_FILE, now))}

    def _probed(self, path: str, now: float, intervals: int = 1) -> str:
        """Return the probe's newest sample; empty if there is none, or if it is too old.

        There is none if the pod has no GPU, or if its image or its driver reports nothing. `intervals`: between two
        samples.
        """
        try:
            with open_below(self._root, str(Path(path).relative_to(ROOT_DIR))) as file:
                age_seconds = abs(now - os.fstat(file.fileno()).st_mtime)
                text = file.read(FILE_LIMIT_BYTES).decode(errors="replace")
        except OSError:
            return ""
        return text if age_seconds <= OLDEST_SAMPLES * intervals * self._every_seconds else ""


def parse_memory(text: str) -> dict[str, float]:
    """Parse `used reclaimable limit` in bytes; what can be reclaimed at any time is not counted, as in `kubectl top`.
    Without a limit there is no percentage."""
    found = re.fullmatch(r"(\d{1,18}) (\d{1,18}) (\d{1,19}|max)\n?", text, re.ASCII)
    if found is None:
        return {}
    used_bytes = max(int(found[1]) - int(found[2]), 0)
    values = {"learner_memory_megabytes": round(used_bytes / 1e6, 1)}
    limit_bytes = 0 if found[3] == "max" else int(found[3])
    if 0 < limit_bytes < NO_LIMIT_BYTES:
        values["learner_memory_percentage"] = round(used_bytes / limit_bytes * 100, 1)
    return {name: value for name, value in values.items() if value < MOST}


def parse_gpus(text: str) -> dict[str, float]:
    """Parse nvidia-smi's CSV (MiB and watts) into metrics with MLflow's names. Values that a device does not report are
    left out, and so are other lines."""
    values: dict[str, float] = {}
    for line in text.splitlines()[:MOST_GPUS]:
        index, *cells = (cell.strip() for cell in line.split(","))
        if len(cells) != len(GPU_FIELDS) - 1 or not re.fullmatch(r"\d{1,3}", index, re.ASCII):
            continue
        busy, used_mib, total_mib, watts = (_number(cell) for cell in cells)
        if busy is not None:
            values[f"gpu_{index}_utilization_percentage"] = busy
        if used_mib is not None and total_mib and used_mib <= total_mib:
            values[f"gpu_{index}_memory_usage_megabytes"] = round(used_mib * 1.048576, 1)
            values[f"gpu_{index}_memory_usage_percentage"] = round(used_mib / total_mib * 100, 1)
        if watts is not None:
            values[f"gpu_{index}_power_usage_watts"] = watts
    return values


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if 0 <= number < MOST else None
