"""The local node answers as a real API server did, but for what `recorded/differences.toml` lists with a reason."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance_answers import QUESTIONS, server_of

RECORDED = Path(__file__).parent / "recorded"
REAL = json.loads((RECORDED / "answers.json").read_text())
DIFFERENCES = tomllib.loads((RECORDED / "differences.toml").read_text())


def differences(real: Any, here: Any, path: str) -> Iterator[str]:
    """`+ path` is only here, `- path` only on the real one, `path: real -> here` has another value."""
    if isinstance(real, dict) and isinstance(here, dict):
        for key in sorted(real.keys() | here.keys()):
            below = f"{path}.{key}" if path else key
            if key == "fields":
                yield from (f"- {path} {name}" for name in sorted(set(real[key]) - set(here[key])))
                yield from (f"+ {path} {name}" for name in sorted(set(here[key]) - set(real[key])))
            elif key not in here:
                yield f"- {below}"
            elif key not in real:
                yield f"+ {below}"
            else:
                yield from differences(real[key], here[key], below)
    elif real != here:
        yield f"{path}: {json.dumps(real)} -> {json.dumps(here)}"


def matches(difference: str, pattern: str) -> bool:
    """`*` stands for anything, all else for itself."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), difference, re.DOTALL) is not None


def test_answers_are_those_of_a_real_api_server(known_cluster: Any) -> None:
    server = server_of(known_cluster.api_client, known_cluster.namespace, known_cluster.image)
    found: list[str] = []
    for question in QUESTIONS:
        found += differences(REAL["answers"][question.__name__], question(server), question.__name__)
    patterns = [entry["is"] for entry in DIFFERENCES["difference"] if known_cluster.node is not None]
    assert [line for line in found if not any(matches(line, pattern) for pattern in patterns)] == []
    mended = [pattern for pattern in patterns if not any(matches(line, pattern) for line in found)]
    assert mended == [], "these differences are no more: take them out of differences.toml"


def test_each_question_was_asked_and_each_difference_has_a_reason() -> None:
    assert set(REAL["answers"]) == {question.__name__ for question in QUESTIONS}
    assert REAL["kubernetes"].startswith("v1.")
    assert all(entry["because"] for entry in DIFFERENCES["difference"])
