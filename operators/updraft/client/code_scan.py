"""What a code folder is likely to have forgotten, told before anything is queued.

A warning, never a refusal: a call may stand in a package that the image has. Called when a manifest is read on the
machine where its code lies.
"""

from __future__ import annotations

from pathlib import Path

from updraft.manifest import Manifest

SUFFIXES = {".py", ".sh", ".ipynb", ".zip"}
FILES = 2_000
FILE_BYTES = 1 << 20


def export_warning(manifest: Manifest, code: Path) -> str | None:
    """Name the call that `export` needs and that no file below `code` has; None where it has one, or nobody can say."""
    if manifest.export is None or manifest.export.trust_code or not code.is_dir():
        return None
    for number, path in enumerate(code.rglob("*")):
        if number >= FILES:
            return None  # a large repository: no statement rather than a slow one
        if path.suffix == ".zip" or _has(path, b"save_model"):
            return None
    return (
        f"export: no file below {code} calls save_model, and without it export_model fails after the training; let the "
        "program call updraft_learner.save_model(model, example_input) when it is trained"
    )


def _has(path: Path, word: bytes) -> bool:
    try:
        if path.suffix not in SUFFIXES or not path.is_file() or path.stat().st_size > FILE_BYTES:
            return False
        return word in path.read_bytes()
    except OSError:
        return False
