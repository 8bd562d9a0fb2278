"""Describe a checkpoint that was adopted from a program's own files, and put it back where the program looks for it.

    CHECKPOINT_DIR/
      step-0000000500/
        adopted/checkpoint-500/...   a copy of the folder (or of the single file) that the program wrote
        adopted.json                 {"path": "output/checkpoint-500"}, below the working directory
        checkpoint.json, COMPLETE    as `checkpoint_format` defines them

`sidecar.adopted` makes such checkpoints; `stage` calls `restore_adopted`. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path, PurePosixPath

from updraft_learner import contract
from updraft_learner.below import facts_below, folder_below, make_folder, write_text_below
from updraft_learner.pod import PodPaths
from updraft_learner.record.files import find_below, open_below
from updraft_learner.trees import Tree, TreeError, TreeFile, hash_opened, materialise, safe_path

ADOPTED_FILE = "adopted.json"
CONTENT = "adopted"
DESCRIPTION_BYTES = 64 << 10


def to_json(path: str) -> bytes:
    """Return the content of ADOPTED_FILE for what lies at `path` below the working directory."""
    return json.dumps({"path": path}).encode()


def path_in(text: bytes) -> str:
    """Return the path in an ADOPTED_FILE. Raises TreeError if it is unreadable or no path below a folder."""
    try:
        path = safe_path(str(json.loads(text)["path"]))
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise TreeError(f"{ADOPTED_FILE} is unreadable") from exc
    if not path.isprintable():
        raise TreeError(f"{ADOPTED_FILE} names a path that is not printable")
    return path


def restore_adopted(paths: PodPaths, checkpoint: str) -> None:
    """Copy what a restored checkpoint, at `checkpoint` below the pod's root, was adopted from to the place where the
    program wrote it, and name that place in RESUME_FROM_FILE. A checkpoint that was not adopted is left as it is.

    Raises TreeError if the checkpoint does not describe itself; OSError.
    """
    try:
        with open_below(paths.root, f"{checkpoint}/{ADOPTED_FILE}") as file:
            path = path_in(file.read(DESCRIPTION_BYTES))
    except FileNotFoundError:
        return
    parent = str(PurePosixPath(path).parent)
    source = f"{checkpoint}/{CONTENT}"
    tree = _tree(paths, source)
    target = make_folder(paths.root, paths.below(paths.code / parent))
    _remove(paths, target, PurePosixPath(path).name)
    materialise(tree, target, lambda file: open_below(paths.root, f"{source}/{file.path}"), anchor=paths.root)
    write_text_below(paths.root, paths.below(contract.RESUME_FROM_FILE), f"{path}\n")


def _remove(paths: PodPaths, folder: Path, name: str) -> None:
    """Remove what the code's tree has put where the checkpoint belongs."""
    facts = facts_below(paths.root, paths.below(folder / name))
    with folder_below(paths.root, paths.below(folder)) as opened:
        if facts is not None and stat.S_ISDIR(facts.st_mode):
            shutil.rmtree(name, dir_fd=opened)
        elif facts is not None:
            os.unlink(name, dir_fd=opened)


def _tree(paths: PodPaths, folder: str) -> Tree:
    files = []
    for name in sorted(find_below(paths.root, folder)[0]):
        with open_below(paths.root, f"{folder}/{name}") as file:
            digest, size = hash_opened(file)
        files.append(TreeFile(safe_path(name), digest, size))
    return Tree(tuple(files))
