"""Read manifests: mappings, texts, files and the folder of jobs.

`parse` and `load` raise only ManifestError, with all wrong fields at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from updraft.manifest import ffdl
from updraft.manifest.checks import cross_field_errors
from updraft.manifest.errors import FieldError, ManifestError, redact
from updraft.manifest.explain import field_errors
from updraft.manifest.limits import TEXT_CHARACTERS
from updraft.manifest.model import Manifest
from updraft.manifest.strategy import strategy_warnings
from updraft.manifest.task import expanded
from updraft.manifest.text import plain_mapping, read_mapping
from updraft.manifest.values import check_expectations, check_name


@dataclass(frozen=True)
class Loaded:
    """A manifest, what its submitter is warned of, and the secrets that were found in it.

    `secrets` maps names to keys and values; the client that submits the manifest stores them first.
    """

    manifest: Manifest
    warnings: tuple[str, ...] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)  # the submitter stores them


@dataclass(frozen=True)
class JobFile:
    """A manifest in the folder of jobs. Exactly one of `manifest` and `error` is set."""

    path: Path
    manifest: Manifest | None
    error: ManifestError | None
    warnings: tuple[str, ...] = ()
    tenant: str = "default"  # also of a wrong manifest, if it says which


def parse(mapping: Mapping[str, Any], base_dir: Path | None = None, *, source: str = "manifest") -> Manifest:
    """Return the manifest that `mapping` holds.

    With `base_dir`, local sources must exist in that folder and suites of expectations are read from their files.
    `source` is what an error calls the manifest.

    Raises ManifestError, which names every wrong field.

        parse({"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py"})
    """
    return _parse(plain_mapping(mapping, source), base_dir, source)


def _parse(raw: dict[str, Any], base_dir: Path | None, source: str) -> Manifest:
    raw = expanded(raw)
    try:
        manifest = Manifest.model_validate(raw)
    except ValidationError as exc:
        raise ManifestError(_all_wrong(exc, raw), source) from None  # pydantic's text repeats the values
    return manifest if base_dir is None else with_files(manifest, base_dir, source=source)


def _all_wrong(exc: ValidationError, raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the errors of single fields, then the errors between fields that have none yet.

    It is a generator because ManifestError takes no more errors than it reports.
    """
    known: set[str] = set()
    for error in field_errors(exc):
        known.add(error.path)
        yield error
    yield from (error for error in cross_field_errors(raw) if error.path not in known)


def load(text_or_path: str | Path) -> Manifest:
    """Return the manifest in a file, or in a text that is YAML or JSON. `text_or_path` is a text if it looks like one.

    Of a file, local sources must exist beside it and suites of expectations are read in. Raises ManifestError, also for
    a file that cannot be read.
    """
    text, path, source = _text_of(text_or_path)
    return parse(read_mapping(text, source), path.parent if path else None, source=source)


def load_any(text_or_path: str | Path) -> Loaded:
    """Return the manifest in a file or a text, in the format of Updraft or of FfDL.

    The code of an FfDL manifest is the folder of its file. `text_or_path` and errors are as for `load`.
    """
    text, path, source = _text_of(text_or_path)
    return parse_any(read_mapping(text, source), path.parent if path else None, source=source)


def parse_any(mapping: Mapping[str, Any], base_dir: Path | None = None, *, source: str = "manifest") -> Loaded:
    """Return the manifest that `mapping` holds, in the format of Updraft or of FfDL.

    `base_dir` and `source` are as for `parse`.
    """
    raw = plain_mapping(mapping, source)
    if not ffdl.is_ffdl(raw):
        manifest = _parse(raw, base_dir, source)
        return Loaded(manifest, strategy_warnings(manifest))
    converted = ffdl.convert(raw, code="." if base_dir else None, source=source)
    manifest = with_files(converted.manifest, base_dir, source=source) if base_dir else converted.manifest
    return Loaded(manifest, converted.warnings, converted.secrets)


def load_jobs(folder: Path) -> list[JobFile]:
    """Return every `<folder>/<job>/manifest.yaml`, in the order of names. A wrong one is returned with its error.

    Local paths in them are made absolute, so that they can be used from any working directory.
    """
    jobs = []
    for path in sorted(folder.glob("*/manifest.yaml")):
        try:
            loaded = load_any(path)
            manifest = with_roots(loaded.manifest, path.parent.resolve())
            jobs.append(JobFile(path, manifest, None, loaded.warnings, manifest.tenant))
        except ManifestError as exc:
            jobs.append(JobFile(path, None, exc, tenant=_named_tenant(path)))
    return jobs


