"""Resolve, lock and install a job's packages with uv; the pod of the role `build` runs this with its image's Python.

Imports the standard library only, because the image need not have this package. Everything lies below the folder of
this file: the work, uv, uv's cache, the tree that is made, and the report for the sidecar.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

WORK, REPORT, TREE, LOCK_NAME = "work.json", "report.json", "tree", "environment.lock"
EXIT = {"unavailable": 74}  # updraft_learner.contract.ExitCode.STORAGE: another try may help
CONFIGURATION = 64
LOCK_LIMIT_BYTES = 4 << 20
WORDS_CHARACTERS = 600
Run = Callable[[Sequence[str]], tuple[int, str]]

_CHANGE = re.compile(r"^ ([+-]) ([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_ENTRY = re.compile(r"^[A-Za-z0-9][^\n]*\n(?:[ ][^\n]*\n)*", re.MULTILINE)  # of a lock: a package and its digests
_SOURCE_ONLY = re.compile(r"Wheels are required for `([^`]+)`|(\S+?)(?:==\S+)? has no (?:usable )?wheels")
_AWAY = re.compile(
    r"client error \(Connect|dns error|timed out|Connection (?:refused|reset)|status (?:server error|code 5)|"
    r"\b(?:429|50[0234])\b|error sending request|Failed to fetch"
)
_DENIED = re.compile(r"\b(?:401 Unauthorized|403 Forbidden)\b|Missing credentials|Unauthorized")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"@\s*\S+://|^\S+://|^\.{0,2}/|^(?:git|hg|svn|bzr)\+")


class BuildError(Exception):
    """A sentence for the job's reason; of the kinds of `prepare.errors`, only `unavailable` is worth another try."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def environment_key(image: str, python: str, machine: str, lock: str, indexes: Sequence[str]) -> str:
    """Return the name under which an environment is stored: equal for what installs the same files."""
    text = json.dumps([image, python, machine, lock, list(indexes)])
    return hashlib.sha256(text.encode()).hexdigest()


