"""Buckets whose server lies: about sizes, or about the end of a listing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from folder_store import FolderStore

from updraft_learner.contract import Keys
from updraft_learner.pod import S3Credentials
from updraft_learner.prepare.buckets import MOST_PAGES, SourceBucket, list_source
from updraft_learner.prepare.copying import _SourceStream
from updraft_learner.prepare.errors import SourceError

KEYS = Keys("default")


class Pages:
    """An S3 client whose listing goes on for ever."""

    def __init__(self, token: str | None = None, **item: Any) -> None:
        self.asked, self._token, self._item = 0, token, item

    def list_objects_v2(self, **_: Any) -> dict[str, Any]:
        self.asked += 1
        item = {"Key": f"x/{self.asked}", "Size": 1, "ETag": "0" * 32, "LastModified": datetime.now(UTC), **self._item}
        return {"Contents": [item], "IsTruncated": True, "NextContinuationToken": self._token or str(self.asked)}


def bucket(pages: Pages) -> SourceBucket:
    made = SourceBucket("theirs", S3Credentials("http://127.0.0.1:9", None, "a", "b"))
    made._client = pages
    return made


@pytest.mark.parametrize("item", [{"Key": "x/folder/"}, {"Key": "xy"}])
def test_a_listing_without_an_end_is_ended(item: dict[str, Any]) -> None:
    pages = Pages(**item)
    with pytest.raises(SourceError, match="its listing has no end"):
        list_source(bucket(pages), "x", "s3://theirs/x", 100, 10)
    assert pages.asked == MOST_PAGES


def test_a_listing_that_repeats_itself_is_ended() -> None:
    pages = Pages("again", Key="xy")
    with pytest.raises(SourceError, match="its listing has no end"):
        list_source(bucket(pages), "x", "s3://theirs/x", 100, 10)
    assert pages.asked == 2


def test_a_negative_size_makes_no_room() -> None:
    with pytest.raises(SourceError, match="has -5 bytes"):
        list_source(bucket(Pages(Size=-5)), "x", "s3://theirs/x", 100, 10)


def test_what_comes_is_counted_not_what_was_announced(tmp_path: Path) -> None:
    store, came = FolderStore(tmp_path / "s3"), []

    def count(size: int) -> None:
        came.append(size)
        if sum(came) > 100:
            raise SourceError("limit", "too much")

    from updraft_learner.prepare import blobs

    for number in range(2):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 60)
    with (tmp_path / "0").open("rb") as stream:
        blobs.add_stream(store, KEYS, _SourceStream(stream, "s3://theirs/x", None, count), 100)
    with (tmp_path / "1").open("rb") as stream, pytest.raises(SourceError, match="too much"):
        blobs.add_stream(store, KEYS, _SourceStream(stream, "s3://theirs/x", None, count), 100)
    assert len(list((tmp_path / "s3").rglob("blobs/*"))) == 1
