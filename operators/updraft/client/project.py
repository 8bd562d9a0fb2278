"""Look at a folder of code and draft a manifest for it: which file is the program, what it imports, what it needs.

Files are parsed, never run. What cannot be decided is an error that says what to give.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from updraft.client.code_scan import FILE_BYTES, FILES, has_call
from updraft.exceptions import DataError
from updraft.manifest.values import slug
from updraft_learner import trees

USUAL_PROGRAMS = ("train.py", "main.py", "run.py", "train.sh", "run.sh")
# The first import that is found decides: libraries come before those that they build on. What an image lacks beside the
# framework comes from the requirements.
FRAMEWORKS: Mapping[str, str] = {
    "transformers": "huggingface",
    "accelerate": "huggingface",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "torch": "pytorch",
    "jax": "jax",
    "flax": "jax",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "sklearn": "sklearn",
}


@dataclass(frozen=True)
class Project:
    """What a folder of code is, as far as its files say.

    Attributes:
        program: The file that is started, relative to the folder.
        framework: Name of a framework of the platform.
        imports: Top-level names of the modules that its Python files import.
        saves_model: Whether a file calls `updraft_learner.save_model`, so that the model can be exported.
        requirements: The file in the folder that names the packages it needs, or None.
        own_checkpoints: Pattern of the folders in which Hugging Face's Trainer saves by itself, or None.
    """

    folder: Path
    program: str
    framework: str
    imports: frozenset[str]
    saves_model: bool
    requirements: str | None = None
    own_checkpoints: str | None = None

    @property
    def command(self) -> str:
        """Return the shell command that starts the program."""
        starter = "sh" if self.program.endswith(".sh") else "python"
        return f"{starter} {shlex.quote(self.program)}"


def look(folder: Path, *, program: str | None = None, framework: str | None = None) -> Project:
    """Return what the folder is. `program` and `framework` are taken as given instead of being looked for.

    Raises:
        DataError: the folder or the program is missing, or several files may be the program.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give the folder that holds the program")
    program = _find_program(folder) if program is None else _given_program(folder, program)
    files = _python_files(folder)
    modules = list(_parsed(files))
    imports = frozenset(name for module in modules for name in _imports(module))
    if framework is None:
        framework = "shell" if program.endswith(".sh") and not imports else _framework(imports)
    return Project(
        folder,
        program,
        framework,
        imports,
        any(map(has_call, files)),
        _requirements(folder),
        None if "updraft_learner" in imports else _trainer_checkpoints(modules),
    )


def draft(project: Project, name: str | None = None) -> dict[str, Any]:
    """Return the manifest's fields. The name is made from the folder's if none is given."""
    name = slug(project.folder.resolve().name) if name is None else name
    fields: dict[str, Any] = {
        "name": name,
        "framework": {"name": project.framework},
        "code": ".",
        "command": project.command,
        "resources": {"learners": 1, "cpus": 1, "memory": "2GiB"},
    }
    if project.requirements is not None and project.framework != "shell":
        fields["environment"] = {"requirements": project.requirements}
    if project.own_checkpoints is not None:
        fields["checkpoints"] = {"from": project.own_checkpoints}
    if project.saves_model:
        fields["export"] = {"formats": ["onnx", "torch"], "register_as": name}
    return fields


def _given_program(folder: Path, program: str) -> str:
    if not (folder / program).is_file():
        raise DataError(f"program: {program} is no file in {folder}; give its path relative to that folder")
    return Path(program).as_posix()


def _find_program(folder: Path) -> str:
    for name in USUAL_PROGRAMS:
        if (folder / name).is_file():
            return name
    scripts = sorted(path.name for path in folder.glob("*.py") if _is_script(path))
    if len(scripts) == 1:
        return scripts[0]
    found = f"several files may be it: {', '.join(scripts[:10])}" if scripts else "no file looks like one"
    raise DataError(f"{folder} has no {' or '.join(USUAL_PROGRAMS[:2])}, and {found}; name the program with --program")


def _is_script(path: Path) -> bool:
    """Return whether a Python file has a block for `__name__ == "__main__"`."""
    return bool(re.search(rb"""^if __name__ == ['"]__main__['"]""", path.read_bytes()[:FILE_BYTES], re.MULTILINE))


def _requirements(folder: Path) -> str | None:
    """Return the folder's file of packages: a lock file before what it was made from."""
    if (folder / "requirements.txt").is_file():
        return "requirements.txt"
    if not _names_packages(folder / "pyproject.toml"):
        return None
    return "uv.lock" if (folder / "uv.lock").is_file() else "pyproject.toml"


def _names_packages(path: Path) -> bool:
    """Return whether a pyproject.toml has dependencies; many hold nothing but the settings of tools."""
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and bool(project.get("dependencies"))


def _trainer_checkpoints(modules: list[ast.Module]) -> str | None:
    """Return the pattern of the checkpoints that Hugging Face's Trainer writes, if its output folder is a constant."""
    for node in (node for module in modules for node in ast.walk(module)):
        if isinstance(node, ast.Call) and _last_name(node.func).endswith("TrainingArguments"):
            named = [keyword.value for keyword in node.keywords if keyword.arg == "output_dir"]
            for value in [*named, *node.args[:1]]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                    return f"{value.value.rstrip('/')}/checkpoint-*"
    return None


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _python_files(folder: Path) -> list[Path]:
    """Return the folder's Python files that an upload would take, as far as they are read here."""
    files = islice((path for _, path in trees.files_in(folder)), FILES)
    return [path for path in files if path.suffix == ".py" and path.stat().st_size <= FILE_BYTES]


def _parsed(files: list[Path]) -> Iterator[ast.Module]:
    for path in files:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # the program's own run will report it
            yield ast.parse(path.read_bytes())


def _imports(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _framework(imports: frozenset[str]) -> str:
    for module, framework in FRAMEWORKS.items():
        if module in imports:
            return framework
    return "sklearn"  # the smallest image with Python, numpy and pandas
