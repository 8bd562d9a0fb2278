"""The list of seams and internals is complete, and true of the Airflow that is installed."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from record_airflow_sources import COMMAND, FILE, code_lines, digest, places, resolve, uses
from sqlalchemy import create_engine, text

import updraft
from updraft.airflow_seams.registry import INTERNALS, SEAMS, TRIED, Internal, Seam, SourcePlace
from updraft.airflow_seams.scheduler_sleep import CONCERNS
from updraft.airflow_seams.switch import airflow_version
from updraft.stack.not_starting import COUNTS, HEARTBEAT

PACKAGE = Path(updraft.__file__).parent
DESIGN = PACKAGE.parents[1] / "docs" / "design" / "0011-airflow-seams.md"
RECORDED = json.loads(FILE.read_text())
# What Airflow documents for DAG authors, providers, executors and timetables.
PUBLIC = (
    "airflow.configuration",
    "airflow.dag_processing.bundles.local",
    "airflow.executors.base_executor",
    "airflow.executors.local_executor",
    "airflow.plugins_manager",
    "airflow.providers.",
    "airflow.sdk",
    "airflow.timetables.",
    "airflow.triggers.base",
    "airflow.utils.types",
)
FOREIGN = ("airflow", "kubernetes", "kubernetes_asyncio")
PUBLIC_UNDERSCORES = {"_mapping", "_replace"}  # of SQLAlchemy's rows and named tuples, which document them


def trees() -> Iterator[tuple[str, ast.Module]]:
    """The package's files below `updraft/`, parsed."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def all_places() -> list[tuple[Seam, SourcePlace]]:
    return [(seam, place) for seam in SEAMS.values() for place in seam.relies_on]


def problem(seam: Seam, place: SourcePlace, recorded: str | None) -> str | None:
    """What to do about a place that is not as it was recorded; None if it is."""
    if digest(place) == recorded:
        return None
    return (
        f"{place.key} of Airflow {airflow_version()} is not the source that the seam {seam.name} was written for "
        f"(recorded: Airflow {RECORDED['airflow']}). The seam relies on this: {place.reason}. Read the new source, "
        f"mend operators/updraft/airflow_seams/{seam.name}.py if that is no longer so, then record it: {COMMAND}"
    )


@pytest.mark.parametrize(("seam", "place"), all_places(), ids=lambda each: getattr(each, "key", None) or each.name)
def test_the_places_in_airflow_that_a_seam_relies_on_have_not_changed(seam: Seam, place: SourcePlace) -> None:
    found = problem(seam, place, RECORDED["sources"].get(place.key))
    assert found is None, found


def test_a_changed_place_is_told_with_its_seam_and_the_command() -> None:
    seam = SEAMS["trigger_events"]
    told = problem(seam, seam.relies_on[0], "0123456789abcdef")
    assert told is not None
    for part in ("TriggerRunner.arun", seam.relies_on[0].reason, "airflow_seams/trigger_events.py", COMMAND):
        assert part in told


def test_nothing_is_recorded_that_no_seam_relies_on() -> None:
    assert set(RECORDED["sources"]) == set(places())


def test_the_installed_airflow_is_one_that_every_seam_was_tried_with() -> None:
    """After an upgrade: run the system tests and benchmarks with the seams, then add the version to TRIED."""
    for seam in SEAMS.values():
        assert airflow_version() in seam.versions, f"registry.py: {seam.name} is left out on {airflow_version()}"
    assert RECORDED["airflow"] in TRIED


def test_each_seam_is_a_module_and_stands_in_the_design_note() -> None:
    modules = {path.stem for path in (PACKAGE / "airflow_seams").glob("*.py")}
    assert modules - {"__init__", "registry", "switch"} == set(SEAMS)
    rows = [line.split("`")[1] for line in DESIGN.read_text().splitlines() if line.startswith("| `")]
    assert rows == list(SEAMS)


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.target)
def test_internals_exist_and_are_used(internal: Internal) -> None:
    resolve(internal.target)
    name = internal.target.replace(":", ".").rpartition(".")[2]
    for file in internal.used_in:
        assert name in (PACKAGE / file).read_text(), f"{file} no longer uses {internal.target}"


def test_private_names_of_others_are_listed() -> None:
    """A private name that no file of ours defines is somebody else's."""
    own: set[str] = set()
    used: dict[str, set[str]] = {}
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                used.setdefault(node.attr, set()).add(file)
    listed = {
        internal.target.rpartition(".")[2]: set(internal.used_in)
        for internal in reversed(INTERNALS)
        if ":" in internal.target
    }
    foreign = {name: files for name, files in used.items() if name not in own | PUBLIC_UNDERSCORES}
    assert foreign.keys() <= listed.keys(), "list it in updraft/airflow_seams/registry.py, or use what is public"
    assert {name: files for name, files in foreign.items() if not files <= listed[name]} == {}


def test_names_of_airflow_that_are_not_public_are_listed() -> None:
    listed = {(i.target, file) for i in INTERNALS for file in i.used_in}
    heads = {(target.partition(":")[0] + ":" + target.partition(":")[2].split(".")[0], file) for target, file in listed}
    found = set()
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "airflow":
                module = str(node.module)
                private = "._" in module or module.startswith("airflow.sdk.execution_time")
                if private or not f"{module}.".startswith(PUBLIC):
                    found |= {(f"{module}:{alias.name}", file) for alias in node.names}
    assert found - heads == set(), "list it in updraft/airflow_seams/registry.py, or use what is public"


def test_no_other_package_assigns_to_a_name_of_airflow_or_kubernetes() -> None:
    found = []
    for file, tree in trees():
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        foreign = {
            alias.asname or alias.name.partition(".")[0]
            for node in imported
            for alias in node.names
            if (getattr(node, "module", None) or alias.name).partition(".")[0] in FOREIGN
        }
        stores = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
        found += [
            f"{file}: {ast.unparse(n)}" for n in stores if isinstance(n.value, ast.Name) and n.value.id in foreign
        ]
    assert [each for each in found if not each.startswith("airflow_seams/")] == []


@pytest.mark.parametrize("statement", [CONCERNS, COUNTS, HEARTBEAT])
def test_airflows_own_tables_have_the_columns_that_we_read(statement: str) -> None:
    engine = create_engine("sqlite://")
    import_all_models()  # tables name each other, whichever tests were run before
    Base.metadata.create_all(engine)
    with engine.connect() as connection:
        connection.execute(text(statement)).all()
    engine.dispose()


def test_comments_and_docstrings_are_no_change() -> None:
    before = 'def f():\n    """Says one thing."""\n    # a comment\n\n    return 1\n'
    after = 'def f():\n    """Says\n    another."""\n    return 1\n'
    assert code_lines(before) == code_lines(after)
    assert code_lines(before) != code_lines(after.replace("return 1", "return 2"))


def test_uses_of_a_name_tell_where_and_what() -> None:
    source = "import time\nlimit: time.Unit | None = None\ndef f():\n    time.sleep(1)\n    g(time)\n"
    assert uses(source, "time") == ["f: time.sleep", "f: time"]


def test_a_second_use_of_a_replaced_name_is_a_change() -> None:
    place = next(place for place in SEAMS["scheduler_sleep"].relies_on if place.uses_of)
    assert digest(place) != digest(replace(place, uses_of="itertools"))
