"""The warning about code that saves no model looks at what is uploaded, and at calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from updraft.client.code_scan import FILE_BYTES, export_warning
from updraft.manifest import parse

MANIFEST = parse(
    {
        "name": "digits",
        "framework": {"name": "pytorch"},
        "command": "python train.py",
        "export": {"formats": ["onnx"], "register_as": "digits"},
    }
)


def warned(folder: Path, files: dict[str, str | bytes]) -> bool:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return export_warning(MANIFEST, folder) is not None


@pytest.mark.parametrize(
    "content",
    [
        "from updraft_learner import save_model\nsave_model(model, x)\n",
        "import updraft_learner as u\nif done:\n    u.save_model(model, x)\n",
        "from updraft_learner import save_model as keep\nkeep(model, x)\n",
        "mlflow.sklearn.save_model(model, path)\n",
        "def f(:\n    save_model\n",  # no Python: nobody can say
        b"save_model\0",
        "#" * (FILE_BYTES + 1),
    ],
)
def test_a_call_is_found(tmp_path: Path, content: str | bytes) -> None:
    assert not warned(tmp_path, {"pkg/train.py": content})


@pytest.mark.parametrize(
    "content",
    [
        "# TODO: save_model(model, x)\n",
        'print("no save_model here")\n',
        "from updraft_learner import save_model\n",
        "def save_model(model): ...\n",
        "def f(:\n",  # no Python, and no word of it either
        "",
    ],
)
def test_what_only_speaks_of_it_is_no_call(tmp_path: Path, content: str) -> None:
    assert warned(tmp_path, {"train.py": content})


def test_what_is_not_uploaded_does_not_count(tmp_path: Path) -> None:
    call = "save_model(model, x)\n"
    files = {".venv/lib/updraft_learner/model.py": call, "old/train.py": call, ".updraftignore": "old/\n"}
    assert warned(tmp_path, {**files, "train.py": "train()\n"})
    assert not warned(tmp_path, {".updraftignore": "!old/\n"})


def test_other_texts_are_searched_for_the_word(tmp_path: Path) -> None:
    assert warned(tmp_path, {"model.bin": "save_model", "README.md": "save_model"})
    assert not warned(tmp_path, {"train.ipynb": '{"source": ["save_model(model, x)"]}'})


def test_a_folder_that_cannot_be_uploaded_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "outside").symlink_to("/etc")
    assert export_warning(MANIFEST, tmp_path / "code") is None
