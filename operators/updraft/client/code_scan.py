"""Warn about calls that a code folder seems to lack, before anything is queued.

This is only a warning: a package in the image may make the call. It is used when a manifest is read on the machine that
has the code.
"""

from __future__ import annotations

import ast
from pathlib import Path

from updraft.manifest import Manifest
from updraft_learner import trees

CALL = "save_model"
TEXTS = {"", ".sh", ".bash", ".ipynb", ".yaml", ".yml", ".toml", ".json"}  # may contain a program or start one
FILES = 2_000
FILE_BYTES = 1 << 20


def export_warning(manifest: Manifest, code: Path) -> str | None:
    """Return a warning if `export` needs a call that no uploaded file of `code` has; None if one has it, or if this
    cannot be decided."""
    if manifest.export is None or manifest.export.trust_code or not code.is_dir():
        return None
    try:
        for number, (_, path) in enumerate(trees.files_in(code)):
            if number >= FILES:
                return None  # a large repository: rather no warning than a slow one
            if path.suffix == ".zip" or has_call(path):
                return None
    except (OSError, trees.TreeError):  # the upload will report the error
        return None
    return (
        f"export: no file below {code} calls save_model, and without it export_model fails after the training; let the "
        "program call updraft_learner.save_model(model, example_input) when it is trained"
    )


def has_call(path: Path) -> bool:
    """Return whether a Python file calls a function of that name, or another text has the word. A Python file that
    cannot be parsed counts as one that may."""
    if path.suffix != ".py" and path.suffix not in TEXTS:
        return False
    if path.stat().st_size > FILE_BYTES:
        return path.suffix == ".py"
    content = path.read_bytes()
    if CALL.encode() not in content:
        return False
    return path.suffix != ".py" or _calls(content)


def _calls(source: bytes) -> bool:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    imported = (alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)
    names = {CALL, *(alias.asname for alias in imported if alias.name == CALL and alias.asname)}
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    return any(
        (isinstance(func, ast.Name) and func.id in names) or (isinstance(func, ast.Attribute) and func.attr == CALL)
        for func in called
    )