class Builder:
    """One build. `run` runs uv with the arguments that it gets, and returns its exit code and what it printed."""

    def __init__(self, folder: Path, code: Path, work: Mapping[str, Any], run: Run, say: Callable[[str], None]) -> None:
        self._folder, self._code, self._work, self._run, self._say = folder, code, work, run, say
        self._said = ""  # by uv, when it failed last

    def build(self) -> dict[str, Any]:
        """Return the report: the lock, its key, and what it adds. Raises BuildError."""
        self._check_python()
        source = self._requirements()
        self._say(f"resolving {self._work['label']}")
        added, lock = self._resolve(source)
        python = f"{sys.executable} {platform.python_version()}"
        machine = f"{platform.machine()} {sys.platform}"
        key = environment_key(self._work["image"], python, machine, lock, [i["url"] for i in self._work["indexes"]])
        reused = key in self._work["known"]
        if reused:
            self._say(f"{len(added)} packages are in the store already")
        else:
            self._install(added, lock)
        return {"done": True, "python": python, "machine": machine, "lock": lock, "reused": reused}

    def _check_python(self) -> None:
        wanted, has = self._work.get("python"), platform.python_version()
        if wanted and has != wanted and not has.startswith(wanted + "."):
            raise BuildError(
                "refused",
                "environment.python: the manifest asks for Python {}, and image {} has {}; write {}, or use an image "
                "with {}".format(wanted, self._work["image"], has, ".".join(has.split(".")[:2]), wanted),
            )

    # --- what is asked for ---------------------------------------------------------------------------------------

    def _requirements(self) -> Path:
        """Return a file of requirements that uv reads."""
        target = self._folder / "requirements.txt"
        if self._work["file"] is None:
            target.write_text("\n".join(self._work["requirements"]) + "\n", encoding="utf-8")
            return target
        path = self._code / str(self._work["file"])
        if not path.is_file():
            raise BuildError("data", f"environment.requirements: the code has no file {self._work['file']}; correct it")
        if path.name == "pyproject.toml":
            return path
        if path.name == "uv.lock":
            text = self._exported(path)
        else:
            text = path.read_bytes()[:LOCK_LIMIT_BYTES].decode("utf-8", "replace")
        target.write_text("\n".join(checked_lines(text, self._work["file"])) + "\n", encoding="utf-8")
        return target

    def _exported(self, path: Path) -> str:
        target = self._folder / "exported.txt"
        words = [
            "export",
            "--frozen",
            "--no-dev",
            "--no-emit-workspace",
            "--no-emit-project",
            "--no-hashes",
            "--no-header",
            "--no-annotate",
            "--project",
            str(path.parent),
            "--python",
            sys.executable,
            "--output-file",
            str(target),
        ]
        status, said = self._run(words)
        if status != 0:
            raise BuildError("data", f"environment.requirements: {path.name} cannot be read: {shortened(said)}")
        return target.read_text(encoding="utf-8")

    # --- what it means -------------------------------------------------------------------------------------------

    def _resolve(self, source: Path) -> tuple[dict[str, str], str]:
        """Return the packages to add, with their versions, and their lock; none of them may take the place of one of
        the image."""
        constraints = self._folder / "image.txt"
        pins = self._work.get("installed") or installed()
        constraints.write_text(
            "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())), encoding="utf-8"
        )
        # One resolution for both, where the index has the packages of the image that are needed. It may not: an image
        # may have builds of its own.
        whole = self._compiled(source, "--constraints", str(constraints))
        if whole is not None:
            entries = [entry for entry in _ENTRY.findall(whole) if entry.partition("==")[0] not in pins]
            pinned = (entry.split(maxsplit=1)[0].partition("==") for entry in entries)
            return {name: version for name, _, version in pinned}, "".join(entries)
        status, said = self._run([*self._dry(source), "--constraints", str(constraints)])
        if status != 0:
            self._refuse_conflict(source)
            raise self._failure(said)
        added = {name: version for sign, name, version in _CHANGE.findall(said) if sign == "+"}
        return added, self._lock(added)

    def _refuse_conflict(self, source: Path) -> None:
        """Resolve without regard to the image, and name what would differ from it."""
        status, said = self._run(self._dry(source))
        if status != 0:
            return
        changes = _CHANGE.findall(said)
        added = {name: version for sign, name, version in changes if sign == "+"}
        for sign, name, has in changes:
            if sign == "-" and name in added:
                raise BuildError(
                    "refused",
                    "environment.requirements: they need {} {}, and image {} has {} {}, which stays as it is; loosen "
                    "the requirement, or use an image with {} {}".format(
                        name, added[name], self._work["image"], name, has, name, added[name]
                    ),
                )

    def _dry(self, source: Path) -> list[str]:
        return [
            "pip",
            "install",
            "--dry-run",
            "--break-system-packages",
            *self._common(),
            "--requirements",
            str(source),
        ]

    def _lock(self, added: Mapping[str, str]) -> str:
        """Return the packages with versions and, where the index names them, the digests of their files."""
        if not added:
            return ""
        pins = self._folder / "pins.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in sorted(added.items())), encoding="utf-8")
        lock = self._compiled(pins, "--no-deps")
        if lock is None:
            raise self._failure(self._said)
        return lock

    def _compiled(self, source: Path, *words: str) -> str | None:
        """Return what the requirements of a file resolve to, with digests; None if uv cannot, whose words are then
        `_said`."""
        target = self._folder / "resolved.txt"
        command = ["pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", *words]
        status, self._said = self._run([*command, *self._common(), "--output-file", str(target), str(source)])
        return target.read_text(encoding="utf-8") if status == 0 else None

    def _install(self, added: Mapping[str, str], lock: str) -> None:
        tree = self._folder / TREE
        tree.mkdir()
        (tree / LOCK_NAME).write_text(lock, encoding="utf-8")
        if not added:
            self._say("the image has all packages already")
            return
        self._say(f"installing {len(added)} packages: {', '.join(sorted(added))[:300]}")
        words = ["pip", "install", "--target", str(tree), "--no-deps", "--link-mode", "hardlink"]
        status, said = self._run([*words, *self._common(), "--requirements", str(tree / LOCK_NAME)])
        if status != 0:
            raise self._failure(said)
        (tree / ".lock").unlink(missing_ok=True)

    def _common(self) -> list[str]:
        words = ["--no-config", "--no-sources", "--only-binary", ":all:", "--python", sys.executable]
        *extra, last = self._work["indexes"]
        for number, index in enumerate(extra):
            words += ["--index", f"i{number}={index['url']}"]
        return [*words, "--default-index", f"i{len(extra)}={last['url']}"]

    def _failure(self, said: str) -> BuildError:
        return failure_of(said, self._work["image"])


def failure_of(said: str, image: str) -> BuildError:
    """Return the error that uv's words mean."""
    words = shortened(said)
    if found := _SOURCE_ONLY.search(said):
        name = (found[1] or found[2]).strip("`'\"")
        return BuildError(
            "refused",
            f"environment.requirements: {name} has no wheel for Python {platform.python_version()} in image {image}, "
            "and building it from source would "
            "need a compiler; take a version that has one, build a wheel and put it into an index of yours, or use an "
            f"image that has {name} (uv: {words})",
        )
    if _DENIED.search(said):
        return BuildError(
            "refused",
            "environment.index: the index refuses the log-in; store a secret with username "
            f"and password, or token, and name it there (uv: {words})",
        )
    if _AWAY.search(said):
        return BuildError("unavailable", f"environment.index: the index cannot be reached (uv: {words})")
    return BuildError("refused", f"environment.requirements: they cannot be resolved (uv: {words})")


