"""Parse the sources of code and data: the text of `code` and `data[].source`.

Pure: it only describes a source. The staging operator fetches it; the CLI packs local sources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from updraft.manifest.errors import VALUE, wrong

Kind = Literal["local", "s3", "pvc", "git", "tree"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}", re.ASCII)
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_OBJECT_NAME_CHARACTERS = 253
_CLAIM_FORM = "pvc://claim or pvc://claim/folder"
_TREE = re.compile(r"tree:([0-9a-f]{64})", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_VERSION_TAG = re.compile(r"v?\d+(\.\d+)+([-+.]?[A-Za-z0-9.]+)?|v\d+", re.ASCII)
_TAG_REF = re.compile(r"refs/tags/[A-Za-z0-9][A-Za-z0-9._/-]*", re.ASCII)
_GIT_SCHEMES = ("git+https", "git+http", "git+ssh", "git+file")


@dataclass(frozen=True)
class Source:
    """A source of code or data, split into its parts. Only the fields of its kind are set."""

    kind: Kind
    path: str = ""  # local: a folder or file, relative to the manifest
    bucket: str = ""  # s3
    key: str = ""  # s3: object or prefix; pvc: folder of the volume
    claim: str = ""  # pvc: the PersistentVolumeClaim in the tenant's namespace
    url: str = ""  # git: address of the repository
    ref: str = ""  # git: commit or tag
    subfolder: str = ""  # git: folder inside the repository
    tree: str = ""  # tree: SHA-256 of a tree document in the content store

    @property
    def is_archive(self) -> bool:
        """Return whether the source is a .zip file."""
        return (self.path or self.key).lower().endswith(".zip")


def parse_source(text: str, *, git: bool) -> Source:
    """Split the text of `code` (`git=True`) or of `data[].source` into its parts.

    Raises PydanticCustomError, from which `parse` makes a FieldError, if the text is not a source that is allowed
    there.

        parse_source("s3://datasets/digits/", git=False)  # Source("s3", bucket="datasets", key="digits/")
    """
    kinds = "a folder or file, s3://bucket/prefix"
    kinds += " or git+https://host/repository@commit" if git else " or pvc://claim/folder"
    if not text.strip() or text != text.strip():
        raise wrong(f"{VALUE} is empty or has blanks around it", kinds, value=text)
    if text.startswith("tree:"):
        match = _TREE.fullmatch(text)
        if match is None:
            raise wrong(f"{VALUE} is not the name of a tree", "tree: and 64 hexadecimal digits", value=text)
        return Source("tree", tree=match[1])
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Source("local", path=text)
    name = scheme[1].lower()
    if name == "s3":
        return _s3(text)
    if not git and name == "pvc":
        return _pvc(text)
    if git and name in _GIT_SCHEMES:
        return _git(text)
    raise wrong(f"{VALUE} has the scheme {scheme[1]!r}, which is not supported here", kinds, value=text)


def is_object_name(text: str) -> bool:
    """Return whether the text can name a claim, a secret or a service account of Kubernetes."""
    return len(text) <= _OBJECT_NAME_CHARACTERS and _OBJECT_NAME.fullmatch(text) is not None


def _s3(text: str) -> Source:
    bucket, _, key = text[len("s3://") :].partition("/")
    if "@" in bucket:
        raise wrong("holds credentials", "the address alone, and name a secret beside it", value=text)
    if not _BUCKET.fullmatch(bucket):
        raise wrong(f"{VALUE} names no valid bucket", "s3://bucket/prefix", "s3://datasets/digits/", value=text)
    if any(part in (".", "..") for part in key.split("/")):
        raise wrong(f"{VALUE} has '.' or '..' in its path", "s3://bucket/prefix", "s3://datasets/digits/", value=text)
    return Source("s3", bucket=bucket, key=key)


def _pvc(text: str) -> Source:
    claim, _, path = text[len("pvc://") :].partition("/")
    if not is_object_name(claim):
        raise wrong(f"{VALUE} names no valid claim", _CLAIM_FORM, "pvc://imagenet/train", value=text)
    folder = path.removesuffix("/")
    if folder and any(part in ("", ".", "..") for part in folder.split("/")):
        problem = f"{VALUE} has an empty part, '.' or '..' in its path"
        raise wrong(problem, _CLAIM_FORM, "pvc://imagenet/train", value=text)
    return Source("pvc", claim=claim, key=folder)


def _git(text: str) -> Source:
    form = "git+https://host/repository@commit (or @v1.2, or @refs/tags/NAME)"
    try:
        parts = urlsplit(text.removeprefix("git+"))
        password, user, host = parts.password, parts.username, parts.hostname
        options = parse_qs(parts.fragment, strict_parsing=True) if parts.fragment else {}
    except ValueError:
        raise wrong("is not a valid address", form, value=text) from None
    if password is not None or (user is not None and parts.scheme != "ssh"):
        raise wrong("holds credentials", "the address alone, and name the secret in code_secret", value=text)
    if (not host and parts.scheme != "file") or not parts.path.strip("/"):
        raise wrong(f"{VALUE} names no repository", form, value=text)
    path, at, ref = parts.path.rpartition("@")
    if not at:
        raise wrong(f"{VALUE} is not pinned to a commit, so that two runs could differ", form, value=text)
    if not (_COMMIT.fullmatch(ref) or _VERSION_TAG.fullmatch(ref) or _TAG_REF.fullmatch(ref)):
        raise wrong(
            f"{VALUE} names {ref[:40]!r}, which reads as a branch, and a branch moves",
            f"the commit (7 or more hexadecimal digits) or tag: {form}",
            value=text,
        )
    subfolder = options.pop("subdirectory", [""])[-1]
    if options or subfolder.startswith("/") or ".." in subfolder.split("/"):
        raise wrong(f"{VALUE} has an unknown part after #", "#subdirectory=FOLDER or nothing", value=text)
    return Source("git", url=parts._replace(path=path, fragment="").geturl(), ref=ref, subfolder=subfolder)
