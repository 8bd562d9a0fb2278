"""Define the manifest's section `environment`: packages that the job adds to those of its image.

`env` sets variables; `environment` names packages. The pod of the role `build` resolves and installs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)

from updraft.manifest import limits, values
from updraft.manifest.errors import VALUE, FieldError, show, wrong

ALLOWED = "requirements.txt, uv.lock or pyproject.toml in the code's folder, or a list of requirements"
_REQUIREMENT = "a name and versions, such as einops>=0.8"
_SUFFIXES = (".txt", ".lock", ".toml")
_PYTHON = re.compile(r"3\.\d{1,2}(\.\d{1,2})?", re.ASCII)
_URL_CHARACTERS = 1_000


def check_python(value: object) -> str:
    """Return the version of Python. Raises PydanticCustomError for what is no text such as "3.12"."""
    if not isinstance(value, str) or not _PYTHON.fullmatch(value):
        raise wrong(f"{VALUE} is no version of Python", 'text such as "3.12"', value=value)
    return value


def check_requirement(text: str) -> str:
    """Return one requirement. Raises PydanticCustomError for what is none, or names no package of an index."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise wrong(f"{VALUE} is no requirement", _REQUIREMENT, value=text) from None
    if requirement.url is not None:
        raise wrong(f"{VALUE} is an address, and only packages of an index are installed", _REQUIREMENT, value=text)
    return text


def check_requirements(value: object) -> str | tuple[str, ...]:
    """Return the path of a file, relative to the code's folder, or the requirements themselves."""
    if isinstance(value, str):
        return _file(value)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
        raise wrong(f"{VALUE} is neither a file nor a list of requirements", ALLOWED, value=value)
    if len(value) > limits.LISTED:
        raise wrong("lists too many", f"a list with at most {limits.LISTED}, or requirements.txt", value=len(value))
    return tuple(check_requirement(item) for item in value)


def _file(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text or not text.isprintable():
        raise wrong(f"{VALUE} is no path below the code's folder", ALLOWED, value=text)
    if path.suffix not in _SUFFIXES or (path.suffix != ".txt" and path.name not in ("uv.lock", "pyproject.toml")):
        raise wrong(f"{VALUE} is no file of requirements", ALLOWED, value=text)
    return path.as_posix()


def check_index(text: str) -> str:
    """Return the address of an index. Raises PydanticCustomError for one that holds a password or is no address."""
    try:
        parts = urlsplit(text)
        found = parts.hostname
    except ValueError:
        parts, found = urlsplit(""), None
    if "@" in parts.netloc:
        raise wrong("holds a user or a password", "an address without them, and a stored secret in `secret`", value="")
    plain = text.isascii() and text.isprintable() and " " not in text and len(text) <= _URL_CHARACTERS
    if parts.scheme not in ("http", "https") or not found or parts.query or parts.fragment or not plain:
        raise wrong(f"{VALUE} is no address of a package index", "an address with http:// or https://", value=text[:80])
    return text


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PackageIndex(_Section):
    """A package index, in the form of PyPI's simple index."""

    url: Annotated[str, Field(strict=True), AfterValidator(check_index)] = Field(
        description="Address of the index, without user and password", examples=["https://packages.example/simple"]
    )
    secret: Annotated[str, Field(strict=True), AfterValidator(values.check_secret_name)] | None = Field(
        None, description="Stored secret with username and password, or token, of the index", examples=["packages"]
    )


class PackageEnvironment(_Section):
    """The packages that the job's programs need besides those of the image."""

    python: Annotated[str, PlainValidator(check_python), WithJsonSchema({"type": "string"})] | None = Field(
        None, description="Version of Python that the image must have, quoted in YAML", examples=["3.12"]
    )
    requirements: Annotated[str | tuple[str, ...], BeforeValidator(check_requirements)] = Field(
        description="requirements.txt, uv.lock or pyproject.toml in the code's folder, or a list of requirements",
        examples=[["einops>=0.8"]],
    )
    index: PackageIndex | None = Field(
        None, description="Index that is used instead of the platform's", examples=[{"url": "https://pypi.org/simple"}]
    )
    extra_index: Annotated[tuple[PackageIndex, ...], Field(strict=False, max_length=10)] = Field(
        (), description="Indexes that are asked first; a package is taken from the first one that has it"
    )

    @property
    def file(self) -> str | None:
        """Return the file of requirements below the code's folder; None if they are a list."""
        return self.requirements if isinstance(self.requirements, str) else None

    def secrets(self) -> Iterator[str]:
        """Yield the names of the secrets of the indexes."""
        for index in (*self.extra_index, *([self.index] if self.index else [])):
            if index.secret:
                yield index.secret


def environment_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error where requirements are a file and there is no folder of code to hold it."""
    section = raw.get("environment")
    named = section.get("requirements") if isinstance(section, Mapping) else None
    if isinstance(named, str) and raw.get("code") is None:
        problem = f"{show(named)} is a file in the code's folder, and the manifest has no code"
        yield FieldError("environment.requirements", show(named), problem, "a list of requirements, or code")