def shortened(said: str) -> str:
    """Return the words of uv that matter, on one line."""
    lines = [line.strip() for line in said.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("Using ", "Resolved ", "hint:", "Downloading "))]
    text = " ".join(line.replace("error: ", "", 1).replace("cause: ", "", 1) for line in kept)
    return text if len(text) <= WORDS_CHARACTERS else text[: WORDS_CHARACTERS - 3] + "..."


def checked_lines(text: str, name: str) -> list[str]:
    """Return the requirements of a file. Raises BuildError for options, addresses and other files that it names."""
    found = []
    for number, raw in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            continue
        where = f"environment.requirements: line {number} of {name}"
        if line.startswith("-"):
            raise BuildError(
                "refused",
                "{} is an option ({}); write indexes into environment.index and extra_index, "
                "and the lines of other files into this one".format(where, line.split()[0].split("=")[0]),
            )
        if _ADDRESS.search(line) or not _NAME.match(line):
            raise BuildError("refused", f"{where} is no name with versions; only packages of an index are installed")
        found.append(line)
    return found


def installed() -> dict[str, str]:
    """Return the packages of this Python by normal name."""
    from importlib import metadata

    found: dict[str, str] = {}
    for item in metadata.distributions():
        name = item.metadata["Name"]
        if name and _NAME.fullmatch(name):
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), item.version)
    return found


# --- the process ---------------------------------------------------------------------------------------------------


class Uv:
    """Runs uv, prints its lines as they come, and ends it with the build's time."""

    def __init__(self, folder: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._secrets = [
            value
            for name, value in environment.items()
            if name.startswith("UPDRAFT_INDEX_") and name.endswith(("_PASSWORD", "_TOKEN")) and value
        ]
        self._environment = {**environment, **uv_variables(environment), "UV_CACHE_DIR": str(folder / "cache")}
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        """Run uv. Raises BuildError where the image cannot run it, or when the time is over."""
        command = [str(self._folder / "uv"), *words]
        try:
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                errors="replace",
            )
        except OSError as exc:
            raise BuildError(
                "refused",
                f"environment: the image cannot run uv ({exc.strerror}); it needs Linux with glibc 2.17 or later",
            ) from exc
        said = []
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = self._hidden(raw.rstrip())
            said.append(line)
            if line.lstrip().startswith(("Download", "Prepared", "Installed")):
                self._say(line.strip())
        status = self._process.wait()
        if self._over:
            raise BuildError(
                "limit",
                "environment: the build took longer than its limit; ask for fewer packages, or "
                "for a longer environment_seconds of the platform",
            )
        return status, "\n".join(said)

    def end(self) -> None:
        """End the running uv; the build then fails with its time limit."""
        self._over = True
        if self._process is not None:
            self._process.kill()

    def _hidden(self, line: str) -> str:
        for secret in self._secrets:
            line = line.replace(secret, "****")
        return line


def uv_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables, with the log-ins of the indexes."""
    found = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    for number in range(11):
        given = f"UPDRAFT_INDEX_{number}_"
        token, password = environment.get(given + "TOKEN"), environment.get(given + "PASSWORD")
        if token or password:
            found[f"UV_INDEX_I{number}_USERNAME"] = environment.get(given + "USERNAME") or "__token__"
            found[f"UV_INDEX_I{number}_PASSWORD"] = password or token or ""
    return found


def main() -> int:
    """Build what the work asks for, and leave the report. Returns the exit code."""
    folder = Path(os.path.abspath(__file__)).parent
    work = json.loads((folder / WORK).read_text(encoding="utf-8"))

    def say(line: str) -> None:
        print("environment: " + line, flush=True)

    uv = Uv(folder, os.environ, say)
    timer = threading.Timer(work["seconds"], uv.end)
    timer.daemon = True
    timer.start()

    def leave(*_: object) -> None:
        uv.end()
        os._exit(143)

    signal.signal(signal.SIGTERM, leave)
    try:
        report, status = Builder(folder, folder.parent / work["code"], work, uv, say).build(), 0
    except BuildError as exc:
        say(str(exc))
        report, status = {"error": {"kind": exc.kind, "message": str(exc)}}, EXIT.get(exc.kind, CONFIGURATION)
    part = folder / (REPORT + ".part")
    part.write_text(json.dumps(report), encoding="utf-8")
    part.replace(folder / REPORT)
    return status


if __name__ == "__main__":
    sys.exit(main())
