"""Judge data in a process of its own, with limits of memory and time and without its parent's environment.

A small compressed file can ask for any amount of memory, and a regular expression for any amount of time. The caller
lays out the files. `python -I -m updraft_data.limited` reads a request from its standard input and answers with one
JSON document on its standard output.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from updraft_data.result import ValidationResult
from updraft_data.suite import expectations_of
from updraft_learner.prepare.errors import SourceError
from updraft_learner.trees import Tree, megabytes

SPARE_SECONDS = 60.0  # for the child's start and end, in addition to the time limit for judging
ENVIRONMENT = {
    "GX_ANALYTICS_ENABLED": "false",
    # Each thread would reserve memory of its own, which counts against the limit.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def validate_limited(
    folder: Path,
    tree: Tree,
    suite: Mapping[str, Any],
    *,
    format: str = "auto",
    memory_bytes: int,
    seconds: int,
) -> ValidationResult:
    """Judge the data of `tree`, of which `needed_paths` are laid out below `folder`, by `suite`.

    Args:
        memory_bytes: what the judging process may allocate.
        seconds: how long it may take, from its start on.

    Raises:
        SourceError: the suite or the data cannot be used as it is, or needs more memory or time than is allowed. Kind
            `unavailable` when the judging process was killed twice: that says nothing about the data.
    """
    expectations_of(suite)
    request = {
        "folder": str(folder.resolve()),
        "tree": tree.to_json().decode(),
        "suite": dict(suite),
        "format": format,
        "memory_bytes": memory_bytes,
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(prefix="updraft-validate-") as home:
        done = _ask(request, home, seconds)
        if done.returncode == -signal.SIGKILL:
            done = _ask(request, home, seconds)
    return _answer(done, memory_bytes, seconds)


def _ask(request: Mapping[str, Any], home: str, seconds: int) -> subprocess.CompletedProcess[bytes]:
    environment = {**ENVIRONMENT, "HOME": home, "TMPDIR": home, "PATH": os.defpath, "LANG": "C.UTF-8"}
    try:
        return subprocess.run(
            [sys.executable, "-I", "-m", __name__],
            input=json.dumps(request).encode(),
            capture_output=True,
            env=environment,
            cwd=home,
            timeout=seconds + SPARE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise _too_slow(seconds) from exc


def _answer(done: subprocess.CompletedProcess[bytes], memory_bytes: int, seconds: int) -> ValidationResult:
    if done.returncode == -signal.SIGALRM:
        raise _too_slow(seconds)
    try:
        answer = json.loads(done.stdout)
    except ValueError as exc:
        if done.returncode == -signal.SIGKILL:  # beyond its own memory limit, the process ends in other ways
            raise SourceError(
                "unavailable",
                "data.expectations: the process that judged the data was killed (SIGKILL) two times; its node may lack "
                "memory for all that runs on it",
            ) from exc
        if done.returncode < 0:  # C libraries abort where Python raises MemoryError
            raise _too_large(memory_bytes) from exc
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise SourceError("data", f"data.expectations: the data could not be judged: {said[0][:300]}") from exc
    if "memory" in answer:
        raise _too_large(memory_bytes)
    if "error" in answer:
        raise SourceError.from_json(answer["error"])
    return ValidationResult.from_json(answer["result"])


def _too_slow(seconds: int) -> SourceError:
    return SourceError(
        "limit",
        f"data.expectations: the data was not judged within {seconds} s (UPDRAFT_VALIDATION_SECONDS); judge a part of "
        "the data, or write simpler regular expressions",
    )


def _too_large(memory_bytes: int) -> SourceError:
    return SourceError(
        "limit",
        f"data.expectations: judging the data needs more than {megabytes(memory_bytes)} of memory "
        "(UPDRAFT_VALIDATION_MEMORY_BYTES); judge a part of the data",
    )


def main() -> int:
    """Judge what standard input asks for. Great Expectations writes to standard output, so the answer has its own."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    signal.alarm(request["seconds"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (request["memory_bytes"], request["memory_bytes"]))
    from updraft_data.run import validate

    try:
        tree = Tree.from_json(request["tree"])
        result = validate(Path(request["folder"]), tree, request["suite"], format=request["format"])
        answer: dict[str, Any] = {"result": result.to_json()}
    except MemoryError:
        answer = {"memory": True}
    except SourceError as exc:
        answer = {"error": exc.to_json()}
    with answers:
        json.dump(answer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
