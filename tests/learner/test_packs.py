"""Packs: every folder of packages comes back as it was, whatever its files are, and nothing is written elsewhere."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft_learner.environment import packs
from updraft_learner.environment.packs import FOLDER, PACK_BYTES, SMALL_BYTES, lay_packed, store_packed
from updraft_learner.trees import Tree, TreeError, TreeFile

NAMES = st.text(st.sampled_from("abé .-_0"), min_size=1, max_size=12).filter(lambda name: name.strip(". ") != "")
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
CONTENTS = st.tuples(st.sampled_from([0, 1, 40, 3000, 9000]), st.binary(min_size=1, max_size=8), st.booleans())


class Blobs(dict[str, bytes]):
    def store(self, digest: str, content: bytes | Path) -> None:
        self[digest] = content.read_bytes() if isinstance(content, Path) else content
        assert hashlib.sha256(self[digest]).hexdigest() == digest

    def fetch(self, file: TreeFile) -> io.BytesIO:
        return io.BytesIO(self[file.sha256])


def write(folder: Path, files: dict[str, tuple[bytes, bool]]) -> None:
    for path, (content, runs) in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        (folder / path).chmod(0o755 if runs else 0o644)


def read(folder: Path) -> dict[str, tuple[bytes, bool]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
        for path in files
    }


def stored(folder: Path, blobs: Blobs) -> Tree:
    return store_packed(folder, blobs.store, limit_bytes=1 << 40, limit_files=10_000)


def laid(tree: Tree, blobs: Blobs, anchor: Path) -> Path:
    lay_packed(tree, anchor / "environment", blobs.fetch, anchor=anchor, progress=lambda file, kept: None)
    return anchor / "environment"


def pack_of(*entries: tarfile.TarInfo, blobs: Blobs) -> Tree:
    """Return a tree of one pack, as somebody without our code could have written it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    blobs.store(digest, content.getvalue())
    return Tree((TreeFile(f"{FOLDER}/00000.tar", digest, len(content.getvalue())),))


def entry(name: str, size: int = 1, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.type, found.linkname = size, kind, link
    return found


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(PATHS, CONTENTS, max_size=12))
def test_a_folder_comes_back_as_it_was(drawn: dict[str, tuple[int, bytes, bool]]) -> None:
    parents = {"/".join(path.split("/")[:depth]) for path in drawn for depth in range(1, path.count("/") + 1)}
    files = {path: ((part * 9000)[:size], runs) for path, (size, part, runs) in drawn.items() if path not in parents}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as scratch:
        patch.setattr(packs, "SMALL_BYTES", 4000)
        patch.setattr(packs, "PACK_BYTES", 12_000)
        patch.setattr(packs, "PACK_LIMIT_BYTES", 48_000)
        source, anchor, blobs = Path(scratch, "source"), Path(scratch, "root"), Blobs()
        source.mkdir()
        anchor.mkdir()
        write(source, files)
        tree = stored(source, blobs)
        assert read(laid(tree, blobs, anchor)) == files
        assert stored(source, Blobs()) == tree  # the same files have the same tree
        large = {path for path, (content, _) in files.items() if len(content) >= 4000}
        assert {file.path for file in tree.files if not file.path.startswith(FOLDER)} == large


def test_thousands_of_files_become_a_few_objects(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number}.py").write_bytes(b"x" * 2000)
    (tmp_path / "large.so").write_bytes(b"y" * SMALL_BYTES)
    blobs = Blobs()
    tree = stored(tmp_path, blobs)
    assert len(tree.files) <= 4
    assert max(map(len, blobs.values())) <= PACK_BYTES


def test_a_link_of_the_program_is_replaced_and_not_followed(tmp_path: Path) -> None:
    source, anchor, outside, blobs = (tmp_path / "source", tmp_path / "root", tmp_path / "outside", Blobs())
    for folder in (source, anchor / "environment", outside):
        folder.mkdir(parents=True)
    write(source, {"pkg/a.py": (b"a", False)})
    (outside / "a.py").write_text("mine")
    (anchor / "environment" / "pkg").symlink_to(outside)
    assert read(laid(stored(source, blobs), blobs, anchor)) == {"pkg/a.py": (b"a", False)}
    assert (outside / "a.py").read_text() == "mine"


@pytest.mark.parametrize(
    "bad",
    [
        entry("../a"),
        entry("/a"),
        entry("a/../../b"),
        entry("a", size=0, kind=tarfile.SYMTYPE, link="/etc/passwd"),
        entry("a", size=0, kind=tarfile.LNKTYPE, link="/etc/passwd"),
        entry("a", size=0, kind=tarfile.FIFOTYPE),
    ],
    ids=lambda bad: f"{bad.name} {bad.type.decode()}",
)
def test_what_no_folder_of_packages_holds_is_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    blobs = Blobs()
    with pytest.raises(TreeError):
        laid(pack_of(bad, blobs=blobs), blobs, tmp_path)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_a_pack_that_is_no_archive_or_too_large_is_refused(tmp_path: Path) -> None:
    content = b"no archive" * 100
    blobs = Blobs()
    blobs.store(digest := hashlib.sha256(content).hexdigest(), content)
    with pytest.raises(TreeError, match="cannot be read"):
        laid(Tree((TreeFile(f"{FOLDER}/00000.tar", digest, len(content)),)), blobs, tmp_path)
    with pytest.raises(TreeError, match="a pack has at most"):
        laid(Tree((TreeFile(f"{FOLDER}/00000.tar", digest, 1 << 40),)), blobs, tmp_path)


def test_the_folder_of_packs_is_the_platforms(tmp_path: Path) -> None:
    write(tmp_path, {f"{FOLDER}/00000.tar": (b"mine", False)})
    with pytest.raises(TreeError, match=r"\.packs"):
        stored(tmp_path, Blobs())


@pytest.mark.parametrize(("limits", "words"), [((5, 10), "the limit is 5 bytes"), ((100, 1), "the limit is 1")])
def test_limits_are_named(tmp_path: Path, limits: tuple[int, int], words: str) -> None:
    write(tmp_path, {"a": (b"123", False), "b": (b"456", False)})
    with pytest.raises(TreeError, match=words):
        store_packed(tmp_path, Blobs().store, limit_bytes=limits[0], limit_files=limits[1])
