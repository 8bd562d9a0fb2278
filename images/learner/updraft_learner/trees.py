"""Handle trees: folders as documents of paths and digests, over blobs that are named by their SHA-256.

This module makes a tree from a folder or a zip archive, and writes a tree back to a folder; callers move the blobs. The
CLI uses it to upload code, and so does staging on the platform and in the pod. Standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from updraft_learner.below import folder_below, make_folder, replacing
from updraft_learner.ignore import IGNORE_FILE, Ignore

if TYPE_CHECKING:  # a pod does not need it when it starts, since it unpacks no archive
    import zipfile

CHUNK_BYTES = 1 << 20
DEFAULT_LIMIT_BYTES = 512 * 1024 * 1024
DEFAULT_LIMIT_FILES = 100_000
NAME_BYTES = 255  # longest name of a file or folder on the usual file systems
PATH_BYTES = 1024  # longest key in S3
FOLDERS = 100  # nested inside each other
SHOWN_CHARACTERS = 300
IGNORE_FILE_BYTES = 64 << 10
VISITS = 100  # to one folder, through links to it


class TreeError(ValueError):
    """A folder, archive or tree document is unusable; the message names the file and the reason."""


class DigestMismatch(TreeError):
    """Content does not have the digest under which it was requested."""


@dataclass(frozen=True, order=True, slots=True)
class TreeFile:
    path: str  # relative, forward slashes
    sha256: str
    size: int
    mode: int = 0o644  # 0o755 for a program, 0o644 for everything else


@dataclass(frozen=True)
class Tree:
    """Files in the order of their paths. Equal content has an equal document and an equal digest."""

    files: tuple[TreeFile, ...] = ()

    def __post_init__(self) -> None:
        for file in self.files:
            safe_path(file.path)
        files = tuple(sorted(self.files, key=_path_of))
        for file, following in pairwise(files):
            if file.path == following.path:
                raise TreeError(f"{_shown(file.path)} occurs twice in the tree; a path names one file")
        # A path and the paths below it are found by sorting. A set of all parents would take more memory than the
        # paths: for one path with 16,000 folders, 250 MB.
        paths = [file.path for file in files]
        for path in paths:
            below = f"{path}/"
            at = bisect_left(paths, below)
            if at < len(paths) and paths[at].startswith(below):
                raise TreeError(f"{_shown(path)} is both a file and a folder in the tree")
        object.__setattr__(self, "files", files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for text in self._texts():
            digest.update(text.encode())
        return digest.hexdigest()

    def to_json(self) -> bytes:
        """Return the canonical document: sorted, without spaces, so that its digest is the tree's name."""
        return "".join(self._texts()).encode()

    def _texts(self) -> Iterator[str]:
        """Yield the parts of the document, written by hand: a mapping for each file would take more memory than all of
        the tree."""
        quoted = json.JSONEncoder(ensure_ascii=False).encode
        yield '{"files":['
        for number, file in enumerate(self.files):
            path, sha256 = quoted(file.path), quoted(file.sha256)
            comma = "," if number else ""
            yield f'{comma}{{"mode":{file.mode},"path":{path},"sha256":{sha256},"size":{file.size}}}'
        yield "]}"

    @classmethod
    def from_json(cls, text: bytes | str) -> Tree:
        """Read a document; raises TreeError when it is not one or names a path outside its folder."""
        try:
            files = json.loads(text, object_hook=_entry)["files"]
            if not isinstance(files, list):
                raise TypeError("its files are no list")
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            reason = f"{type(exc).__name__}: {str(exc)[:SHOWN_CHARACTERS]}"
            raise TreeError(f"not a tree document ({reason})") from exc
        for file in files:
            if not isinstance(file, TreeFile) or not isinstance(file.path, str):
                raise TreeError("not a tree document: an entry of it has no path")
            if not _is_digest(file.sha256) or not _is_size(file.size) or not _is_mode(file.mode):
                reason = f"the entry of {_shown(file.path)} has no valid sha256, size and mode"
                raise TreeError(f"not a tree document: {reason}")
        return cls(tuple(files))


def _entry(item: dict[str, Any]) -> TreeFile | dict[str, Any]:
    """Return an object of a document as soon as it is read: the document itself, or a file."""
    return item if "files" in item else TreeFile(**item)


_path_of = attrgetter("path")


def safe_path(path: str) -> str:
    """Return `path` if it is relative, in plain form and stays below its folder; raises TreeError otherwise.

    Longer or deeper than PATH_BYTES and FOLDERS is refused too, before the path is taken apart.
    """
    reason = _unsafe(path)
    if reason is not None:
        raise TreeError(f"path {_shown(path)} is refused: {reason}; paths are relative and stay below their folder")
    return path


