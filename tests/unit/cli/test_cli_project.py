"""`updraft init` writes a manifest that `validate` accepts, and replaces none."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from unit.cli.cli_fakes import Run


def test_init_writes_a_valid_manifest(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    ran = run("init", str(tmp_path), "--name", "mine")
    path = tmp_path / "manifest.yaml"
    assert (ran.code, ran.err) == (0, "")
    assert f"next: updraft submit {path.parent} --follow" in ran.out
    assert yaml.safe_load(path.read_text())["command"] == "python train.py"
    assert run("validate", str(path), "--offline").code == 0


def test_init_replaces_a_manifest_only_when_told_to(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    path = tmp_path / "manifest.yaml"
    path.write_text("name: kept\n")
    ran = run("init", str(tmp_path))
    assert (ran.code, path.read_text()) == (3, "name: kept\n")
    assert "replace it with --force" in ran.err
    assert json.loads(run("init", str(tmp_path), "--force", "--json").out)["manifest"] == str(path)


def test_a_wrong_name_writes_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ran = run("init", str(tmp_path), "--name", "Not Valid")
    assert (ran.code, (tmp_path / "manifest.yaml").exists()) == (2, False)
    assert "'Not Valid' is not a valid name" in ran.err


def test_run_needs_local_and_reports_how_the_program_ended(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    run("init", str(tmp_path), "--framework", "shell")
    path, folder = str(tmp_path / "manifest.yaml"), str(tmp_path / "updraft-run")
    assert (run("run", path).code, "give --local" in run("run", path).err) == (2, True)
    assert run("run", path, "--local", "--folder", folder).code == 0
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    ran = run("run", path, "--local", "--folder", folder)
    assert (ran.code, "the program ended with exit code 3" in ran.out) == (1, True)


def test_a_folder_stands_for_its_manifest(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    missing = run("validate", "--offline", str(tmp_path))
    assert (missing.code, f"`updraft init {tmp_path}` writes one" in " ".join(missing.err.split())) == (2, True)
    run("init", str(tmp_path))
    assert run("validate", "--offline", str(tmp_path)).out == f"{tmp_path / 'manifest.yaml'}: valid\n"
