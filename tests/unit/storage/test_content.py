from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from folder_store import FolderStore

from updraft.exceptions import DataError, LimitError, NotFoundError
from updraft.services import services_of
from updraft.storage import ContentStore
from updraft_learner.contract import Keys
from updraft_learner.trees import Tree, TreeFile, scan


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def local(tmp_path: Path) -> ContentStore:
    return ContentStore(FolderStore(tmp_path / "store"), Keys("default"))


def test_a_folder_goes_in_and_comes_out_through_a_real_server(content: ContentStore, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "train.py").write_text("print(1)")
    (code / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (code / "sub" / "run.sh").chmod(0o755)
    (code / "same.txt").write_text("print(1)")
    tree, blobs = scan(code)
    assert content.missing(tree) == set(blobs)
    with pytest.raises(DataError, match="2 of its contents are not stored"):
        content.put_tree(tree)
    assert content.put_blobs(blobs) == 2
    assert content.put_blobs(blobs) == 0
    assert content.get_tree(content.put_tree(tree)) == tree
    assert content.find_tree(tree.sha256) == tree
    assert content.find_tree("a" * 64) is None


def test_content_with_another_digest_is_refused_and_not_stored(local: ContentStore, tmp_path: Path) -> None:
    wrong, data = sha(b"other"), b"data"
    (tmp_path / "file").write_bytes(data)
    for given in (io.BytesIO(data), tmp_path / "file"):
        with pytest.raises(DataError, match=r"its SHA-256 is .*, not .* as announced"):
            local.put_blob(given, wrong)
    assert not local.has_blob(wrong)
    assert not local.has_blob(sha(data))
    local.put_blob(io.BytesIO(data), sha(data), limit_bytes=4)
    assert local.open_blob(sha(data)).read() == data


def test_a_stream_is_cut_at_its_limit(local: ContentStore) -> None:
    with pytest.raises(LimitError, match="larger than the limit of 3 bytes"):
        local.put_blob(io.BytesIO(b"data"), sha(b"data"), limit_bytes=3)


def test_names_that_are_no_digest_are_refused(local: ContentStore) -> None:
    for name in ("", "../../etc/passwd", "A" * 64, "a" * 63):
        with pytest.raises(DataError, match="64 hexadecimal digits"):
            local.open_blob(name)
        with pytest.raises(DataError, match="64 hexadecimal digits"):
            local.get_tree(name)


def test_a_tree_that_is_not_there_or_was_changed_is_named(local: ContentStore) -> None:
    with pytest.raises(NotFoundError, match="aaaaaaaaaaaa is not in the content store"):
        local.get_tree("a" * 64)
    tree = Tree((TreeFile("x", sha(b"x"), 1),))
    local.put_blob(io.BytesIO(b"x"), sha(b"x"))
    name = local.put_tree(tree)
    local.store.put_bytes(local.keys.tree(name), Tree((TreeFile("y", sha(b"x"), 1),)).to_json())
    with pytest.raises(DataError, match="does not match its digest"):
        local.get_tree(name)


def test_many_blobs_are_looked_up_with_one_listing(local: ContentStore) -> None:
    digests = [sha(str(number).encode()) for number in range(600)]
    local.put_blob(io.BytesIO(b"0"), digests[0])
    assert local.missing_of(digests) == set(digests[1:])


def test_tenants_do_not_share_content(settings: object) -> None:
    services = services_of(settings)  # type: ignore[arg-type]
    mine, theirs = services.content("a"), services.content("b")
    mine.put_blob(io.BytesIO(b"secret"), sha(b"secret"))
    assert mine.has_blob(sha(b"secret"))
    assert not theirs.has_blob(sha(b"secret"))
