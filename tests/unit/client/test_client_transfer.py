"""Uploads announce their size, so that the platform can refuse what it has no room for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from updraft.client.transfer import upload_tree
from updraft.exceptions import DataError
from updraft.schemas import TreeBody

OLD = b"x" * 1000
DIGEST = hashlib.sha256(OLD).hexdigest()
TREE = TreeBody.model_validate({"files": [{"path": "a", "sha256": DIGEST, "size": len(OLD), "mode": 0o644}]})


class Session:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int | None, bytes]] = []

    def json(self, method: str, path: str, **request: Any) -> Any:
        if "content" in request:
            content = b"".join(request["content"]())
            self.sent.append((path.rpartition("/")[2], request["content_length"], content))
        return {"missing": [DIGEST]}


def upload(session: Session, path: Path) -> None:
    upload_tree(session, "default", "t", TREE, {DIGEST: path}, None, "code")  # type: ignore[arg-type]


def test_a_blob_is_sent_with_its_size(tmp_path: Path) -> None:
    session = Session()
    (tmp_path / "a").write_bytes(OLD)
    upload(session, tmp_path / "a")
    assert session.sent == [(DIGEST, 1000, OLD)]


@pytest.mark.parametrize("now", [OLD[:-1], OLD + b"x", b""])
def test_a_file_that_changed_since_it_was_packed_is_named(tmp_path: Path, now: bytes) -> None:
    (tmp_path / "a").write_bytes(now)
    with pytest.raises(DataError, match="a: changed while it was being uploaded"):
        upload(Session(), tmp_path / "a")
