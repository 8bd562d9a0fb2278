"""A function's docstring says first what the function does: `Return the jobs`, not `The jobs`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
PACKAGES = (
    "operators/updraft",
    "images/learner/updraft_learner",
    "images/data/updraft_data",
    "images/localnode/updraft_localnode",
    "bench",
    "scripts",
)
NO_VERB = re.compile(
    "The|An?|One|What|Whether|Who|Whose|Which|How|Why|Where|When|Of|As|For|From|Those|These|That|This|Its?|All|Every|Each"
    "|In|On|At|By|With|Without|Not|None|Only|Same|Also|Once|Idempotent|Called|Twice|Harmless|Oldest|Newest|Lowest|Last"
    "|First|Two|No|If|While|Until|Before|After|To|[A-Z][a-z]*[a-rt-z]s"
)


def is_verb(word: str) -> bool:
    """Whether the word may be an imperative: no article, pronoun, plural or third person."""
    return word[0].isupper() and not NO_VERB.fullmatch(word)


def first_words(package: str) -> Iterator[tuple[str, str]]:
    """Yield (`file: function`, first word) of each function that has a docstring."""
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        if "migrations" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                yield f"{path.relative_to(REPOSITORY)}: {node.name}", text.split()[0].rstrip(",.:;")


def test_words_that_are_no_imperatives() -> None:
    assert [is_verb(word) for word in ("Return", "Pass", "Process")] == [True] * 3
    assert [is_verb(word) for word in ("The", "Returns", "Names", "`text`")] == [False] * 4


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    found = [word for package in PACKAGES for word in first_words(package)]
    assert len(found) > 1900
    assert [f"{where}: {word}" for where, word in found if not is_verb(word)] == []
