"""Read which process of a learner failed first from what the launcher printed (`updraft_learner.launcher`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FAILED = re.compile(r"updraft: launcher: (rank \d+ \(local rank \d+\)) failed first, with exit code (\d+)")


def who_failed(learner: int, code: int | None, tail: Sequence[str]) -> str:
    """Return the learner's name for a reason, with the rank of the process that its exit code is from.

    The program can print such a line too, so the line counts only if it names the learner's own exit code.
    """
    found = [match for line in tail if (match := _FAILED.match(line)) and int(match[2]) == code]
    return f"learner {learner}, {found[-1][1]}" if found else f"learner {learner}"
