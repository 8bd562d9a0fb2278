"""Trees: what is packed, what is refused, and that laying out gives the same files again."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import stat
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from bounds import bounded
from hypothesis import assume, example, given
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


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("a*b?d", "axxbcd", True),
        ("a*b?d", "abd", False),
        ("*.tar.*", "x/code.tar.gz", True),
        ("*.tar.*", "code.tar", False),
        ("ab*ba", "aba", False),
        ("[!a-c]x", "dx", True),
        ("[!a-c]x", "bx", False),
        ("[^]]x", "!x", True),
        ("[]a]", "]", True),
        ("[a", "[a", True),
        ("[b-a]", "[b-a]", True),
        ("a[b/c]d", "a/d", False),
        ("a?d", "a/d", False),
        (r"\*", "a", False),
        (r"\*", "*", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "x/a/b", False),
        ("**/a/*/b", "x/a/a/y/b", True),
        ("a/**", "a", False),
        ("a/**", "a/x/y", True),
        ("**", "a", True),
        ("/**/", "a", True),
        ("a**b", "axb", True),
        ("a**b", "a/b", False),
    ],
)
def test_patterns_mean_what_they_mean_to_git(pattern: str, path: str, ignored: bool) -> None:
    assert Ignore.parse([pattern], defaults=False).matches(path, is_folder=True) is ignored


def matches(pattern: str, text: str, one: str = "?", any_: str = "*") -> bool:
    """By the definition, whatever it costs."""
    if not pattern:
        return not text
    if pattern[0] == any_:
        return any(matches(pattern[1:], text[at:], one, any_) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in (one, text[0]) and matches(pattern[1:], text[1:], one, any_)


@given(st.text(alphabet="ab*?", min_size=1, max_size=8), st.text(alphabet="ab", min_size=1, max_size=10))
@example("*a*b*a", "abba")
def test_a_name_matches_by_the_definition(pattern: str, name: str) -> None:
    assume(pattern != "**")
    assert Ignore.parse([pattern], defaults=False).matches(name, is_folder=False) is matches(pattern, name)


@given(st.text(alphabet="ab*?", min_size=1, max_size=8), st.text(alphabet="ab", min_size=1, max_size=8))
def test_folders_match_by_the_definition(pattern: str, path: str) -> None:
    """With a letter for a name: `*` stands for any number of folders, `?` for any name."""
    parts = ["**" if letter == "*" else "*" if letter == "?" else letter for letter in pattern]
    wanted = matches(pattern if pattern[-1] != "*" else f"{pattern}?", path)
    given = Ignore.parse([f"/{'/'.join(parts)}"], defaults=False)
    assert given.matches("/".join(path), is_folder=False) is wanted


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 12 + "*b",
        "*a" * 120 + "*b" * 7,
        "*?" * 100 + "b",
        "*[ab]" * 51 + "c",
        f"*{'[ab]' * 60}c*",
        "**/a*a*/" * 30,
    ],
)
def test_a_hostile_pattern_costs_little(pattern: str) -> None:
    """The first took a second for 28 characters, and seven times as much for each four more."""
    ignore = Ignore.parse([pattern])
    with bounded(1, 10):
        for path in ("a" * 255, "a/" * 100 + "a" * 255, "aaaaaaaaa/" * 100 + "a"):
            ignore.matches(path, is_folder=False)


def test_a_link_inside_is_followed_and_one_outside_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "code", {"real/a.txt": "1"})
    (tmp_path / "code" / "again.txt").symlink_to("real/a.txt")
    (tmp_path / "code" / "folder").symlink_to("real")
    assert paths(scan(tmp_path / "code")[0]) == ["again.txt", "folder/a.txt", "real/a.txt"]
    put(tmp_path, {"secret": "s"})
    (tmp_path / "code" / "real" / "leak").symlink_to(tmp_path / "secret")
    with pytest.raises(TreeError, match=r"'folder/leak' is a link out of the folder"):
        scan(tmp_path / "code")


def test_links_that_lead_to_each_other_are_refused_or_ignored(tmp_path: Path) -> None:
    put(tmp_path, {"train.py": ""})
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    remove_ignored(tmp_path)
    with pytest.raises(TreeError, match=r"'one' is a link that leads nowhere"):
        scan(tmp_path)
    (tmp_path / ".updraftignore").write_text("one\ntwo\n")
    assert paths(scan(tmp_path)[0]) == ["train.py"]
    remove_ignored(tmp_path)
    assert not (tmp_path / "one").is_symlink()


def test_a_folder_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / ("a/" * 101)).mkdir(parents=True)
    for look in (scan, remove_ignored):
        put(tmp_path, {f"{'a/' * 101}f": ""})
        with pytest.raises(TreeError, match="deeper than 100 folders"):
            look(tmp_path)


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


ENTRY = {"path": "a", "sha256": A, "size": 1, "mode": 0o644}
WRONG = (
    {"sha256": "../x"},
    {"sha256": [A]},
    {"mode": 420.0},
    {"mode": 0o777},
    {"path": 1},
    {"path": {"path": "a"}},
    {"other": 1},
    {"x" * 5_000: 1},
    {"size": {"files": 1}},
    {"files": []},
)
NO_DOCUMENTS = (
    "nonsense",
    "[]",
    "{}",
    '"files"',
    '{"files": "files"}',
    '{"files": {}}',
    '{"files": [{}]}',
    '{"files": [1]}',
    "[" * 100_000,
    '{"files":' * 100_000,
    *(json.dumps({"files": [ENTRY, {**ENTRY, **wrong}]}) for wrong in WRONG),
)


@pytest.mark.parametrize("text", NO_DOCUMENTS, ids=range(len(NO_DOCUMENTS)))
def test_what_is_no_tree_document_is_refused_shortly(text: str) -> None:
    with pytest.raises(TreeError, match="not a tree document") as caught:
        Tree.from_json(text)
    assert len(str(caught.value)) < 600


NAMES = st.lists(st.text(alphabet="a-.0\x01é\U0010ffff", min_size=1, max_size=3), min_size=1, max_size=4)
PATHS = st.lists(NAMES.map("/".join).filter(lambda path: not {".", ".."} & {*path.split("/")}), max_size=8)


def is_wrong(paths: list[str]) -> bool:
    """By the definition: a path occurs twice, or is the folder of another."""
    folders = {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents}
    return len({*paths}) < len(paths) or bool({*paths} & folders)


@given(PATHS)
@example(["a", "a.b", "a-b", "a/b"])  # between a name and what is below it others sort
@example(["a/b/c", "a/b.c", "a/b"])
def test_a_file_that_is_a_folder_is_found_wherever_it_is(paths: list[str]) -> None:
    try:
        tree = Tree(tuple(TreeFile(path, A, 1) for path in paths))
    except TreeError:
        assert is_wrong(paths)
    else:
        assert not is_wrong(paths)
        assert [file.path for file in tree.files] == sorted(paths)


@given(PATHS.filter(lambda paths: not is_wrong(paths)))
def test_a_document_is_json_with_sorted_keys_and_no_spaces(paths: list[str]) -> None:
    tree = Tree(tuple(TreeFile(f'{path}"\t', A, number) for number, path in enumerate(paths)))
    document = {"files": [dataclasses.asdict(file) for file in tree.files]}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert tree.to_json() == text
    assert tree.sha256 == hashlib.sha256(text).hexdigest()
    assert Tree.from_json(text) == tree


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a/" * 16_000 + "f", "longer than 1024 bytes"),
        ("a/" * 101 + "f", "deeper than 100 folders"),
        ("é" * 200 + "/" + "é" * 127 + "/" + "é" * 200, "longer than 1024 bytes"),
    ],
)
def test_a_path_that_is_long_or_deep_costs_little(path: str, reason: str) -> None:
    """One of 32 KB cost 2.5 s and 244 MB."""
    document = json.dumps({"files": [{"path": path, "sha256": A, "size": 1, "mode": 0o644}]})
    with bounded(1, 10), pytest.raises(TreeError, match=reason) as caught:
        Tree.from_json(document)
    assert len(str(caught.value)) < 600


def test_paths_as_long_and_deep_as_are_allowed() -> None:
    assert safe_path("a/" * 100 + "f")
    assert safe_path("/".join(["x" * 255] * 4))
    deep = Tree(tuple(TreeFile(f"{'aaaaaaaa/' * 100}f{number}", A, 1) for number in range(5_000)))
    with bounded(2, 20):
        assert Tree.from_json(deep.to_json()) == deep


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


@pytest.mark.parametrize("name", ["a/" * 30_000 + "f", "a/" * 30_000, "a/" * 1_900 + "f", "a/" * 1_900])
def test_a_zip_of_depth_is_refused_shortly(tmp_path: Path, name: str) -> None:
    with pytest.raises(TreeError, match=r"code\.zip: member .* is refused: it is (longer|deeper) than") as caught:
        from_zip(archive(tmp_path, {"b": b"x", name: b""}), tmp_path / "out")
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("names", [("a", "a/"), ("a", "a/b"), ("a/b", "a"), ("a", "a/b/")])
def test_a_zip_of_which_a_file_is_a_folder_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises(TreeError, match="is both a file and a folder"):
        from_zip(archive(tmp_path, dict.fromkeys(names, b"")), tmp_path / "out")


def test_a_full_disk_is_not_the_archives_fault(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.py").symlink_to("/dev/full")
    with pytest.raises(TreeError, match=r"code\.zip cannot be unpacked: the disk is full"):
        from_zip(archive(tmp_path, {"train.py": b"x"}), tmp_path / "out")


def test_a_zip_whose_paths_are_too_long_where_it_is_unpacked_is_refused(tmp_path: Path) -> None:
    deep = tmp_path
    while len(str(deep)) < 3_500:
        deep /= "x" * 200
        deep.mkdir()
    path = archive(tmp_path, {"/".join(["y" * 200] * 4): b""})
    with pytest.raises(TreeError, match=r"code\.zip cannot be unpacked: it holds a path that is too long here"):
        from_zip(path, deep)


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


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root/sub").symlink_to(outside)
    tree = Tree((TreeFile("sub/x", hashlib.sha256(b"x").hexdigest(), 1),))
    materialise(tree, tmp_path / "root", lambda _: io.BytesIO(b"x"))
    assert list(outside.iterdir()) == []
    assert scan(tmp_path / "root")[0] == tree


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "sub").write_text("a file")
    with pytest.raises(TreeError, match="sub exists and is no folder"):
        materialise(Tree((TreeFile("sub/x", A, 1),)), tmp_path, lambda _: io.BytesIO(b"x"))
    assert (tmp_path / "sub").read_text() == "a file"


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
    for name, reason in (("é" * 50_000, "longer than 1024 bytes"), ("é" * 128, "longer than 255 bytes")):
        with pytest.raises(TreeError, match=reason) as caught:
            safe_path(f"a/{name}")
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
