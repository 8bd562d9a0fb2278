"""`python -I -m updraft_data`: process what `updraft_learner.prepare.copying` laid out, and write a report.

It exits with a code of `contract.ExitCode`; the report tells the platform the same reason.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from updraft_data.work import do
from updraft_learner.contract import PREPARE_REPORT_FILE, ExitCode
from updraft_learner.pod import PodPaths, read_paths
from updraft_learner.prepare.documents import PrepareWork
from updraft_learner.prepare.errors import SourceError


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Run the program; return the exit code."""
    paths = read_paths(environment)
    try:
        report = {**_done(paths, environment), "done": True}
    except SourceError as exc:
        _write(paths, {"error": exc.to_json()})
        _say(str(exc))
        return int(exc.code)
    _write(paths, report)
    return int(ExitCode.DONE)


def _done(paths: PodPaths, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the work's report. Raises SourceError, also for unforeseen errors: the bytes are a tenant's."""
    try:
        work = PrepareWork.from_json(paths.work_file.read_bytes())
        for line in work.said:
            _say(line)
        return do(work, paths, environment, _say)
    except SourceError:
        raise
    except Exception as exc:  # outermost line of the process
        traceback.print_exc()
        reason = f"{type(exc).__name__} ({exc.strerror})" if isinstance(exc, OSError) else type(exc).__name__
        raise SourceError("data", f"code and data could not be prepared: {reason}") from exc


def _say(line: str) -> None:
    print(line, flush=True)


def _write(paths: PodPaths, report: Mapping[str, Any]) -> None:
    target = paths.at(PREPARE_REPORT_FILE)
    part = Path(f"{target}.part")
    part.write_text(json.dumps(report), encoding="utf-8")
    part.replace(target)


if __name__ == "__main__":
    sys.exit(main())