def check_length(path: str) -> None:
    """Raise TreeError for a path that is too long or too deep."""
    reason = _too_long(path)
    if reason is not None:
        raise TreeError(f"path {_shown(path)} is refused: {reason}")


def _too_long(path: str) -> str | None:
    if len(path) > PATH_BYTES or len(path.encode(errors="surrogatepass")) > PATH_BYTES:
        return f"it is longer than {PATH_BYTES} bytes"
    if path.count("/") > FOLDERS:
        return f"it is deeper than {FOLDERS} folders"
    return None


def _unsafe(path: object) -> str | None:
    if not isinstance(path, str) or path == "":
        return "it is empty"
    if (reason := _too_long(path)) is not None:
        return reason
    if "\0" in path or "\\" in path:
        return "it holds a NUL or a backslash"
    if path.startswith("/") or (len(path) > 1 and path[1] == ":" and path[0].isalpha()):
        return "it is absolute"
    closed = f"/{path}/"
    if "//" in closed or "/./" in closed or "/../" in closed:
        return "a part of it is empty, '.' or '..'"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > NAME_BYTES and max(map(len, encoded.split(b"/"))) > NAME_BYTES:
        return f"a part of it is longer than {NAME_BYTES} bytes"
    return None


def _shown(path: Any) -> str:
    long = isinstance(path, str) and len(path) > SHOWN_CHARACTERS
    return repr(f"{path[:SHOWN_CHARACTERS]}...") if long else repr(path)


def scan(
    folder: Path,
    *,
    ignore_file: str = IGNORE_FILE,
    limit_bytes: int | None = DEFAULT_LIMIT_BYTES,
    limit_files: int | None = DEFAULT_LIMIT_FILES,
    default_ignores: bool = True,
    ignores: bool = True,
) -> tuple[Tree, dict[str, Path]]:
    """Make a tree of `folder`; also returns where each blob's content lies. Without `ignores` nothing is left out.

    A link to a file or folder inside is followed; one that leads outside is refused by name, as are sockets, pipes and
    devices.

    Raises:
        TreeError: see above; or more than `limit_bytes` or `limit_files`.
    """
    found = []
    for item in files_in(folder, ignore_file=ignore_file, default_ignores=default_ignores, ignores=ignores):
        found.append(item)
        if limit_files is not None and len(found) > limit_files:
            raise TreeError(
                f"{folder} has more than {limit_files} files, and the limit is {limit_files}. "
                f"Leave some out with {ignore_file}"
            )
    _check_limits(folder, found, limit_bytes, ignore_file)
    files: list[TreeFile] = []
    blobs: dict[str, Path] = {}
    for relative, path in found:
        digest, size_bytes = hash_file(path)
        mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
        files.append(TreeFile(relative, digest, size_bytes, mode))
        blobs[digest] = path
    return Tree(tuple(files)), blobs


def files_in(
    folder: Path, *, ignore_file: str = IGNORE_FILE, default_ignores: bool = True, ignores: bool = True
) -> Iterator[tuple[str, Path]]:
    """Yield the path in its tree, and where it lies, of each file that `scan` takes. Raises TreeError, as that does."""
    root = folder.resolve()
    if not root.is_dir():
        raise TreeError(f"{folder} is no folder")
    ignore = _ignored(root, ignore_file, default_ignores) if ignores else Ignore.parse([], defaults=False)
    return _walk(root, root, "", ignore, (root,), Counter())


def remove_ignored(folder: Path, ignore_file: str = IGNORE_FILE) -> None:
    """Remove from `folder` what `scan` leaves out of it by its ignore file and by default. Raises TreeError."""
    root = folder.resolve()
    _remove_ignored(root, "", _ignored(root, ignore_file, True))


def _remove_ignored(folder: Path, prefix: str, ignore: Ignore) -> None:
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        relative = prefix + entry.name
        real_folder = entry.is_dir(follow_symlinks=False)
        if ignore.matches(relative, is_folder=_is_folder(entry)):
            if real_folder:
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        elif real_folder:
            check_length(f"{relative}/")
            _remove_ignored(Path(entry.path), f"{relative}/", ignore)


def _ignored(root: Path, ignore_file: str, defaults: bool) -> Ignore:
    rules = root / ignore_file
    if not rules.is_file():
        return Ignore.parse([], defaults=defaults)
    with rules.open("rb") as file:
        text = file.read(IGNORE_FILE_BYTES + 1)
    if len(text) > IGNORE_FILE_BYTES:
        raise TreeError(f"{ignore_file} has more than {IGNORE_FILE_BYTES} bytes, which is the limit; shorten it")
    return Ignore.parse(text.decode("utf-8", errors="replace").splitlines(), defaults=defaults)


def hash_file(path: Path) -> tuple[str, int]:
    """Return the SHA-256 and the size of a file's content."""
    with path.open("rb", buffering=0) as file:
        return hash_opened(file)


