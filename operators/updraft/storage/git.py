"""One commit of a git repository as a folder. Runs the `git` binary: no hooks, no prompts, no submodules, no secrets
in its arguments, and only over the protocols named here."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from updraft.exceptions import DataError, UnavailableError

TIMEOUT_SECONDS = 600
PROTOCOLS = ("https",)

_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_SHORT_SHA = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_AWAY = (
    "could not resolve host",
    "connection refused",
    "connection reset",
    "couldn't connect",
    "failed to connect",
    "timed out",
    "early eof",
    "the requested url returned error: 5",
)
_DENIED = (
    "authentication failed",
    "access denied",
    "could not read password",
    "could not read username",
    "the requested url returned error: 401",
    "the requested url returned error: 403",
)


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
    credentials: Mapping[str, str] | None = None,
    secret_name: str | None = None,
    protocols: tuple[str, ...] = PROTOCOLS,
) -> Checkout:
    """Fetches the commit (or tag) `ref` and lays it out below `work`.

    `credentials` is {token} or {username, password}. Raises DataError for what the user can correct, UnavailableError
    when the server cannot be reached.
    """
    scheme = urlsplit(url).scheme
    if scheme not in protocols:
        raise DataError(f"code: git over {scheme!r} is not allowed here; use git+{protocols[0]}://")
    run = _Git(url, work / "repository", _environment(url, work, credentials, secret_name, protocols), secret_name)
    run("init", "--quiet", "--template=", ".")
    commit = _fetch(run, url, ref)
    run("-c", "advice.detachedHead=false", "checkout", "--quiet", "--force", commit)
    root = run.folder.resolve()
    folder = (root / subfolder).resolve() if subfolder else root
    if not folder.is_relative_to(root) or not folder.is_dir():
        raise DataError(f"code: {url} at {commit[:12]} has no folder {subfolder!r}; correct #subdirectory")
    return Checkout(folder, commit)


def _fetch(run: _Git, url: str, ref: str) -> str:
    """Only the one commit where the server allows it; everything, without files, where it does not."""
    tag = ref.removeprefix("refs/tags/")
    if _FULL_SHA.fullmatch(ref):
        if run.succeeds("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", url, ref):
            return run("rev-parse", "--verify", "FETCH_HEAD^{commit}")
    elif run.succeeds("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", url, f"refs/tags/{tag}"):
        return run("rev-parse", "--verify", "FETCH_HEAD^{commit}")
    if not _SHORT_SHA.fullmatch(ref):
        raise DataError(f"code: {url} has no tag {tag!r}; correct the part after @")
    run(
        "fetch",
        "--quiet",
        "--no-recurse-submodules",
        url,
        "+refs/heads/*:refs/remotes/source/*",
        "+refs/tags/*:refs/tags/*",
    )
    commit = run.output("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if commit is None:
        raise DataError(
            f"code: {url} has no commit {ref!r} on its branches and tags; push it or correct the part after @"
        )
    return commit


class _Git:
    """Runs git in one folder."""

    def __init__(self, url: str, folder: Path, environment: dict[str, str], secret_name: str | None) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._url, self._environment, self._secret_name = url, environment, secret_name

    def __call__(self, *arguments: str) -> str:
        done = self._run(arguments)
        if done.returncode != 0:
            raise self._error(done.stderr)
        return done.stdout.strip()

    def succeeds(self, *arguments: str) -> bool:
        """False when the server has not what was asked for. Raises for any other failure."""
        done = self._run(arguments)
        if done.returncode == 0:
            return True
        text = done.stderr.lower()
        if any(sign in text for sign in (*_AWAY, *_DENIED)) or ("repository" in text and "not" in text):
            raise self._error(done.stderr)
        return False

    def output(self, *arguments: str) -> str | None:
        done = self._run(arguments)
        return done.stdout.strip() if done.returncode == 0 else None

    def _run(self, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        safe = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false")
        try:
            return subprocess.run(
                ["git", *safe, *arguments],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except FileNotFoundError as exc:
            raise UnavailableError("code: the program `git` is not installed on the worker; install it") from exc
        except subprocess.TimeoutExpired as exc:
            raise UnavailableError(f"code: {self._url} took longer than {TIMEOUT_SECONDS} seconds; try again") from exc

    def _error(self, stderr: str) -> DataError | UnavailableError:
        line = next((part for part in reversed(stderr.strip().splitlines()) if part.strip()), "git failed")[:300]
        text = stderr.lower()
        if any(sign in text for sign in _DENIED):
            used = (
                f"secret {self._secret_name!r} was used" if self._secret_name else "no secret was named in code_secret"
            )
            return DataError(f"code: {self._url}: access is denied, or the repository does not exist; {used} ({line})")
        if any(sign in text for sign in _AWAY):
            return UnavailableError(f"code: {self._url} cannot be reached ({line}); try again")
        return DataError(f"code: {self._url} cannot be fetched ({line})")


def _environment(
    url: str, work: Path, credentials: Mapping[str, str] | None, secret_name: str | None, protocols: tuple[str, ...]
) -> dict[str, str]:
    """Nothing of the worker's own configuration; the credentials as a header for this server only."""
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
            raise DataError(f"code: {name} has no token; a repository's secret needs token, or username and password")
        user = credentials.get("username") or "x-access-token"
        parts = urlsplit(url)
        encoded = base64.b64encode(f"{user}:{password.strip()}".encode()).decode()
        environment |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{parts.netloc}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {encoded}",
        }
    return environment