def _named_tenant(path: Path) -> str:
    """Return the tenant that a wrong manifest names; `default` if that cannot be read, or is no name."""
    try:
        text, _, source = _text_of(path)
        return check_name(read_mapping(text, source).get("tenant", "default"))
    except (ManifestError, ValueError, TypeError):
        return "default"


def with_files(manifest: Manifest, base_dir: Path, *, source: str = "manifest") -> Manifest:
    """Return the manifest with suites of expectations read from their files, after a check that local sources exist.

    `base_dir` is the folder that its paths are relative to, `source` what an error calls the manifest. Raises
    ManifestError, which names every file that is missing or wrong.
    """
    errors: list[FieldError] = []
    read_in = list(manifest.data)
    code = manifest.parsed_code()
    if code and code.kind == "local":
        errors += _missing("code", code.path, base_dir)
    for number, data in enumerate(manifest.data):
        if data.parsed().kind == "local":
            errors += _missing(f"data[{number}].source", data.source, base_dir)
        if isinstance(data.expectations, str):
            path = f"data[{number}].expectations"
            try:
                suite = _suite(base_dir / data.expectations, path)
                read_in[number] = data.model_copy(update={"expectations": suite})
            except ManifestError as exc:
                errors += exc.fields
    if errors:
        raise ManifestError(errors, source)
    return manifest.model_copy(update={"data": tuple(read_in)})


def with_roots(manifest: Manifest, folder: Path) -> Manifest:
    """Return the manifest with its local paths made absolute, seen from `folder`."""
    changed: dict[str, Any] = {}
    code = manifest.parsed_code()
    if code and code.kind == "local":
        changed["code"] = str((folder / code.path).resolve())
    changed["data"] = tuple(
        item.model_copy(update={"source": str((folder / item.source).resolve())})
        if item.parsed().kind == "local"
        else item
        for item in manifest.data
    )
    return manifest.model_copy(update=changed)


def _missing(path: str, value: str, base_dir: Path) -> list[FieldError]:
    if (base_dir / value).exists():
        return []
    allowed = f"a folder or file below {base_dir.name or 'the folder of the manifest'}"
    return [FieldError(path, repr(value), f"{redact(value)!r} does not exist beside the manifest", allowed)]


def _suite(file: Path, path: str) -> dict[str, Any]:
    return _parsed_suite(_read_file(file, path), file.name, path)


@lru_cache(maxsize=32)
def _parsed_suite(text: str, name: str, path: str) -> dict[str, Any]:
    """Parse a suite. The result is cached, because the DAG processor reads the same long suites at every parse: copy it
    before changing it."""
    allowed = "a JSON file with a suite of Great Expectations"
    if len(text) > TEXT_CHARACTERS:
        problem = f"{name!r} has more than {TEXT_CHARACTERS} characters"
        raise ManifestError([FieldError(path, None, problem, "a shorter suite")])
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise ManifestError([FieldError(path, None, f"{name!r} does not hold JSON", allowed)]) from None
    if not isinstance(raw, dict):
        raise ManifestError([FieldError(path, None, f"{name!r} does not hold a suite", allowed)])
    try:
        suite = check_expectations(plain_mapping(raw, name))
    except ManifestError:
        raise
    except ValueError as exc:  # PydanticCustomError is a ValueError
        found: Any = getattr(exc, "context", None) or {"fields": ()}
        first: FieldError = found["fields"][0][0]
        problem = f"{name!r}: {first.path}: {first.problem}"
        raise ManifestError([FieldError(path, None, problem, first.allowed, first.suggestion)]) from None
    assert isinstance(suite, dict)
    return suite


def _text_of(text_or_path: str | Path) -> tuple[str, Path | None, str]:
    if isinstance(text_or_path, str):
        is_text = "\n" in text_or_path or ": " in text_or_path or text_or_path.lstrip()[:1] in ("", "{")
        if is_text:
            return text_or_path, None, "manifest"
    path = Path(text_or_path)
    return _read_file(path, "file"), path, path.name or str(path)


def _read_file(path: Path, field_path: str) -> str:
    def refuse(problem: str) -> ManifestError:
        return ManifestError(
            [FieldError(field_path, str(path), problem, "a readable text file")], path.name or "manifest"
        )

    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.read(TEXT_CHARACTERS + 1)
    except OSError as exc:
        raise refuse(f"{str(path)!r} cannot be read ({exc.strerror or 'no such file'})") from exc
    except ValueError as exc:  # not UTF-8, or a path that contains NUL
        raise refuse(f"{str(path)!r} is not a text file") from exc
