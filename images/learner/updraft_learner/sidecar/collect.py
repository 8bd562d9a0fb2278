"""Take metrics from what an unchanged program prints or writes, as the manifest's `metrics` asks (`collectors`).

Text and event files are followed from where they were when the program started: what was staged with them, such as the
files of an earlier attempt, has been recorded. The journal stores how far each file is recorded.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from updraft_learner import contract
from updraft_learner.below import facts_below, folder_below
from updraft_learner.collectors import (
    JSONL,
    REGEX,
    TENSORBOARD,
    Point,
    compiled,
    metric_groups,
    metric_name,
    number,
    parse_json,
    split_source,
    whole,
)
from updraft_learner.contract import Collector, PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.record.journal import Entry, Journal
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.adopted_scan import matches
from updraft_learner.sidecar.event_files import NoEventFile, is_event_file, read_events
from updraft_learner.sidecar.followed import FollowedFile, lines_of
from updraft_learner.sidecar.recorder import Recorder

MOST_FILES = 200  # that one collector follows
POLL_BYTES = 8 << 20  # of one file in one round
FINAL_BYTES = 256 << 20  # of one file at the program's end, which the job waits for
EVENTS_PER_RECORD = 500
FREED_BYTES = 16 << 20  # of the copied output, before its room on the disk is given back
WINDOW_CHARACTERS = 1 << 20
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class _Reader:
    """A collector of lines at work. `number` is its place in the manifest, from 0."""

    number: int
    collector: Collector
    pattern: Any = None
    groups: Mapping[str, str] = field(default_factory=dict)
    step_group: str | None = None

    @classmethod
    def of(cls, index: int, collector: Collector) -> _Reader:
        if collector.type != REGEX:
            return cls(index, collector)
        pattern = compiled(collector.pattern or "")
        step = collector.step or "step"
        return cls(
            index,
            collector,
            pattern,
            metric_groups(collector, pattern.groupindex),
            step if step in pattern.groupindex else None,
        )


@dataclass
class _TextFile:
    """One followed file: for each reader the lines that its pattern may still need, and how often it has matched."""

    file: FollowedFile
    windows: list[list[str]]
    counts: list[int]
    freed: int = 0


class MetricsCollector:
    """Acts on the collectors of one learner; see the module. `clock` returns seconds since 1970."""

    def __init__(
        self,
        config: PodConfig,
        paths: PodPaths,
        journal: Journal,
        recorder: Recorder,
        warnings: Warnings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._paths, self._journal, self._recorder, self._warnings = paths, journal, recorder, warnings
        self._clock = clock
        self._collectors = config.collect
        self._texts: dict[str | None, list[_Reader]] = {}
        for index, collector in enumerate(config.collect):
            if collector.type != TENSORBOARD:
                self._texts.setdefault(collector.source, []).append(_Reader.of(index, collector))
        self._files: dict[str, _TextFile] = {}
        self._damaged: set[str] = set()
        self._found: set[int] = set()  # numbers of collectors that have taken a point

    @property
    def idle(self) -> bool:
        """Return whether the manifest asks for nothing."""
        return not self._collectors

    def begin(self) -> None:
        """Note how long the files are that exist before the program starts. Called once per pod."""
        positions: dict[str, list[int]] = {}
        for source in self._texts:
            for path in self._paths_of(source):
                positions[_key(source, path)] = [0, self._size(path), *([0] * len(self._texts[source]))]
        for collector in self._collectors:
            if collector.type == TENSORBOARD:
                for path, _ in self._event_files(collector):
                    positions[_key(collector.source, path)] = [0, self._size(path)]
        self._note(positions)

    def poll(self, *, final: bool = False) -> None:
        """Record what is new; with `final` all of it, and say which collectors have found nothing.

        Raises OSError if the journal cannot take it now; the next call continues.
        """
        limit_bytes = FINAL_BYTES if final else POLL_BYTES
        for source, readers in self._texts.items():
            for path in filter(self._is_file, self._paths_of(source)):
                self._follow(source, readers, path, limit_bytes, final=final)
        for index, collector in enumerate(self._collectors):
            if collector.type == TENSORBOARD:
                for path, folder in self._event_files(collector):
                    self._read_events(index, collector, path, folder, limit_bytes)
        if final:
            for index, collector in enumerate(self._collectors):
                if index not in self._found:
                    self._warnings.add(f"metrics[{index}]", f"metrics[{index}]: {self._nothing(collector)}")

    def _nothing(self, collector: Collector) -> str:
        where = collector.source or "the program's output"
        if collector.type == REGEX:
            return f"no line of {where} matched its pattern with a number for a metric"
        return f"no file that {where} names had a number" + (
            " in a line of JSON" if collector.type == JSONL else ": it found no scalar in an event file"
        )

    # --- Lines ----------------------------------------------------------------------------------------
    def _follow(self, source: str | None, readers: list[_Reader], path: str, limit_bytes: int, *, final: bool) -> None:
        key = _key(source, path)
        text = self._files.get(key) or self._open(key, readers, path)
        self._files[key] = text
        with suppress(FileNotFoundError, NotADirectoryError):
            for block in text.file.blocks(final=final, limit_bytes=limit_bytes):
                self._take(key, text, readers, block)
        if source is None:
            self._free(key, text)
        if final and (left_bytes := self._size(path) - text.file.offset) > 0:
            self._warnings.add(f"metrics {path}", f"{path}: its last {left_bytes} bytes were not searched for metrics")

    def _open(self, key: str, readers: list[_Reader], path: str) -> _TextFile:
        generation, offset, *counts = self._journal.read_at.get(key) or [0, 0]
        counts = counts or [0] * len(readers)

        def tell_cut() -> None:
            self._warnings.add(f"cut {path}", f"{path}: it was cut or replaced; it is searched for metrics anew")

        def tell_long_line() -> None:
            self._warnings.add(f"long {path}", f"{path}: a line is too long, and was not searched for metrics")

        file = FollowedFile(self._paths.root, path, (generation, offset), on_cut=tell_cut, on_long_line=tell_long_line)
        return _TextFile(file, [[] for _ in readers], counts)

    def _take(self, key: str, text: _TextFile, readers: list[_Reader], block: bytes) -> None:
        windows, counts = [list(window) for window in text.windows], list(text.counts)
        entries: list[Entry] = []
        for line in lines_of(block):
            for place, reader in enumerate(readers):
                for point in filter(None, self._points(reader, line, windows[place])):
                    step = counts[place] if point.step is None else point.step
                    counts[place] += 1
                    entries += self._entries(reader.number, reader.collector, point, step)
        position = [text.file.generation, text.file.offset + len(block), *counts]
        for entry in entries:
            entry["read_at"] = {key: position}
        self._recorder.record(entries)
        text.windows, text.counts = windows, counts

    def _points(self, reader: _Reader, line: bytes, window: list[str]) -> Iterator[Point | None]:
        if reader.collector.type == JSONL:
            if line.strip():
                yield self._parsed(reader, line)
            return
        for piece in line.decode(errors="replace").split("\r"):  # a progress bar writes over its line
            piece = _COLOURS.sub("", piece)
            if not piece.strip():
                continue
            window.append(piece if piece.endswith("\n") else f"{piece}\n")
            del window[: -reader.collector.lines]
            found = reader.pattern.search("".join(window)[-WINDOW_CHARACTERS:])
            if found is not None:
                window.clear()
                yield self._matched(reader, found.groupdict())

    def _parsed(self, reader: _Reader, line: bytes) -> Point | None:
        try:
            return parse_json(reader.collector, line)
        except ValueError as exc:
            reason = str(exc) if type(exc) is ValueError else "it is not JSON"
            self._warnings.add(f"json {reader.number}", f"metrics[{reader.number}]: a line was left: {reason}")
            return None

    def _matched(self, reader: _Reader, groups: Mapping[str, str | None]) -> Point | None:
        values: dict[str, float] = {}
        for name, group in reader.groups.items():
            text = groups.get(group)
            if text is None:
                continue
            value = number(text.strip())
            if value is None:
                problem = f"metrics[{reader.number}]: group {group} matched {text[:80]!r}, which is no number"
                self._warnings.add(f"group {reader.number} {group}", problem)
            else:
                values[name] = value
        step = whole(number(groups.get(reader.step_group) or "")) if reader.step_group else None
        return Point(values, step) if values else None

    def _free(self, key: str, text: _TextFile) -> None:
        """Give back the room of what was read of the copied output: it may be larger than the pod's disk."""
        end = text.file.offset // 4096 * 4096
        if end - text.freed < FREED_BYTES:
            return
        self._note({key: [text.file.generation, text.file.offset, *text.counts]})
        with suppress(OSError, AttributeError):
            _punch(self._paths.root, text.file.path, text.freed, end - text.freed)
        text.freed = end

    # --- Event files ----------------------------------------------------------------------------------
    def _read_events(self, index: int, collector: Collector, path: str, folder: str, limit_bytes: int) -> None:
        key = _key(collector.source, path)
        if key in self._damaged:
            return
        generation, offset = self._journal.read_at.get(key) or [0, 0]
        if self._size(path) < offset:
            generation, offset = generation + 1, 0
        entries: list[Entry] = []
        try:
            for point, behind in read_events(self._paths.root, path, offset, limit_bytes):
                if point is not None:
                    named = {f"{folder}/{tag}": value for tag, value in point.values.items()}
                    new = self._entries(index, collector, Point(named, point.step, point.t), point.step or 0)
                    for entry in new:
                        entry["read_at"] = {key: [generation, behind]}
                    entries += new
                if len(entries) >= EVENTS_PER_RECORD:
                    self._recorder.record(entries)
                    entries = []
        except FileNotFoundError:
            return
        except NoEventFile as exc:
            self._damaged.add(key)
            self._warnings.add(f"events {path}", f"{path}: {exc}; the rest of it is not read")
        self._recorder.record(entries)

    def _event_files(self, collector: Collector) -> Iterator[tuple[str, str]]:
        """Yield the event files that the collector names, each with its folder relative to the match of the glob."""
        count = 0
        for top in self._paths_of(collector.source):
            for path, folder in self._below(top):
                count += 1
                if count > MOST_FILES:
                    self._tell_too_many(collector.source)
                    return
                yield path, folder

    def _below(self, top: str) -> Iterator[tuple[str, str]]:
        if self._is_file(top):
            if is_event_file(PurePosixPath(top).name):
                yield top, ""
            return
        with suppress(OSError), folder_below(self._paths.root, top) as opened:
            for folder, _, names, _ in os.fwalk(".", dir_fd=opened, follow_symlinks=False):
                below = PurePosixPath(folder).as_posix()
                relative = "" if below == "." else below
                for name in sorted(filter(is_event_file, names)):
                    yield f"{top}/{relative}/{name}" if relative else f"{top}/{name}", relative

    # --- Both -----------------------------------------------------------------------------------------
    def _entries(self, index: int, collector: Collector, point: Point, step: int) -> list[Entry]:
        self._found.add(index)
        values = {metric_name(collector, name): value for name, value in point.values.items()}
        t = self._clock() if point.t is None else point.t
        return self._recorder.metrics_entries(t, step, values, "collected")

    def _paths_of(self, source: str | None) -> list[str]:
        """Return the paths below the pod's root that a source names, at most MOST_FILES."""
        if source is None:
            folder, pattern = contract.OUTPUT_DIR, "*"
        else:
            folder, pattern = split_source(source)
        folder = self._paths.below(folder)
        found: list[str] = []
        with suppress(OSError):  # a part of the path is a link
            paths = matches(self._paths.root, folder, pattern) if pattern else [""]
            found = [f"{folder}/{path}".rstrip("/") for path in paths]
        if len(found) > MOST_FILES:
            self._tell_too_many(source)
        return found[:MOST_FILES]

    def _tell_too_many(self, source: str | None) -> None:
        self._warnings.add(
            f"files {source}", f"metrics: {source} names more than {MOST_FILES} files; the others are not read"
        )

    def _is_file(self, path: str) -> bool:
        return self._facts(path) is not None

    def _size(self, path: str) -> int:
        facts = self._facts(path)
        return 0 if facts is None else facts.st_size

    def _facts(self, path: str) -> os.stat_result | None:
        """Return what a regular file is; None for everything else."""
        with suppress(OSError):
            facts = facts_below(self._paths.root, path)
            return facts if facts is not None and stat.S_ISREG(facts.st_mode) else None
        return None

    def _note(self, positions: dict[str, list[int]]) -> None:
        if positions:
            self._recorder.record([{"t": self._clock(), "source": "sidecar", "read_at": positions}])


def _key(source: str | None, path: str) -> str:
    return f"{source or ''}|{path}"


def _punch(root: Path, path: str, offset: int, length: int) -> None:
    """Make a hole in a file, which keeps its size. Raises OSError or AttributeError where that is not possible."""
    import ctypes  # few pods need it, and the program waits for the sidecar's imports

    keep_size_and_punch = 0x03
    parts = PurePosixPath(path)
    with folder_below(root, str(parts.parent)) as folder:
        file = os.open(parts.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_int64
        if libc.fallocate(file, keep_size_and_punch, size(offset), size(length)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")
    finally:
        os.close(file)
