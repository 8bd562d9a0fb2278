from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from folder_store import FolderStore

from updraft.storage.logbook import MERGE_CHUNKS, SMALL_BYTES, LogBook, LogPosition, read_log, read_log_end
from updraft_learner.store import READ_LIMIT_BYTES

PLACE = ("default", "job-1", "train", 1, 1)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def line(n: int, t: str | None = None) -> dict[str, Any]:
    return {"n": n, "t": t or f"2026-01-01T00:00:00.{n:09d}Z", "line": f"line {n}"}


def numbers(store: FolderStore, **options: Any) -> list[int]:
    return [entry["n"] for entry in read_log(*PLACE, store=store, **options)]


def keys(store: FolderStore) -> list[str]:
    return [item.key.rpartition("/")[2] for item in store.list("")]


def test_lines_come_back_in_order_and_in_pages(store: FolderStore) -> None:
    assert numbers(store) == []
    book = LogBook.open(*PLACE, store=store)
    book.append([line(1), line(2), line(3)])
    book.append([])
    book.append([line(4), line(5)])
    assert read_log(*PLACE, store=store) == [line(n) for n in range(1, 6)]
    assert numbers(store, limit=2) == [1, 2]
    assert numbers(store, after=2, limit=2) == [3, 4]
    assert numbers(store, after=4) == [5]
    assert numbers(store, after=5) == []


def test_a_new_writer_goes_on_where_the_last_one_stopped(store: FolderStore) -> None:
    book = LogBook.open(*PLACE, store=store)
    assert (book.last, book.tail) == (LogPosition(), ())
    book.append([line(1), line(2, "T")])
    book.append([line(3, "T")])
    again = LogBook.open(*PLACE, store=store)
    assert (again.last, again.tail) == (LogPosition(3, "T", 2), ("line 1", "line 2", "line 3"))
    assert (again.last, again.tail) == (book.last, book.tail)


def test_the_same_lines_written_again_are_there_once(store: FolderStore) -> None:
    book, late = LogBook.open(*PLACE, store=store), LogBook.open(*PLACE, store=store)
    book.append([line(1), line(2)])
    book.append([line(1), line(2), line(3)])
    late.append([line(1)])
    late.append([line(2), line(3), line(4)])
    assert numbers(store) == [1, 2, 3, 4]
    assert (book.last.n, book.tail) == (3, ("line 1", "line 2", "line 3"))


def test_small_chunks_are_merged(store: FolderStore) -> None:
    book = LogBook.open(*PLACE, store=store)
    for n in range(1, MERGE_CHUNKS + 3):
        book.append([line(n)])
    assert keys(store) == ["000000000001.jsonl", f"{MERGE_CHUNKS + 1:012d}.jsonl", f"{MERGE_CHUNKS + 2:012d}.jsonl"]
    assert numbers(store) == list(range(1, MERGE_CHUNKS + 3))
    assert numbers(store, after=MERGE_CHUNKS - 1) == [MERGE_CHUNKS, MERGE_CHUNKS + 1, MERGE_CHUNKS + 2]


def test_a_chunk_that_is_being_written_makes_no_gap(store: FolderStore) -> None:
    book = LogBook.open(*PLACE, store=store)
    book.append([line(1), line(2), line(3)])
    book.append([line(4)])
    first = next(iter(store.list(""))).key
    whole = store.get_bytes(first) or b""
    store.put_bytes(first, whole[: len(whole) // 2])
    assert numbers(store) == [1]
    store.put_bytes(first, whole)
    assert numbers(store, after=1) == [2, 3, 4]


class Counting(FolderStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[str] = []

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        self.reads.append(key)
        return super().get_bytes(key, limit_bytes)


def test_only_chunks_that_matter_are_fetched(tmp_path: Path) -> None:
    store = Counting(tmp_path)
    book = LogBook.open(*PLACE, store=store)
    for first in range(1, 100, 10):
        book.append([line(n) for n in range(first, first + 10)])
    store.reads.clear()
    assert numbers(store, after=95) == [96, 97, 98, 99, 100]
    assert len(store.reads) == 1


def long(n: int) -> dict[str, Any]:
    return {**line(n), "line": "x" * SMALL_BYTES}


def test_large_chunks_stay_and_are_not_kept_in_memory(store: FolderStore) -> None:
    book = LogBook.open(*PLACE, store=store)
    for n in range(1, 100):
        book.append([long(n) if n % 10 == 0 else line(n)])
    assert numbers(store) == list(range(1, 100))
    assert numbers(store, after=55) == list(range(56, 100))
    assert sum(map(len, book._small.values())) < MERGE_CHUNKS * SMALL_BYTES
    assert LogBook.open(*PLACE, store=store).last.n == 99


def test_a_chunk_that_grew_is_not_replaced_by_its_smaller_self(store: FolderStore) -> None:
    book = LogBook.open(*PLACE, store=store)
    book.append([line(1)])
    book.append([line(2)])
    book.append([line(1), long(2), line(3)])
    for n in range(4, 4 + MERGE_CHUNKS):
        book.append([line(n)])
    assert numbers(store) == list(range(1, 4 + MERGE_CHUNKS))


def test_a_page_ends_when_it_is_large(store: FolderStore) -> None:
    book = LogBook.open(*PLACE, store=store)
    for n in range(1, 201):
        book.append([long(n)])
    first = numbers(store)
    assert 0 < len(first) < 200
    read = first
    while more := numbers(store, after=read[-1]):
        read += more
    assert read == list(range(1, 201))


def test_the_end_is_read_from_the_end(store: FolderStore) -> None:
    book = LogBook.open(*PLACE, store=store)
    assert read_log_end(*PLACE, limit=5, store=store) == []
    for n in range(1, 50, 3):
        book.append([line(n), line(n + 1), line(n + 2)])
    assert [entry["n"] for entry in read_log_end(*PLACE, limit=5, store=store)] == [47, 48, 49, 50, 51]
    assert len(read_log_end(*PLACE, limit=500, store=store)) == 51
