"""Write one commit of a git repository to a folder, within a limit: nothing is written that would exceed it.

`git_process` runs git. Only the given protocols are used; no hooks, no prompts, no submodules, and no secrets in
arguments. Called by `work`.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from updraft_data.git_process import Git, TooLarge
from updraft_learner.prepare.errors import SourceError, check_limit, tree_errors
from updraft_learner.trees import check_length, megabytes

PROTOCOLS = ("https",)

_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_SHORT_SHA = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_ALONE = ("fetch", "--depth=1", "--no-tags")
_EVERYTHING = ("+refs/heads/*:refs/remotes/source/*", "+refs/tags/*:refs/tags/*")


@dataclass(frozen=True)
class Checkout:
    folder: Path
    commit: str  # the full SHA


def checkout(
    url: str,
    ref: str,
    subfolder: str,
    work: Path,
    *,
    limit_bytes: int,
    limit_files: int,
    credentials: Mapping[str, str] | None = None,
    secret_name: str | None = None,
    protocols: tuple[str, ...] = PROTOCOLS,
    say: Callable[[str], None] = lambda line: None,
) -> Checkout:
    """Fetch the commit (or tag) `ref` and lays it, or its subfolder, out below `work`.

    What is fetched, which git keeps compressed, and what is laid out must each stay below the limit. `credentials` is
    {token} or {username, password}. Raises SourceError, of kind `unavailable` when the server cannot be reached.
    """
    scheme = urlsplit(url).scheme
    if scheme not in protocols:
        raise SourceError("data", f"code: git over {scheme!r} is not allowed here; use git+{protocols[0]}://")
    environment = _environment(url, work, credentials, secret_name, protocols)

    def repository(name: str) -> Git:
        git = Git(url, work / name, environment, secret_name, limit_bytes, say)
        git("init", "--quiet", "--template=", ".")
        return git

    git = repository("repository")
    try:
        commit = _fetch(git, url, ref)
    except TooLarge as exc:
        raise SourceError(
            "limit",
            f"code: {url} at {ref} is larger than the limit of {megabytes(limit_bytes)}: {megabytes(exc.size_bytes)} "
            "were fetched when it was given up; use less code or ask for a higher limit",
        ) from None
    if commit is None:
        commit = _resolve(repository("history"), url, ref, limit_bytes)
        commit = _fetch(git, url, commit) or _fetch_everything(git, url, commit, limit_bytes)
    return Checkout(_lay_out(git, url, commit, subfolder, limit_bytes, limit_files), commit)


def _fetch(git: Git, url: str, ref: str) -> str | None:
    """Return the one commit alone; None where the server does not hand it out under this name. Raises TooLarge."""
    tag = ref.removeprefix("refs/tags/")
    wanted = ref if _FULL_SHA.fullmatch(ref) else f"refs/tags/{tag}"
    if git.succeeds(*_ALONE, url, wanted):
        return git("rev-parse", "--verify", "FETCH_HEAD^{commit}")
    if not _SHORT_SHA.fullmatch(ref):
        raise SourceError("data", f"code: {url} has no tag {tag!r}; correct the part after @")
    return None


def _resolve(git: Git, url: str, ref: str, limit_bytes: int) -> str:
    """Return the full SHA of a commit that is named by a short SHA, or that the server does not hand out by its SHA.

    Fetches the history without files.
    """
    git("remote", "add", "source", url)
    try:
        if not git.succeeds("fetch", "--filter=tree:0", "source", *_EVERYTHING):
            git("fetch", "source", *_EVERYTHING)
    except TooLarge:
        raise SourceError(
            "limit",
            f"code: {url}: its history is larger than the limit of {megabytes(limit_bytes)}; give all 40 digits of the "
            "commit after @, so that it is fetched alone",
        ) from None
    commit = git.output("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if commit is None:
        raise SourceError(
            "data", f"code: {url} has no commit {ref!r} on its branches and tags; push it or correct the part after @"
        )
    return commit


def _fetch_everything(git: Git, url: str, commit: str, limit_bytes: int) -> str:
    """Fetch all branches and tags, for servers that hand out nothing else; return the commit."""
    try:
        git("fetch", url, *_EVERYTHING)
    except TooLarge:
        raise SourceError(
            "limit",
            f"code: {url}: its server hands out no single commit, and all of it is larger than the limit of "
            f"{megabytes(limit_bytes)}; tag the commit and give the tag after @, or ask for a higher limit",
        ) from None
    return commit


def _lay_out(git: Git, url: str, commit: str, subfolder: str, limit_bytes: int, limit_files: int) -> Path:
    """Return the commit's files, or those of the subfolder; sizes and paths are known before the first one is written.

    Trees may name each other many times over: a repository of a few KB can list more files than any memory holds.
    Counting ends at the limit, and git is asked for nothing outside the subfolder but its attributes.
    """
    inside = PurePosixPath(subfolder).as_posix() if subfolder else "."
    tree = git.output("rev-parse", "--verify", "--quiet", f"{commit}:{'' if inside == '.' else inside}")
    if tree is None or git("cat-file", "-t", tree) != "tree":
        raise SourceError("data", f"code: {url} at {commit[:12]} has no folder {subfolder!r}; correct #subdirectory")
    source = f"code: {url} at {commit[:12]}"
    above = "" if inside == "." else f"{inside}/"
    if _count(git, tree, above, source, limit_bytes, limit_files):
        _read_index(git, commit, tree, inside)
        git("--literal-pathspecs", "checkout", "--quiet", "--force", "--", inside, watched=False)
    folder = git.folder / inside
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _count(git: Git, tree: str, above: str, source: str, limit_bytes: int, limit_files: int) -> int:
    """Return how many files the tree has, which lies below the folder `above`.

    Raises SourceError: of kind `limit` as soon as that or their size passes a limit, of kind `data` for a path that is
    too long or too deep.
    """
    files = size_bytes = 0
    with tree_errors(source), closing(git.entries("ls-tree", "-r", "-l", "-z", tree)) as entries:
        check_length(above)
        for entry in entries:
            facts, _, path = entry.partition("\t")
            size = facts.split()[3]  # mode, type, digest, size
            if size == "-":  # a submodule has no size
                continue
            check_length(above + path)
            files += 1
            size_bytes += int(size)
            if files > limit_files:
                raise SourceError("limit", f"{source}: has more than {limit_files} files; pack them into fewer")
            check_limit(source, size_bytes, limit_bytes)
    return files


def _read_index(git: Git, commit: str, tree: str, inside: str) -> None:
    """Read the folder into git's index, with the attributes of the folders above it, which hold for it too."""
    if inside == ".":
        git("read-tree", tree)
        return
    git("read-tree", f"--prefix={inside}/", tree)
    above = [(folder / ".gitattributes").as_posix() for folder in PurePosixPath(inside).parents]
    for entry in git.entries("ls-tree", "-z", commit, "--", *above):
        mode, kind, digest, path = entry.split(maxsplit=3)
        if kind == "blob":
            git("update-index", "--add", "--cacheinfo", f"{mode},{digest},{path}")


def _environment(
    url: str, work: Path, credentials: Mapping[str, str] | None, secret_name: str | None, protocols: tuple[str, ...]
) -> dict[str, str]:
    """Return git's environment: nothing of the container's own configuration, and the credentials as a header for this
    server only."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(work),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
    }
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "GIT_SSL_CAINFO"):
        if name in os.environ:
            environment[name] = os.environ[name]
    if credentials:
        password = credentials.get("token") or credentials.get("password")
        if not password:
            name = f"secret {secret_name!r}" if secret_name else "the secret"
            raise SourceError(
                "data", f"code: {name} has no token; a repository's secret needs token, or username and password"
            )
        user = credentials.get("username") or "x-access-token"
        parts = urlsplit(url)
        encoded = base64.b64encode(f"{user}:{password.strip()}".encode()).decode()
        environment |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{parts.netloc}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {encoded}",
        }
    return environment
