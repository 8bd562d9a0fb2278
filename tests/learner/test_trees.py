"""Trees: what is packed, what is refused, and that laying out gives the same files again."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft_learner.ignore import Ignore
from updraft_learner.trees import (
    DigestMismatch,
    Tree,
    TreeError,
    TreeFile,
    from_zip,
    hash_file,
    materialise,
    remove_ignored,
    safe_path,
    scan,
)

A = "a" * 64


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def paths(tree: Tree) -> list[str]:
    return [file.path for file in tree.files]


def test_equal_folders_have_equal_digests_and_another_byte_changes_it(tmp_path: Path) -> None:
    one = put(tmp_path / "one", {"train.py": "x", "lib/a.py": "y"})
    two = put(tmp_path / "two", {"lib/a.py": "y", "train.py": "x"})
    assert scan(one)[0] == scan(two)[0]
    assert scan(one)[0].sha256 == scan(two)[0].sha256
    (two / "train.py").write_text("z")
    assert scan(one)[0].sha256 != scan(two)[0].sha256


def test_document_round_trips_and_keeps_the_executable_bit(tmp_path: Path) -> None:
    put(tmp_path, {"run.sh": "echo", "data.txt": "1"})
    (tmp_path / "run.sh").chmod(0o755)
    tree, blobs = scan(tmp_path)
    assert Tree.from_json(tree.to_json()) == tree
    assert {file.path: file.mode for file in tree.files} == {"run.sh": 0o755, "data.txt": 0o644}
    assert {hash_file(path)[0] for path in blobs.values()} == set(blobs)


def test_ignores_like_git(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            ".updraftignore": "# comment\n*.log\n!keep.log\n/top.txt\nbuild/\ndocs/**/draft?.md\n\\!odd\n",
            "a.log": "",
            "sub/b.log": "",
            "sub/keep.log": "",
            "top.txt": "",
            "sub/top.txt": "",
            "build/x": "",
            "sub/build/y": "",
            "docs/draft1.md": "",
            "docs/deep/er/draft2.md": "",
            "docs/draft10.md": "",
            "!odd": "",
            ".git/config": "",
            "sub/__pycache__/m.pyc": "",
            "train.py": "",
        },
    )
    assert paths(scan(tmp_path)[0]) == ["docs/draft10.md", "sub/keep.log", "sub/top.txt", "train.py"]


def test_a_default_can_be_taken_back(tmp_path: Path) -> None:
    put(tmp_path, {".updraftignore": "!node_modules/\n", "node_modules/a.js": ""})
    assert paths(scan(tmp_path)[0]) == ["node_modules/a.js"]


@given(st.text(alphabet="ab*?[]!/\\ #.", max_size=12), st.text(alphabet="ab/.", min_size=1, max_size=8))
def test_no_pattern_breaks_the_matcher(pattern: str, path: str) -> None:
    Ignore.parse([pattern]).matches(path, is_folder=False)


def test_a_link_inside_is_followed_and_one_outside_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "code", {"real/a.txt": "1"})
    (tmp_path / "code" / "again.txt").symlink_to("real/a.txt")
    (tmp_path / "code" / "folder").symlink_to("real")
    assert paths(scan(tmp_path / "code")[0]) == ["again.txt", "folder/a.txt", "real/a.txt"]
    put(tmp_path, {"secret": "s"})
    (tmp_path / "code" / "real" / "leak").symlink_to(tmp_path / "secret")
    with pytest.raises(TreeError, match=r"'folder/leak' is a link out of the folder"):
        scan(tmp_path / "code")


@pytest.mark.parametrize(("target", "reason"), [("missing", "leads nowhere"), (".", "a folder that holds it")])
def test_links_that_cannot_be_followed_are_refused(tmp_path: Path, target: str, reason: str) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(TreeError, match=reason):
        scan(tmp_path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TreeError, match=r"'pipe' is a socket, pipe or device"):
        scan(tmp_path)


def test_the_limit_error_names_limit_and_biggest_files(tmp_path: Path) -> None:
    put(tmp_path, {"weights.bin": "x" * 900, "small.py": "y" * 200})
    with pytest.raises(TreeError, match=r"1100 bytes; the limit is 1000 bytes\. Biggest: weights.bin \(900 bytes\)"):
        scan(tmp_path, limit_bytes=1000)
    with pytest.raises(TreeError, match="has more than 1 files, and the limit is 1"):
        scan(tmp_path, limit_files=1)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0b", "C:/x"])
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(TreeError, match="is refused"):
        safe_path(path)


@given(st.text(max_size=20))
def test_a_path_that_passes_stays_below_its_folder(path: str) -> None:
    try:
        safe_path(path)
    except TreeError:
        return
    assert os.path.normpath(os.path.join("/root", path)) == f"/root/{path}"


def test_documents_that_name_impossible_files_are_refused() -> None:
    with pytest.raises(TreeError, match="occurs twice"):
        Tree((TreeFile("a", A, 1), TreeFile("a", "b" * 64, 1)))
    with pytest.raises(TreeError, match="both a file and a folder"):
        Tree((TreeFile("a", A, 1), TreeFile("a/b", A, 1)))
    for text in ("[]", "{}", '{"files": [{"path": "a", "sha256": "../x", "size": 1, "mode": 420}]}', "nonsense"):
        with pytest.raises(TreeError, match="not a tree document"):
            Tree.from_json(text)


def archive(tmp_path: Path, members: dict[str, bytes], *, link: str | None = None) -> Path:
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in members.items():
            bundle.writestr(name, content)
        if link is not None:
            info = zipfile.ZipInfo(link)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            bundle.writestr(info, "/etc/passwd")
    return path


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path, {"train.py": b"x", "lib/": b"", "lib/a.py": b"y"})
    assert paths(scan(from_zip(path, tmp_path / "out"))[0]) == ["lib/a.py", "train.py"]


@pytest.mark.parametrize("name", ["../evil.py", "/abs.py", "a/../../evil.py", "a\\..\\evil"])
def test_a_zip_that_escapes_is_refused_with_the_members_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(TreeError, match=r"code\.zip: member .* escapes the archive's folder"):
        from_zip(archive(tmp_path, {name: b"x"}), tmp_path / "out")
    assert list((tmp_path / "out").rglob("*")) == []


def test_a_zip_with_a_link_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="member 'link' is a link or a device"):
        from_zip(archive(tmp_path, {}, link="link"), tmp_path / "out")


def test_a_zip_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    path = archive(tmp_path, {"bomb": b"\0" * 5_000_000})
    with pytest.raises(TreeError, match=r"unpacks to more than the limit of 1\.0 MB \(at member 'bomb'\)"):
        from_zip(path, tmp_path / "out", limit_bytes=1_000_000)


def test_what_is_no_zip_or_is_damaged_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "code.zip").write_text("hello")
    with pytest.raises(TreeError, match=r"code\.zip is no zip archive or is damaged"):
        from_zip(tmp_path / "code.zip", tmp_path / "out")
    path = archive(tmp_path, {"a": b"some content that is compressed" * 9})
    raw = bytearray(path.read_bytes())
    raw[40] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(TreeError, match="member 'a' cannot be unpacked"):
        from_zip(path, tmp_path / "out2")


def test_laying_out_gives_the_same_tree_and_keeps_what_is_there(tmp_path: Path) -> None:
    source = put(tmp_path / "in", {"a": "1", "b/c": "22", "b/d/e": "333", "same": "1"})
    tree, blobs = scan(source)
    fetched: list[str] = []

    def fetch(file: TreeFile) -> io.BytesIO:
        fetched.append(file.path)
        return io.BytesIO(blobs[file.sha256].read_bytes())

    materialise(tree, tmp_path / "out", fetch)
    assert scan(tmp_path / "out")[0] == tree
    assert (tmp_path / "out/b").stat().st_mode & 0o070 == 0o070
    (tmp_path / "out/b/c").write_text("??")
    fetched.clear()
    kept: dict[str, bool] = {}
    materialise(tree, tmp_path / "out", fetch, progress=lambda file, there: kept.update({file.path: there}))
    assert fetched == ["b/c"]
    assert kept == {"a": True, "b/c": False, "b/d/e": True, "same": True}


def test_wrong_content_leaves_nothing(tmp_path: Path) -> None:
    tree = Tree((TreeFile("model.bin", A, 3),))
    with pytest.raises(DigestMismatch, match=r"'model.bin' does not match its digest"):
        materialise(tree, tmp_path, lambda _: io.BytesIO(b"bad"))
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root/sub").symlink_to(outside)
    with pytest.raises(TreeError, match="sub exists and is no folder"):
        materialise(Tree((TreeFile("sub/x", A, 1),)), tmp_path / "root", lambda _: io.BytesIO(b"x"))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("size", [-1, True, 1.0, "1"])
def test_a_size_that_would_get_past_a_limit_is_refused(size: object) -> None:
    document = {"files": [{"path": "a", "sha256": "0" * 64, "size": size, "mode": 0o644}]}
    with pytest.raises(TreeError, match="no valid sha256, size and mode"):
        Tree.from_json(json.dumps(document))


def test_content_larger_than_its_document_says_is_not_written_on(tmp_path: Path) -> None:
    data = b"x" * 5_000_000
    read: list[int] = []

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            chunk = super().read(size)
            read.append(len(chunk))
            return chunk

    tree = Tree((TreeFile("a", hashlib.sha256(data).hexdigest(), 10),))
    with pytest.raises(DigestMismatch, match=r"expected .* with 10 bytes"):
        materialise(tree, tmp_path / "out", lambda file: Counted(data))
    assert sum(read) <= 1 << 20
    assert list((tmp_path / "out").iterdir()) == []


def test_a_name_that_no_file_system_takes_is_refused_briefly() -> None:
    with pytest.raises(TreeError, match="longer than 255 bytes") as caught:
        safe_path("a/" + "é" * 50_000)
    assert len(str(caught.value)) < 600
    assert safe_path("a/" + "x" * 255)


def test_what_is_ignored_is_removed_as_it_would_be_left_out(tmp_path: Path) -> None:
    for name in ("train.py", "big.bin", "old/x.py", ".git/config", "lib/__pycache__/a.pyc", "lib/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".updraftignore").write_text("*.bin\nold/\n")
    tree, _ = scan(tmp_path)
    remove_ignored(tmp_path)
    assert scan(tmp_path, ignores=False)[0] == tree
    assert not (tmp_path / ".git").exists()


def test_an_ignore_file_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / ".updraftignore").write_text("x\n" * 100_000)
    with pytest.raises(TreeError, match=r"\.updraftignore has more than 65536 bytes"):
        scan(tmp_path)
