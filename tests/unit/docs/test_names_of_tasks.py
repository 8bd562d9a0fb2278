"""Names of tasks and DAGs are written once, in `lifecycle/workflow.py`."""

from __future__ import annotations

import ast
from pathlib import Path

import updraft
from updraft.lifecycle import workflow

REPOSITORY = Path(__file__).parents[3]
FOLDERS = (Path(updraft.__file__).parent, REPOSITORY / "dags", REPOSITORY / "plugins")
DAGS = {workflow.TRAIN_DAG, workflow.HALT_DAG, workflow.RESUME_DAG, workflow.CANCEL_DAG}
# The others are words of the manifest and of commands too.
NAMES = DAGS | {task for task in workflow.TASKS if "_" in task}


def test_no_other_module_writes_one() -> None:
    found = [
        f"{path.name}:{node.lineno}: {node.value!r}"
        for folder in FOLDERS
        for path in sorted(folder.rglob("*.py"))
        if path != Path(workflow.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert found == []
