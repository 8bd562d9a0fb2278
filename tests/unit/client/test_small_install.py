"""`pip install updraft` is the client alone: what it needs, what it loads, and what it says without the platform."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

# A Python in which only the client's dependencies, and what these depend on, can be imported.
CLIENT_ONLY = """
import importlib.metadata as metadata, re, sys
from importlib.abc import MetaPathFinder

def closure(names):
    found, left = set(), list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            try:
                requires = metadata.requires(name) or []
            except metadata.PackageNotFoundError:
                continue
            left += [re.match(r"[\\w.-]+", r)[0] for r in requires if "extra ==" not in r]
    return found

allowed = closure(DEPENDENCIES) | {"updraft"}
owners = metadata.packages_distributions()

class Others(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        names = {owner.lower().replace("_", "-") for owner in owners.get(name.partition(".")[0], ())}
        if names and not names & allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Others())
import importlib.util as util
real = util.find_spec
util.find_spec = lambda name, package=None: None if name == "airflow" else real(name, package)
"""


def names(requirements: list[str]) -> list[str]:
    found = [re.match(r"[\w.-]+", requirement) for requirement in requirements]
    return [match[0] for match in found if match]


def client_python(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    prelude = CLIENT_ONLY.replace("DEPENDENCIES", repr(names(PROJECT["dependencies"])))
    return subprocess.run(
        [sys.executable, "-c", prelude + program, *arguments],
        cwd=folder,
        env={
            "PYTHONPATH": ":".join(sys.path),
            "HOME": str(folder),
            "UPDRAFT_HOME": str(folder / "none"),
            "PATH": "/usr/bin:/bin",
            "UPDRAFT_PROGRAM": "updraft",
            "NO_COLOR": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def updraft(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return client_python("from updraft.cli import main; main()", *arguments, folder=folder)


def test_the_platform_is_an_extra() -> None:
    platform = names(PROJECT["optional-dependencies"]["platform"])
    assert {"apache-airflow", "sqlalchemy", "boto3", "updraft-localnode"} <= set(platform)
    assert set(platform).isdisjoint(names(PROJECT["dependencies"]))


def test_other_packages_are_really_out_of_reach(tmp_path: Path) -> None:
    ran = client_python("import sqlalchemy", folder=tmp_path)
    assert "No module named 'sqlalchemy'" in ran.stderr


def test_each_module_of_the_client_loads_with_its_dependencies_alone(tmp_path: Path) -> None:
    program = """
import importlib, pkgutil
import updraft.cli, updraft.client, updraft.manifest
for package in (updraft.cli, updraft.client, updraft.manifest):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
import updraft.stack.display  # what `updraft open` prints
"""
    ran = client_python(program, folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("command", ["up", "down", "status", "doctor", "clean", "images list", "images build"])
def test_commands_for_this_machines_platform_say_how_to_get_one(command: str, tmp_path: Path) -> None:
    ran = updraft(*command.split(), folder=tmp_path)
    assert ran.returncode == 3
    assert "only the client is installed here" in ran.stderr
    assert "`updraft login URL`" in ran.stderr


def test_a_folder_becomes_a_checked_manifest(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import torch\n")
    assert updraft("init", "code", folder=tmp_path).returncode == 0
    (tmp_path / "code" / "manifest.yaml").open("a").write('schedule: {cron: "0 3 * * *"}\n')
    ran = updraft("validate", "--offline", "code", folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "code/manifest.yaml: valid\n")


def test_without_a_log_in_a_command_names_both_ways_to_a_platform(tmp_path: Path) -> None:
    ran = updraft("list", folder=tmp_path)
    assert ran.returncode == 4
    assert "`updraft login URL`" in ran.stderr
    assert "`updraft up`" in ran.stderr
