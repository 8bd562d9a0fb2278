"""Train a script or a Python function: draft its manifest and submit it.

A function travels as its source text, so that it does not matter which Python and which packages run here. It must
therefore import what it uses in its own body.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import json
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from updraft.client.project import draft, look
from updraft.exceptions import DataError
from updraft.manifest.values import slug

if TYPE_CHECKING:
    from updraft.client.client import Client, Job

P = ParamSpec("P")
R = TypeVar("R")

FUNCTION_FILE = "train.py"
# Annotations are not evaluated, since their names may be imported in the body only.
FUNCTION_PROGRAM = """\
from __future__ import annotations

import json
import os


{source}

if __name__ == "__main__":
    with open(os.environ["UPDRAFT_PARAMS_FILE"], encoding="utf-8") as params_file:
        {name}(**json.load(params_file))
"""


def train(
    client: Client, program: str | Path | Callable[..., object], params: Mapping[str, Any], fields: Mapping[str, Any]
) -> Job:
    """See `Client.train`."""
    with _code_of(program, params) as script:
        known = look(script.parent, program=script.name, framework=_framework(fields))
        name = slug(program.__name__ if callable(program) else script.stem)
        manifest = {**draft(known, name), "code": str(script.parent), "params": dict(params), **fields}
        if "image" in fields:
            manifest.pop("framework")
        return client.submit(manifest, base=Path.cwd())


class Trainable(Generic[P, R]):
    """A function that trains here when it is called, and on the platform by `submit`. Made by `updraft.trainable`."""

    def __init__(self, function: Callable[P, R], fields: Mapping[str, Any], client: Callable[[], Client]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._fields = fields
        self._client = client

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def submit(self, **params: Any) -> Job:
        """Submit a job that calls the function with `params`, its keyword arguments; errors as of `Client.train`."""
        return train(self._client(), self._function, params, self._fields)


def program_of(function: Callable[..., object]) -> str:
    """Return the text of a program that calls the function with the job's params.

    Raises:
        DataError: the function is no plain function with a source file, or uses names that are defined outside of it.
    """
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise DataError(f"{function!r} cannot be sent: give a function that is written with def, or a script's path")
    name = function.__name__
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError as exc:
        raise DataError(f"{name}: its source text was not found ({exc}); give a script's path") from exc
    outside = {*_globals_of(function.__code__), *function.__code__.co_freevars} - {*dir(builtins), name}
    if outside:
        raise DataError(
            f"{name}: uses {', '.join(sorted(outside))} of the code around it, which is not sent with it; import or "
            "define these in the function's body, or give a script's path"
        )
    definition = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    without_decorators = "".join(source.splitlines(keepends=True)[definition.lineno - 1 :])
    return FUNCTION_PROGRAM.format(source=without_decorators, name=name)


def _globals_of(code: CodeType) -> Iterator[str]:
    """Give the global names that the code reads, those of functions inside it included."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


@contextmanager
def _code_of(program: str | Path | Callable[..., object], params: Mapping[str, Any]) -> Iterator[Path]:
    """Give the path of the script; that of a function lives as long as the block."""
    if not callable(program):
        script = Path(program).expanduser().absolute()
        if not script.is_file():
            raise DataError(f"program: {program} is no file; give the path of a script")
        yield script
        return
    text = program_of(program)
    _check_call(program, params)
    with tempfile.TemporaryDirectory(prefix="updraft-train-") as folder:
        script = Path(folder) / FUNCTION_FILE
        script.write_text(text, encoding="utf-8")
        yield script


def _check_call(function: Callable[..., object], params: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**params)
        json.dumps(dict(params))
    except TypeError as exc:
        name = getattr(function, "__name__", "function")
        raise DataError(f"params: {name} cannot be called with them: {exc}") from exc


def _framework(fields: Mapping[str, Any]) -> str | None:
    """Return the framework's name that the caller gave; with an image of the caller's, the name is of no use."""
    if "image" in fields:
        return "shell"
    given = fields.get("framework")
    return str(given["name"]) if isinstance(given, Mapping) and "name" in given else None
