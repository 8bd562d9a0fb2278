"""Transfer many bytes: upload blobs of trees, download a job's files. Used by `submission` and `Client.download`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import httpx

from updraft.client.http import Session
from updraft.exceptions import DataError, NotFoundError, UpdraftError
from updraft.schemas import API_PREFIX, UPLOAD_SECONDS, FileEntry, FileList, Missing, TreeBody

PARALLEL = 4
SHOWN = 20  # failed files that an error names
CHUNK_BYTES = 256 * 1024

OnProgress = Callable[[str, int, int], None]


def upload_tree(
    session: Session,
    tenant: str,
    sha256: str,
    tree: TreeBody,
    sources: Mapping[str, Path],
    on_progress: OnProgress | None,
    label: str,
) -> None:
    """Store the blobs that the platform lacks, then the tree that names them.

    `sources` gives a file for each digest. Killed anywhere and called again, it sends only what is missing.
    """
    body, query = tree.model_dump(), {"tenant": tenant}
    patience_seconds = UPLOAD_SECONDS + 30
    missing = Missing.model_validate(
        session.json("POST", f"{API_PREFIX}/trees/missing", params=query, body=body, timeout_seconds=patience_seconds)
    ).missing
    sizes = {file.sha256: file.size for file in tree.files}
    total = sum(sizes[digest] for digest in missing)
    done, lock = 0, Lock()

    def send(digest: str) -> None:
        nonlocal done
        path = sources[digest]
        size_bytes = sizes[digest]
        session.json(
            *("PUT", f"{API_PREFIX}/blobs/{digest}"),
            params=query,
            content=lambda: _chunks(path, size_bytes),
            content_length=size_bytes,
        )
        with lock:
            done += sizes[digest]
            if on_progress is not None:
                on_progress(label, done, total)

    if missing and on_progress is not None:
        on_progress(label, 0, total)
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="upload") as pool:
        futures = [pool.submit(send, digest) for digest in missing]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    session.json("PUT", f"{API_PREFIX}/trees/{sha256}", params=query, body=body, timeout_seconds=patience_seconds)


def _chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield the file's content. Raises DataError unless it has `size_bytes`, which the request has announced."""
    sent_bytes = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                sent_bytes += len(chunk)
                if sent_bytes > size_bytes:
                    break
                yield chunk
    except OSError as exc:
        raise DataError(f"{path}: cannot be read ({exc.strerror})") from exc
    if sent_bytes != size_bytes:
        raise DataError(f"{path}: changed while it was being uploaded; submit again once nothing writes to it")


def download_files(
    session: Session, job_path: str, listing: FileList, folder: Path, on_progress: OnProgress | None
) -> list[Path]:
    """Download the listed files, several at a time, and return their paths in the order of the list.

    A file that cannot be had or written does not stop the others. Raises UpdraftError at the end, which names each of
    them with its reason. Errors of the connection end the download at once.
    """
    total = sum(entry.size_bytes for entry in listing.files)
    done, lock = 0, Lock()

    def fetch(entry: FileEntry) -> Path | str:
        """Return the file's path, or why it was not downloaded."""
        nonlocal done
        try:
            target = _inside(folder, entry.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with session.download(f"{job_path}/file", {"kind": listing.kind, "path": entry.path}) as response:
                _write_whole(response, target, entry.size_bytes)
        except (DataError, NotFoundError) as exc:
            return str(exc)
        except OSError as exc:
            return f"it cannot be written ({exc.strerror})"
        with lock:
            done += entry.size_bytes
            if on_progress is not None:
                on_progress(entry.path, done, total)
        return target

    written: list[Path] = []
    failed: list[str] = []
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="download") as pool:
        futures = [pool.submit(fetch, entry) for entry in listing.files]
        try:
            for entry, future in zip(listing.files, futures, strict=True):
                result = future.result()
                if isinstance(result, Path):
                    written.append(result)
                else:
                    failed.append(f"{entry.path!r}: {result}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failed:
        more = [f"and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
        raise UpdraftError(
            f"{len(failed)} of {len(listing.files)} files were not downloaded; the others are in {folder}:\n  "
            + "\n  ".join([*failed[:SHOWN], *more])
        )
    return written


def _write_whole(response: httpx.Response, target: Path, size_bytes: int) -> None:
    """Write the file beside its target, then rename it. Raises DataError if it has not the announced size."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".updraft-")
    size = 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in response.iter_bytes(CHUNK_BYTES):
                file.write(chunk)
                size += len(chunk)
        if size != size_bytes:
            raise DataError(f"{size} of {size_bytes} bytes arrived; download it again")
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _inside(folder: Path, relative: str) -> Path:
    """Return the target of a path that the server named; it must stay below the folder."""
    target = (folder / relative).resolve()
    if not target.is_relative_to(folder.resolve()) or target == folder.resolve():
        raise DataError(f"{relative!r}: leads out of {folder}; it was not written")
    return target
