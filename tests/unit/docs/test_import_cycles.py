"""No module imports another one that imports it, wherever in the module the import stands; types alone do not count."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGES = ("updraft", "updraft_data", "updraft_learner", "updraft_localnode")


def cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """One cycle of the graph, or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as exc:
        return list(exc.args[1])
    return []


def test_there_is_no_import_cycle() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    # `updraft` itself finds its verbs by name, in a function; nothing that it finds may import it.
    assert cycle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []


def test_a_cycle_through_a_function_would_be_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})[0] in "abc"
