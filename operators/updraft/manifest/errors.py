"""Report what is wrong with a manifest: each wrong field, its value, what is allowed, and the nearest allowed value.

Validators raise `wrong(...)`; `updraft.manifest.explain` converts it and pydantic's own errors to `FieldError`s. Values
that look secret are never repeated.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic_core import PydanticCustomError

from updraft.exceptions import UpdraftError
from updraft.manifest.limits import COMPARED, COMPARED_CHARACTERS, NAMED, REPORTED

VALUE = "{value}"  # placeholder in `problem` for the value, until it is known whether it may be shown
NO_SUCH_FIELD = "no such field"
HIDDEN = "the value (not shown)"
SHOWN_CHARACTERS = 60

_SENSITIVE = re.compile(
    r"secret|passw|passphrase|token|credential|auth|api_?key|access_?key|private|connection", re.IGNORECASE
)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_USER_INFO = re.compile(r"(?<=//)[^/@\s]+(?=@)")


@dataclass(frozen=True)
class FieldError:
    """One wrong field of a manifest.

    `path` is written as in the manifest, as in `data[0].source`. `value` is the wrong value as it may be shown: values
    that look secret are hidden. `allowed` completes "write ...", `suggestion` is the nearest allowed value.
    """

    path: str
    value: str | None  # as it may be shown; None if there is none
    problem: str
    allowed: str
    suggestion: str | None = None

    @property
    def text(self) -> str:
        """Return the error as one line for a person."""
        if self.problem == NO_SUCH_FIELD:
            hint = f"did you mean '{self.suggestion}'?" if self.suggestion else f"the fields here are {self.allowed}"
        else:
            hint = f"write {self.allowed}" + (f", such as {self.suggestion}" if self.suggestion else "")
        return f"{self.path}: {self.problem}; {hint}"


class ManifestError(UpdraftError):
    """A manifest is wrong. `fields` holds a FieldError for each wrong field, at most `limits.REPORTED` of them.

    The message has a line for each field below `heading`. `source` names the file or form that the manifest came from.

        try:
            manifest = load("manifest.yaml")
        except ManifestError as error:
            print([field.path for field in error.fields])
    """

    def __init__(self, fields: Iterable[FieldError], source: str = "manifest", heading: str | None = None) -> None:
        given = iter(fields)
        self.fields = tuple(islice(given, REPORTED))
        if heading is None and next(given, None) is not None:
            heading = f"more than {REPORTED} fields are wrong; the first are"
        self.source = source
        self.heading = heading
        super().__init__(self.fields, source, heading)  # pickle passes these arguments when it restores the error

    def __str__(self) -> str:
        count = len(self.fields)
        heading = self.heading or ("1 field is wrong" if count == 1 else f"{count} fields are wrong")
        return "\n".join([f"{self.source}: {heading}", *(f"  {field.text}" for field in self.fields)])

    def __repr__(self) -> str:
        return f"ManifestError({[field.path for field in self.fields]}, source={self.source!r})"


def wrong(
    problem: str, allowed: str, suggestion: str | None = None, *, at: str = "", value: object = None
) -> PydanticCustomError:
    """Return the error of one value; `at` is a path below the field that the validator belongs to."""
    return all_wrong([(FieldError(at, None, problem, allowed, suggestion), value)])


def all_wrong(fields: Sequence[tuple[FieldError, object]]) -> PydanticCustomError:
    """Return one error for several wrong fields below one field, each with the value that `{value}` in its problem
    stands for."""
    return PydanticCustomError("updraft", "wrong", {"fields": tuple(fields)})


def filled(field: FieldError, path: str, value: object) -> FieldError:
    """Return the error at its full path, with the value put in, unless it might be a secret."""
    shown = HIDDEN if is_sensitive(path) else show(value)
    problem = field.problem.replace(VALUE, shown)
    # The suggestion may contain a part of the value.
    suggestion = None if shown is HIDDEN and VALUE in field.problem else field.suggestion
    return replace(field, path=path, value=shown, problem=problem, suggestion=suggestion)


def is_sensitive(path: str) -> bool:
    return bool(_SENSITIVE.search(path))


def show(value: object) -> str:
    """Return the value in a few characters, without the credentials that a URL may hold."""
    if isinstance(value, str):
        text = repr(redact(value[:2000]))
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int | float):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a very large number"
    elif isinstance(value, dict):
        return "a mapping"
    elif isinstance(value, list | tuple):
        return "a list"
    else:
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def redact(text: str) -> str:
    """Return the text without user names and passwords in URLs."""
    return _USER_INFO.sub("***", text)


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the one of `names` that was probably meant. Of many names, those of a similar length are compared."""
    text = str(name)[:COMPARED_CHARACTERS].lower()
    similar = heapq.nsmallest(COMPARED, names, key=lambda candidate: abs(len(candidate) - len(text)))
    candidates = {candidate.lower(): candidate for candidate in similar if len(candidate) <= COMPARED_CHARACTERS}
    matches = difflib.get_close_matches(text, candidates, n=1, cutoff=0.6)
    return candidates[matches[0]] if matches else None


def join_path(base: str, part: str | int) -> str:
    if isinstance(part, int):
        return f"{base}[{part}]"
    if not base or not part or part.startswith("["):
        return f"{base}{part}"
    return f"{base}.{part}"


def shown_key(key: str) -> str:
    """Return the key as part of a path: plain, or quoted when it could be mistaken for more."""
    return key if len(key) <= 80 and _PLAIN_KEY.fullmatch(key) else f"[{show(key)}]"


def one_of(names: Iterable[Any]) -> str:
    """Return `one of a, b, c`, with at most `NAMED` names, each cut to what `show` would show."""
    listed = [str(name)[:SHOWN_CHARACTERS] for name in islice(names, NAMED + 1)]
    return "one of " + ", ".join(listed[:NAMED]) + (" ..." if len(listed) > NAMED else "")
