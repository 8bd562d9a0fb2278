"""Choose which files of a tree are judged, and in which format. It uses names only, so that nothing has to be
fetched."""

from __future__ import annotations

from dataclasses import dataclass

from updraft_learner.prepare.errors import SourceError
from updraft_learner.trees import Tree, TreeFile, megabytes

TABLE_LIMIT_BYTES = 4 * 1024**3

SUFFIXES = {
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson", ".jsonl.gz"),
    "json": (".json",),
    "npz": (".npz",),
    "images": (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp"),
}
TABLES = ("csv", "parquet", "jsonl", "json", "npz")
FORMATS = ("auto", *SUFFIXES, "files")
_SUITE = ".suite.json"  # a suite may be stored beside the data


@dataclass(frozen=True)
class Selection:
    format: str  # never `auto`
    files: tuple[TreeFile, ...]


def select(tree: Tree, format: str = "auto") -> Selection:
    """Select the files of a format. Raises SourceError when there is nothing of the format, or when `auto` would have
    to guess."""
    if format not in FORMATS:
        raise SourceError("data", f"data.format: {format!r} is not one of {', '.join(FORMATS)}")
    if not tree.files:
        raise SourceError("data", "data: there are no files to judge; upload the data or correct the source")
    by_format = {name: _ending(tree, suffixes) for name, suffixes in SUFFIXES.items()}
    if format == "auto":
        present = [name for name, files in by_format.items() if files]
        if len(present) > 1:
            counts = ", ".join(f"{len(by_format[name])} {name}" for name in present)
            raise SourceError(
                "data", f"data.format: the data holds {counts} files; say which one the expectations are about"
            )
        format = present[0] if present else "files"
    files = tree.files if format == "files" else by_format[format]
    if not files:
        known = ", ".join(SUFFIXES[format])
        raise SourceError(
            "data", f"data.format: {format} was asked for, but no file ends in {known}; correct format or data"
        )
    size_bytes = sum(file.size for file in files)
    if format in TABLES and size_bytes > TABLE_LIMIT_BYTES:
        raise SourceError(
            "limit",
            f"data.expectations: the tables have {megabytes(size_bytes)}, more than {megabytes(TABLE_LIMIT_BYTES)} "
            "that can be judged at once; judge a part of the data, or leave the expectations out",
        )
    return Selection(format, tuple(files))


def needed_paths(tree: Tree, format: str = "auto") -> list[str]:
    """Return the files whose content has to be there for `validate`; none for images and files."""
    chosen = select(tree, format)
    return [file.path for file in chosen.files] if chosen.format in TABLES else []


def _ending(tree: Tree, suffixes: tuple[str, ...]) -> tuple[TreeFile, ...]:
    return tuple(
        file for file in tree.files if file.path.lower().endswith(suffixes) and not file.path.lower().endswith(_SUITE)
    )