def hash_opened(file: BinaryIO) -> tuple[str, int]:
    """Return the SHA-256 and the size of what is left in an open file."""
    digest, size_bytes = hashlib.sha256(), 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        size_bytes += len(chunk)
    return digest.hexdigest(), size_bytes


def from_zip(
    archive: Path,
    destination: Path,
    *,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    limit_files: int = DEFAULT_LIMIT_FILES,
) -> Path:
    """Extract `archive` into `destination` and return it.

    Raises:
        TreeError: no zip archive, or a member that is unsafe, encrypted, damaged, or makes it exceed the limits; or the
            disk is full.
    """
    import zipfile

    try:
        destination.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive) as bundle:
            members = bundle.infolist()
            if len(members) > limit_files:
                raise TreeError(f"{archive.name} has {len(members)} members; the limit is {limit_files} files")
            left_bytes = limit_bytes
            seen: set[str] = set()
            for member in members:
                path = _member_path(archive, member)
                try:
                    if member.is_dir():
                        (destination / path).mkdir(parents=True, exist_ok=True)
                        continue
                    if path in seen:
                        raise TreeError(f"{archive.name}: member {_shown(member.filename)} occurs twice")
                    seen.add(path)
                    left_bytes -= _extract(archive, bundle, member, destination / path, left_bytes, limit_bytes)
                except (FileExistsError, NotADirectoryError, IsADirectoryError) as exc:
                    both = f"member {_shown(member.filename)} is both a file and a folder"
                    raise TreeError(f"{archive.name}: {both}") from exc
    except zipfile.BadZipFile as exc:
        raise TreeError(f"{archive.name} is no zip archive or is damaged ({exc})") from exc
    except RecursionError as exc:
        raise TreeError(f"{archive.name} cannot be unpacked: its folders are too deep; flatten them") from exc
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            raise TreeError(f"{archive.name} cannot be unpacked: it holds a path that is too long here") from exc
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TreeError(f"{archive.name} cannot be unpacked: the disk is full ({exc.strerror})") from exc
        raise
    return destination


def materialise(
    tree: Tree,
    root: Path,
    fetch: Callable[[TreeFile], BinaryIO | Path],
    *,
    anchor: Path | None = None,
    threads: int = 4,
    progress: Callable[[TreeFile, bool], None] | None = None,
) -> None:
    """Lay `tree` out below `root`; files that are already there with the right content are kept.

    Links below `anchor` are replaced and never followed.

    Args:
        fetch: gives a file's content as a stream (closed here) or as a path (copied). Called from several threads.
        anchor: the trusted folder that holds `root`, if another program may write below it; else `root` itself.
        progress: called after each file, with whether it was already there.

    Raises:
        DigestMismatch: content does not match; nothing is left at that path.
        TreeError: a folder of the tree is a file below `root`, or a file of the tree is a folder.
    """
    anchor = root if anchor is None else anchor
    base = root.relative_to(anchor).as_posix()
    make_folder(anchor, base)
    for folder in sorted(_folders(tree)):  # a folder precedes those inside it
        try:
            make_folder(anchor, f"{base}/{folder}")
        except NotADirectoryError as exc:
            raise TreeError(f"{folder} exists and is no folder; files cannot be laid below it") from exc

    def lay(file: TreeFile) -> None:
        kept = _is_there(anchor, f"{base}/{file.path}", file)
        if not kept:
            _write(anchor, f"{base}/{file.path}", file, fetch(file))
        if progress is not None:
            progress(file, kept)

    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="tree") as pool:
        futures = [pool.submit(lay, file) for file in tree.files]
        done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
    for future in (*done, *(late for late in waiting if not late.cancelled())):
        future.result()


def _folders(tree: Tree) -> set[str]:
    """Return the folders of the tree's files; "" is its root."""
    found = {""} if tree.files else set()
    for file in tree.files:
        folder = file.path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def write_verified(anchor: Path, relative: str, sha256: str, size: int, content: BinaryIO | Path) -> None:
    """Write `content` to `relative` below `anchor` at once or not at all; a link there is replaced.

    Raises DigestMismatch when it is not what was asked for.
    """
    _write(anchor, relative, TreeFile(PurePosixPath(relative).name, sha256, size), content)


