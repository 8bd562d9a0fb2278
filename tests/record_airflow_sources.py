"""Records the source of each place in Airflow that a seam relies on, so that a test tells when one has changed.

    .venv/bin/python tests/record_airflow_sources.py

What is recorded is a hash of the source without docstrings, comments and blank lines. Run it after the seam was
looked at, never to make the test pass.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from updraft.airflow_seams.registry import SEAMS, SourcePlace
from updraft.airflow_seams.switch import airflow_version

FILE = Path(__file__).parent / "unit" / "airflow_seams" / "recorded_sources.json"
COMMAND = ".venv/bin/python tests/record_airflow_sources.py"
_LENGTH = 16


def resolve(target: str) -> Any:
    """Return the object that `module:attribute.attribute` names. Raises ImportError or AttributeError."""
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        if not hasattr(found, name) and hasattr(found, "__path__"):  # a module that nothing has imported yet
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


def source_of(place: SourcePlace) -> str:
    """Return the source that is compared: of a function or a class, or each use of a name in a module."""
    found = resolve(place.target)
    if place.uses_of is not None:
        return "\n".join(uses(inspect.getsource(found), place.uses_of))
    return code_lines(textwrap.dedent(inspect.getsource(inspect.unwrap(found))))


def code_lines(source: str) -> str:
    """Return the source without docstrings, lines of comment and blank lines: the same for every version of Python."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            left_out.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = (line.rstrip() for number, line in enumerate(source.splitlines(), 1) if number not in left_out)
    return "\n".join(line for line in lines if line and not re.match(r"\s*#", line))


def uses(source: str, name: str) -> list[str]:
    """Return how the code of a module uses a global name, as `function: expression`, in the order of the source."""
    found: list[str] = []

    def look(node: ast.AST, where: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id == name:
                found.append(f"{where}: {name}.{child.attr}")
            elif isinstance(child, ast.Name) and child.id == name:
                found.append(f"{where}: {name}")
            elif isinstance(child, ast.AnnAssign):  # an annotation does not run
                look(child.value or ast.Pass(), where)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                look(child, child.name if inside else where)  # type: ignore[attr-defined]

    look(ast.parse(source), "module")
    return found


def digest(place: SourcePlace) -> str:
    return hashlib.sha256(source_of(place).encode()).hexdigest()[:_LENGTH]


def places() -> dict[str, SourcePlace]:
    return {place.key: place for seam in SEAMS.values() for place in seam.relies_on}


def main() -> None:
    sources = {key: digest(place) for key, place in sorted(places().items())}
    FILE.write_text(json.dumps({"airflow": airflow_version(), "sources": sources}, indent=2) + "\n")
    print(f"{FILE.name}: {len(sources)} places of Airflow {airflow_version()}")


if __name__ == "__main__":
    main()
