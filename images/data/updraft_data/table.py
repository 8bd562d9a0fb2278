"""Read files into one pandas table. pandas and NumPy are imported inside functions; nothing is ever unpickled."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from updraft_learner.prepare.errors import SourceError
from updraft_learner.prepare.select import TABLE_LIMIT_BYTES, TABLES, Selection
from updraft_learner.trees import TreeFile, megabytes

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 1_000  # of one array; wider arrays become facts per sample


def read_table(folder: Path, selection: Selection, *, limit_bytes: int = TABLE_LIMIT_BYTES) -> pd.DataFrame:
    """Return the table that expectations are about.

    Raises SourceError naming the file that cannot be read, or has more than the limit when it is unpacked.
    """
    import pandas as pd

    if selection.format not in TABLES:
        return file_table(selection.files)
    parts: list[pd.DataFrame] = []
    for file in selection.files:
        part = _read(folder / file.path, file.path, selection.format, limit_bytes)
        if parts and set(part.columns) != set(parts[0].columns):
            raise SourceError("data", _other_columns(selection.files[0].path, parts[0], file.path, part))
        parts.append(part if not parts else part[list(parts[0].columns)])
    table = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
    if table.empty:
        raise SourceError("data", f"data: {selection.files[0].path} has no rows; upload the data again")
    return table


def file_table(files: Sequence[TreeFile]) -> pd.DataFrame:
    """Return a row for each file: path, size_bytes, sha256, label (its folder), extension."""
    import pandas as pd

    rows = [
        {
            "path": file.path,
            "size_bytes": file.size,
            "sha256": file.sha256,
            "label": PurePosixPath(file.path).parent.name or None,
            "extension": PurePosixPath(file.path).suffix.lower().lstrip("."),
        }
        for file in files
    ]
    return pd.DataFrame(rows, columns=["path", "size_bytes", "sha256", "label", "extension"])


def _read(path: Path, name: str, format: str, limit_bytes: int) -> pd.DataFrame:
    import pandas as pd

    try:
        if format == "npz":
            return _arrays(path, name, limit_bytes)
        if format == "csv":
            with _opened(path, name, limit_bytes) as stream:
                table: pd.DataFrame = pd.read_csv(stream, sep="\t" if ".tsv" in name.lower() else ",")
        elif format == "parquet":
            _check_parquet(path, name, limit_bytes)
            table = pd.read_parquet(path)
        else:
            with _opened(path, name, limit_bytes) as stream:
                loaded: Any = pd.read_json(stream, lines=format == "jsonl")
            if not isinstance(loaded, pd.DataFrame):
                raise SourceError("data", f"data: {name} is JSON, but no list of records")
            table = loaded
    except (ValueError, OSError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as exc:
        # The parser errors of pandas and pyarrow are ValueErrors.
        raise SourceError(
            "data", f"data: {name} cannot be read as {format} ({_short(exc)}); correct the file or format"
        ) from exc
    table.columns = [str(column) for column in table.columns]
    return table


class _Counted(io.RawIOBase):
    """A stream that raises SourceError when more bytes than the limit were read from it."""

    def __init__(self, source: BinaryIO, name: str, limit_bytes: int) -> None:
        self._source, self._name, self._limit_bytes, self._left = source, name, limit_bytes, limit_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._source.read(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise _too_large(self._name, self._limit_bytes)
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def _opened(path: Path, name: str, limit_bytes: int) -> Iterator[BinaryIO]:
    """Open the file's bytes, decompressed and counted if its name says that it is compressed."""
    if not name.lower().endswith(".gz"):
        with path.open("rb") as plain:
            yield plain
        return
    with gzip.open(path) as unpacked:
        yield io.BufferedReader(_Counted(cast(BinaryIO, unpacked), name, limit_bytes))


def _too_large(name: str, limit_bytes: int) -> SourceError:
    return SourceError(
        "limit",
        f"data.expectations: {name} has more than {megabytes(limit_bytes)} when it is unpacked; judge a part of "
        "the data, or leave the expectations out",
    )


def _check_parquet(path: Path, name: str, limit_bytes: int) -> None:
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    size_bytes = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if size_bytes > limit_bytes:
        raise _too_large(name, limit_bytes)


def _arrays(path: Path, name: str, limit_bytes: int) -> pd.DataFrame:
    """Return arrays of equal length side by side: 1-D as a column, 2-D as columns NAME_0, NAME_1, …; larger ones as
    facts per sample: NAME_min, NAME_max, NAME_mean, NAME_nonfinite."""
    import numpy as np
    import pandas as pd

    columns: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > limit_bytes:
            raise _too_large(name, limit_bytes)
    with np.load(path, allow_pickle=False) as bundle:
        for key in bundle.files:
            try:
                array = bundle[key]
            except ValueError as exc:
                raise SourceError(
                    "data", f"data: array {key!r} of {name} holds Python objects, which are never read"
                ) from exc
            if array.ndim == 0:
                continue
            lengths[key] = len(array)
            columns |= _columns(key, array)
    if not columns:
        raise SourceError("data", f"data: {name} holds no arrays; upload the data again")
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise SourceError(
            "data",
            f"data: the arrays of {name} have different lengths ({described}), so they are no table; store one file "
            "per split",
        )
    return pd.DataFrame(columns)


def _columns(key: str, array: Any) -> dict[str, Any]:
    import numpy as np

    if array.ndim == 1:
        return {key: array}
    flat = array.reshape(len(array), -1)
    if array.ndim == 2 and flat.shape[1] <= MOST_COLUMNS:
        return {f"{key}_{number}": flat[:, number] for number in range(flat.shape[1])}
    if not np.issubdtype(flat.dtype, np.number) or flat.shape[1] == 0:
        return {f"{key}_size": np.full(len(array), flat.shape[1])}
    return {
        f"{key}_min": flat.min(axis=1),
        f"{key}_max": flat.max(axis=1),
        f"{key}_mean": flat.mean(axis=1),
        f"{key}_nonfinite": (~np.isfinite(flat)).sum(axis=1),
    }


def _other_columns(first: str, one: pd.DataFrame, name: str, other: pd.DataFrame) -> str:
    absent = sorted(set(one.columns) - set(other.columns))[:5]
    extra = sorted(set(other.columns) - set(one.columns))[:5]
    parts = [f"lacks {', '.join(absent)}"] if absent else []
    parts += [f"has {', '.join(extra)} besides"] if extra else []
    return f"data: {name} has other columns than {first}: it {' and '.join(parts)}; all tables need the same columns"


def _short(exc: Exception) -> str:
    lines = str(exc).strip().splitlines()
    return (lines[0] if lines else type(exc).__name__)[:200]
