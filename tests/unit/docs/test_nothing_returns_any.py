"""No function of the platform returns `Any`: what it gives is typed, or `object`, which callers have to look at."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "operators" / "updraft"
MAY = {
    "__init__.py: __getattr__",  # the names of a module, each with a type of its own
    "airflow_seams/sqlite_sessions.py: execute",  # as SQLAlchemy declares it
    "client/default.py: call",  # one of the client's methods, with that method's signature
}


def test_functions_do_not_return_any() -> None:
    found, functions = set(), 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
                functions += 1
                if ast.unparse(node.returns) in ("Any", "Any | None"):
                    found.add(f"{path.relative_to(PACKAGE)}: {node.name}")
    assert functions > 1500
    assert found == MAY
