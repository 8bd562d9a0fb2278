"""Every name that users import or call says what it means, and so does every field that they write."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from updraft.manifest import Manifest
from updraft.provider import get_provider_info
from updraft.settings import Settings

PROVIDED = {
    module
    for kind in ("operators", "triggers", "bundles")
    for integration in get_provider_info()[kind]
    for module in integration["python-modules"]
}
PUBLIC = [
    "updraft",
    "updraft.client",
    "updraft.exceptions",
    "updraft.manifest",
    "updraft.provider",
    "updraft.timetables",
    "updraft.schemas",
    "updraft.operators.links",
    "updraft.operators.wiring",
    "updraft_learner",
    *sorted(PROVIDED),
]
# Named alike everywhere: the job, the services, Airflow's arguments, and what is passed on to a documented function.
UNDERSTOOD = {"self", "cls", "context", "event", "job_id", "services", "args", "kwargs", "options"}


def undocumented(module_name: str) -> Iterator[str]:
    """Yield the public names of a module that have no docstring."""
    module = importlib.import_module(module_name)
    if not module.__doc__:
        yield module_name
    for name, value in _public(module):
        path = f"{module_name}.{name}"
        if inspect.isclass(value):
            if not _own_doc(value):
                yield path
            yield from (f"{path}.{method}" for method, function in _methods(value) if not _doc(value, method, function))
        elif not inspect.getdoc(value):
            yield path


def unexplained(module_name: str) -> Iterator[str]:
    """Yield the parameters of public functions, methods and constructors that their docstrings do not name."""
    for name, value in _public(importlib.import_module(module_name)):
        path = f"{module_name}.{name}"
        if not inspect.isclass(value):
            yield from _unnamed(path, value, inspect.getdoc(value))
            continue
        for method, function in _methods(value):
            if method in vars(value) and not _overrides_foreign(value, method):
                yield from _unnamed(f"{path}.{method}", function, function.__doc__)
        constructor = vars(value).get("__init__")
        if constructor is not None and not is_dataclass(value):  # whose fields are explained where they stand
            yield from _unnamed(path, constructor, value.__doc__)


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of `__all__`, or else what the module itself defines; classes and functions only."""
    names = getattr(module, "__all__", None)
    if names is None:
        own = vars(module).items()
        names = [name for name, value in own if getattr(value, "__module__", None) == module.__name__]
    for name in names:
        value = getattr(module, name)
        if not name.startswith("_") and callable(value):
            yield name, value


def _own_doc(kind: type) -> str | None:
    """Return the class's docstring; a dataclass's own is only its signature, and one that is inherited another's."""
    text = vars(kind).get("__doc__")
    return None if not text or text.startswith(f"{kind.__name__}(") else str(text)


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        function = function.fget if isinstance(function, property) else function
        if inspect.isfunction(function) and not name.startswith("_"):
            yield name, function


def _doc(kind: type, name: str, function: Callable[..., Any]) -> str | None:
    """Return a method's docstring. What overrides a method of a library does what the library says of it, but for
    `execute`, of which Airflow says nothing."""
    return function.__doc__ or (name if name != "execute" and _overrides_foreign(kind, name) else None)


def _overrides_foreign(kind: type, name: str) -> bool:
    bases = (base for base in kind.__mro__[1:] if not base.__module__.startswith("updraft"))
    return any(name in vars(base) for base in bases)


def _unnamed(path: str, function: Callable[..., Any], doc: str | None) -> Iterator[str]:
    for parameter in inspect.signature(function).parameters:
        if parameter not in UNDERSTOOD and not re.search(rf"\b{parameter}\b", doc or ""):
            yield f"{path}({parameter})"


def fields_without_description(model: type[BaseModel], seen: set[type[BaseModel]] | None = None) -> Iterator[str]:
    """Yield the fields of a model, and of the models in it, that have no description."""
    seen = set() if seen is None else seen
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        if not field.description:
            yield f"{model.__name__}.{name}"
        for inner in _models_in(field.annotation):
            yield from fields_without_description(inner, seen)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_in(inner)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    assert list(undocumented(module)) == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_parameter_is_named_in_its_docstring(module: str) -> None:
    assert list(unexplained(module)) == []


@pytest.mark.parametrize("model", [Manifest, Settings])
def test_every_field_that_users_write_has_a_description(model: type[BaseModel]) -> None:
    assert list(fields_without_description(model)) == []


def test_the_verbs_of_the_module_are_called_without_self() -> None:
    import updraft

    assert "self" not in inspect.signature(updraft.submit).parameters
    assert "manifest" in inspect.signature(updraft.submit).parameters
