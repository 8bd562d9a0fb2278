"""What the package tells an Airflow that installs it: provider, plugin once, and where its DAGs are."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from updraft.bundle import dags_folder
from updraft.exceptions import UpdraftError
from updraft.provider import get_provider_info

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "operators" / "updraft"


def classes_below(folder: str, base: str) -> set[str]:
    """Modules of a folder with a class that is, by its own word, one of these."""
    found = set()
    for path in (PACKAGE / folder).glob("*.py"):
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        if any(ast.unparse(name).endswith(base) for node in classes for name in node.bases):
            found.add(f"updraft.{folder}.{path.stem}")
    return found


def test_the_provider_lists_every_operator_and_trigger() -> None:
    info = get_provider_info()
    (operators,), (triggers,) = info["operators"], info["triggers"]
    assert set(operators["python-modules"]) == classes_below("operators", "Operator")
    assert set(triggers["python-modules"]) == classes_below("triggers", "Trigger")


def test_airflow_takes_what_the_provider_tells_and_the_name_is_the_packages() -> None:
    import airflow
    import jsonschema

    schema = (Path(airflow.__path__[0]) / "provider_info.schema.json").read_text()
    jsonschema.validate(get_provider_info(), json.loads(schema))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["name"] == get_provider_info()["package-name"]
    for group, name in (("apache_airflow_provider", "provider_info"), ("airflow.plugins", "updraft")):
        module, _, attribute = project["entry-points"][group][name].partition(":")
        assert (PACKAGE.parent / f"{module.replace('.', '/')}.py").is_file()
        assert attribute


@pytest.mark.parametrize(("folder", "registered"), [("", True), ("import updraft_plugin;", False)])
def test_the_entry_point_gives_no_plugin_that_the_plugins_folder_has_given(folder: str, registered: bool) -> None:
    code = f"{folder} from updraft.api import plugin; print(plugin.by_entry_point is plugin.UpdraftPlugin)"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY / 'plugins')!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == str(registered)


def test_telling_about_the_provider_imports_nothing() -> None:
    code = "import sys, updraft.provider; print([m for m in sys.modules if m.split('.')[0] in ('airflow', 'pydantic')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_dags_are_found_in_a_package_and_in_a_checkout(tmp_path: Path) -> None:
    assert dags_folder() == REPOSITORY / "dags"
    package = tmp_path / "lib" / "updraft"
    with pytest.raises(UpdraftError, match="install the wheel"):
        dags_folder(package)
    (package / "dags").mkdir(parents=True)
    (package / "dags" / "default.py").touch()
    assert dags_folder(package) == package / "dags"
