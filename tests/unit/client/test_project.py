"""What `updraft init` finds in a folder of code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from updraft.client.project import Project, draft, look
from updraft.exceptions import DataError
from updraft.manifest import parse


def folder(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


SCRIPT = 'if __name__ == "__main__":\n    pass\n'


@pytest.mark.parametrize(
    ("files", "program", "framework"),
    [
        ({"train.py": "import torch.nn as nn", "main.py": ""}, "train.py", "pytorch"),
        ({"main.py": "from model import Net", "model.py": "from torch import nn"}, "main.py", "pytorch"),
        ({"fit.py": SCRIPT, "util.py": "import sklearn.svm"}, "fit.py", "sklearn"),
        ({"train.py": "import torch\nfrom transformers import Trainer"}, "train.py", "huggingface"),
        ({"train.py": "import torch\nimport pytorch_lightning as pl"}, "train.py", "lightning"),
        ({"train.py": "import jax.numpy as jnp, keras"}, "train.py", "keras"),
        ({"train.py": "import sklearn, xgboost"}, "train.py", "xgboost"),
        ({"train.py": "import numpy"}, "train.py", "sklearn"),
        ({"train.py": "def broken(:"}, "train.py", "sklearn"),
        ({"run.sh": "echo hello"}, "run.sh", "shell"),
        ({"run.sh": "python src/fit.py", "src/fit.py": "import torch"}, "run.sh", "pytorch"),
        ({"train.py": "from .torch import x"}, "train.py", "sklearn"),  # a module of the folder itself
    ],
)
def test_the_program_and_its_framework_are_found(
    files: dict[str, str], program: str, framework: str, tmp_path: Path
) -> None:
    found = look(folder(tmp_path, files))
    assert (found.program, found.framework) == (program, framework)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"a.py": SCRIPT, "b.py": SCRIPT}, "several files may be it: a.py, b.py; name the program with --program"),
        ({"lib.py": "x = 1"}, "no file looks like one; name the program with --program"),
    ],
)
def test_what_cannot_be_decided_says_what_to_give(files: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        look(folder(tmp_path, files))


def test_what_is_given_is_not_looked_for(tmp_path: Path) -> None:
    found = look(
        folder(tmp_path, {"a.py": SCRIPT, "src/b c.py": "import jax"}), program="src/b c.py", framework="sklearn"
    )
    assert (found.command, found.framework) == ("python 'src/b c.py'", "sklearn")
    with pytest.raises(DataError, match=r"program: c\.py is no file"):
        look(tmp_path, program="c.py")
    with pytest.raises(DataError, match="is no folder"):
        look(tmp_path / "missing")


def test_a_model_that_the_program_saves_is_exported(tmp_path: Path) -> None:
    text = "from updraft_learner import save_model\nimport torch\nsave_model(None, None)\n"
    fields = draft(look(folder(tmp_path, {"train.py": text})), "digits")
    assert fields["export"] == {"formats": ["onnx", "torch"], "register_as": "digits"}
    assert "export" not in draft(look(folder(tmp_path, {"train.py": "import torch"})))


PROJECT = '[project]\nname = "x"\nversion = "1"\ndependencies = ["rich"]\n'


@pytest.mark.parametrize(
    ("files", "requirements"),
    [
        ({"requirements.txt": "rich\n"}, "requirements.txt"),
        ({"requirements.txt": "rich\n", "pyproject.toml": PROJECT, "uv.lock": ""}, "requirements.txt"),
        ({"pyproject.toml": PROJECT, "uv.lock": "version = 1\n"}, "uv.lock"),
        ({"pyproject.toml": PROJECT}, "pyproject.toml"),
        ({"pyproject.toml": "[tool.ruff]\nline-length = 100\n", "uv.lock": ""}, None),
        ({"pyproject.toml": "broken ["}, None),
        ({}, None),
    ],
)
def test_the_file_of_packages_is_found(files: dict[str, str], requirements: str | None, tmp_path: Path) -> None:
    fields = draft(look(folder(tmp_path, {"train.py": "import torch", **files})))
    assert fields.get("environment") == (requirements and {"requirements": requirements})


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ('TrainingArguments("out/", max_steps=3)', "out/checkpoint-*"),
        ('transformers.Seq2SeqTrainingArguments(output_dir="runs/a")', "runs/a/checkpoint-*"),
        ("TrainingArguments(output_dir=args.out)", None),
        ("Arguments('out')", None),
    ],
)
def test_checkpoints_of_a_trainer_are_found(arguments: str, pattern: str | None, tmp_path: Path) -> None:
    text = f"import transformers\nfrom transformers import TrainingArguments\narguments = {arguments}\n"
    fields = draft(look(folder(tmp_path, {"train.py": text})), "tuned")
    assert fields.get("checkpoints") == (pattern and {"from": pattern})
    parse(fields, tmp_path)
    adapted = text + "import updraft_learner\n"
    assert "checkpoints" not in draft(look(folder(tmp_path, {"train.py": adapted})), "tuned")


@pytest.mark.parametrize("name", ["My Project", "2024_run", "x" * 80, "模型"])
def test_the_manifest_of_any_folder_name_is_valid(name: str, tmp_path: Path) -> None:
    code = folder(tmp_path / name, {"train.py": ""})
    parse(draft(Project(code, "train.py", "pytorch", frozenset(), saves_model=True)), code)
