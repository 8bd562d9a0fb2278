"""Read texts with labels from CSV and JSON lines, hold a part out, and turn texts into numbers.

Whoever wrote the data reads the errors, so they name the file, the line and what to change. Standard library only.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ENDINGS = (".csv", ".tsv", ".jsonl")
LEAST_TEXTS = 5  # different ones of each label, so that some can be held out
MOST_LABELS = 1000
HELD_OUT = 5  # every fifth text
BUCKETS = 1 << 14
TOKENS = 128  # of a text: words and pairs of words that follow each other; the rest is left out
_WORD = re.compile(r"\w+|[^\w\s]")
_NAMED = 5  # lines, columns or labels in a message


class UnusableDataError(ValueError):
    """The data cannot be used for this task; the message says why, and what to change."""


@dataclass(frozen=True)
class Texts:
    """Texts with the numbers of their labels.

    Attributes:
        names: The labels, sorted; a label's number is its place.
        training: Text and number of its label.
        validation: The same, of those that are held out.
    """

    names: tuple[str, ...]
    training: tuple[tuple[str, int], ...]
    validation: tuple[tuple[str, int], ...]


def read(folder: Path, *, text: str = "text", label: str = "label") -> Texts:
    """Return the texts of all files below the folder.

    Every fifth text of a label is held out, chosen by a hash of the text, so that equal texts are on the same side and
    a file in another order gives the same parts.

    Args:
        folder: With files that end with .csv, .tsv or .jsonl, in UTF-8.
        text: The column, or key, of the text.
        label: The column, or key, of the label.

    Raises:
        UnusableDataError: there is no such file; one cannot be read; a column is missing; a text or label is empty; or
            there are too few labels, or texts of one.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    usable = [path for path in files if path.suffix.lower() in ENDINGS]
    if not usable:
        found = f"there is only {_listed([path.name for path in files])}" if files else "the data has no file"
        raise UnusableDataError(f"{found}; save the texts as CSV or as JSON lines, in a file named .csv or .jsonl")
    labels: dict[str, dict[str, None]] = {}
    for path in usable:
        for words, name in _rows(path, text, label):
            labels.setdefault(name, {})[words] = None
    _check(labels, usable)
    names = tuple(sorted(labels))
    parts: tuple[list[tuple[str, int]], list[tuple[str, int]]] = ([], [])
    for number, name in enumerate(names):
        ordered = sorted(labels[name], key=lambda each: hashlib.sha256(each.encode()).digest())
        for place, words in enumerate(ordered):
            parts[place % HELD_OUT == 0].append((words, number))
    return Texts(names, tuple(parts[0]), tuple(parts[1]))


def encode(words: str) -> list[int]:
    """Return TOKENS numbers from 0 to BUCKETS - 1 for a text: hashes of its words and of pairs of words that follow
    each other. 0 stands for no word. Capitals count as small letters."""
    single = _WORD.findall(words.lower())[:TOKENS]
    pairs = [" ".join(pair) for pair in itertools.pairwise(single)]
    numbers = [1 + zlib.crc32(each.encode()) % (BUCKETS - 1) for each in (*single, *pairs)][:TOKENS]
    return numbers + [0] * (TOKENS - len(numbers))


def _check(labels: Mapping[str, Mapping[str, None]], files: Sequence[Path]) -> None:
    where = _listed([path.name for path in files])
    if not labels:
        raise UnusableDataError(f"{where} has no rows")
    if len(labels) == 1:
        (name,) = labels
        raise UnusableDataError(f"all texts in {where} have the label {name!r}; there must be at least two labels")
    if len(labels) > MOST_LABELS:
        raise UnusableDataError(
            f"{where} has {len(labels):,} different labels, and at most {MOST_LABELS:,} are possible; is the column of "
            "the label the right one?"
        )
    few = sorted(name for name, texts in labels.items() if len(texts) < LEAST_TEXTS)
    if few:
        raise UnusableDataError(
            f"too few different texts have the label {_listed([repr(name) for name in few])}; each label needs at "
            f"least {LEAST_TEXTS}, so that some can be held out"
        )


def _rows(path: Path, text: str, label: str) -> Iterator[tuple[str, str]]:
    """Yield text and label of each row, without spaces around them."""
    empty: Counter[str] = Counter()
    first: dict[str, int] = {}
    try:
        for line, row in _json_lines(path) if path.suffix.lower() == ".jsonl" else _table(path):
            for column in (text, label):
                if column not in row:
                    raise UnusableDataError(
                        f"{path.name}, line {line}: there is no {column!r}, only {_listed([repr(k) for k in row])}; "
                        "rename it, or name the columns in the manifest: params: {text: ..., label: ...}"
                    )
                if not row[column].strip():
                    empty[column] += 1
                    first.setdefault(column, line)
            if not empty:
                yield row[text].strip(), row[label].strip()
    except UnicodeDecodeError as exc:
        raise UnusableDataError(f"{path.name} is not text in UTF-8 (byte {exc.start:,}); save it as UTF-8") from exc
    except csv.Error as exc:
        raise UnusableDataError(f"{path.name} is not a CSV file: {exc}") from exc
    for column, count in empty.items():
        raise UnusableDataError(
            f"{path.name}, line {first[column]}: the {column} is empty"
            + (f", and so it is in {count - 1:,} rows more" if count > 1 else "")
            + "; fill it in or remove the row"
        )


def _table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8-sig", newline="") as opened:
        reader = csv.reader(opened, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        header = [name.strip() for name in next(reader, [])]
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                raise UnusableDataError(
                    f"{path.name}, line {reader.line_num}: there are {len(values)} values, and the first line names "
                    f"{len(header)} columns; put texts with a comma into double quotes"
                )
            yield reader.line_num, dict(zip(header, values, strict=True))


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8-sig") as opened:
        for line, words in enumerate(opened, start=1):
            if not words.strip():
                continue
            try:
                row = json.loads(words)
            except json.JSONDecodeError as exc:
                raise UnusableDataError(f"{path.name}, line {line}: this is not JSON: {exc}") from exc
            if not isinstance(row, dict):
                raise UnusableDataError(f"{path.name}, line {line}: this is no object such as {{'text': ...}}")
            yield line, {str(key): "" if value is None else str(value) for key, value in row.items()}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return (", ".join(_cut(name) for name in names[:_NAMED]) or "nothing") + more


def _cut(words: str) -> str:
    return words if len(words) <= 60 else f"{words[:57]}..."