def _walk(
    root: Path, folder: Path, prefix: str, ignore: Ignore, chain: tuple[Path, ...], visits: Counter[Path]
) -> Iterator[tuple[str, Path]]:
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        relative = prefix + entry.name
        path = Path(entry.path)
        is_folder = _is_folder(entry)
        if ignore.matches(relative, is_folder=is_folder):
            continue
        safe_path(relative)
        target = path
        if entry.is_symlink():
            target = _link_target(root, relative, path)
        if is_folder:
            real = target.resolve()
            if real in chain:
                raise TreeError(f"{relative!r} is a link to a folder that holds it; remove it or ignore it")
            visits[real] += 1
            if visits[real] > VISITS:
                raise TreeError(f"{relative!r}: links lead to the same folder more than {VISITS} times; remove some")
            yield from _walk(root, path, f"{relative}/", ignore, (*chain, real), visits)
        elif entry.is_file():
            yield relative, target
        else:
            raise TreeError(f"{relative!r} is a socket, pipe or device; only files can be packed: remove or ignore it")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links that point to each other
        return False


def _link_target(root: Path, relative: str, path: Path) -> Path:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as exc:
        raise TreeError(f"{relative!r} is a link that leads nowhere; remove it or ignore it") from exc
    if not target.is_relative_to(root):
        raise TreeError(f"{relative!r} is a link out of the folder; copy what it names, or ignore it")
    return target


def _check_limits(folder: Path, found: list[tuple[str, Path]], limit_bytes: int | None, ignore_file: str) -> None:
    sizes = {relative: path.stat().st_size for relative, path in found}
    total_bytes = sum(sizes.values())
    if limit_bytes is not None and total_bytes > limit_bytes:
        biggest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:5]
        names = ", ".join(f"{name} ({megabytes(size)})" for name, size in biggest)
        raise TreeError(
            f"{folder} has {megabytes(total_bytes)}; the limit is {megabytes(limit_bytes)}. "
            f"Biggest: {names}. Leave files out with {ignore_file}, or stage them as data"
        )


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 100_000 else f"{size_bytes} bytes"


def _member_path(archive: Path, member: zipfile.ZipInfo) -> str:
    # ZipInfo cuts a name at a NUL and converts the host's separator, so the original text is checked.
    name = member.orig_filename.rstrip("/") if member.is_dir() else member.orig_filename
    what = f"{archive.name}: member {_shown(name)}"
    try:
        path = safe_path(name)
    except TreeError as exc:
        raise TreeError(f"{what} escapes the archive's folder: {exc}") from exc
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise TreeError(f"{what} is a link or a device; only files and folders are taken")
    if member.flag_bits & 0x1:
        raise TreeError(f"{what} is encrypted; store it without a password")
    return path


def _extract(
    archive: Path, bundle: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, left_bytes: int, limit_bytes: int
) -> int:
    import zipfile
    import zlib

    # Counted while writing: the sizes in the archive's table may be wrong.
    written = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with bundle.open(member) as source, target.open("wb") as out:
            while chunk := source.read(CHUNK_BYTES):
                written += len(chunk)
                if written > left_bytes:
                    raise TreeError(
                        f"{archive.name} unpacks to more than the limit of {megabytes(limit_bytes)} "
                        f"(at member {_shown(member.filename)})"
                    )
                out.write(chunk)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as exc:
        raise TreeError(f"{archive.name}: member {_shown(member.filename)} cannot be unpacked ({exc})") from exc
    if (member.external_attr >> 16) & stat.S_IXUSR:
        target.chmod(0o755)
    return written


def _is_there(anchor: Path, relative: str, file: TreeFile) -> bool:
    path = PurePosixPath(relative)
    try:
        with folder_below(anchor, str(path.parent)) as folder:
            opened = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(opened, "rb", buffering=0, closefd=True) as there:
        facts = os.fstat(there.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != file.size:
            return False
        return hashlib.file_digest(there, "sha256").hexdigest() == file.sha256


def _write(anchor: Path, relative: str, file: TreeFile, content: BinaryIO | Path) -> None:
    source: BinaryIO = content.open("rb") if isinstance(content, Path) else content
    mode = 0o775 if file.mode & stat.S_IXUSR else 0o664
    try:
        with source, replacing(anchor, relative, mode) as out:
            _copy_verified(source, out, file)
    except OSError as exc:
        if exc.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise TreeError(f"{file.path!r} exists as a folder; the file cannot be laid there") from exc


def _copy_verified(source: BinaryIO, out: BinaryIO, file: TreeFile) -> None:
    digest, size_bytes = hashlib.sha256(), 0
    # Read no more than announced: the limits were checked with the document's sizes.
    while size_bytes <= file.size and (chunk := source.read(CHUNK_BYTES)):
        digest.update(chunk)
        size_bytes += len(chunk)
        out.write(chunk)
    if digest.hexdigest() != file.sha256 or size_bytes != file.size:
        raise DigestMismatch(
            f"{file.path!r} does not match its digest: expected {file.sha256[:12]} with {file.size} bytes, "
            f"got {digest.hexdigest()[:12]} with {size_bytes} bytes"
        )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_mode(value: object) -> bool:
    return isinstance(value, int) and value in (0o644, 0o755)


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(char in "0123456789abcdef" for char in text)
