"""Commands with parameters: `${params.NAME}` becomes the parameter's value, quoted for the shell.

Pure. What is not of that form (`$DATA_DIR`, `${HOME}`) is the shell's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from updraft.manifest.errors import FieldError, ManifestError, nearest, one_of

if TYPE_CHECKING:
    from updraft.manifest.model import Manifest

_PARAM = re.compile(r"\$\{params\.([^}]*)\}")


def render_command(manifest: Manifest, command: str | None = None) -> str:
    """The manifest's command (or another of its commands) with its parameters filled in.

    Raises ManifestError for a parameter that does not exist or cannot be put inside quotes."""
    path = "command" if command is None else "evaluate.command"
    text = manifest.command if command is None else command
    errors = tuple(unknown_params(path, text, manifest.params))
    if errors:
        raise ManifestError(errors)
    return _PARAM.sub(lambda match: shlex.quote(param_text(manifest.params[match[1]])), text)


def param_text(value: object) -> str:
    """A parameter as text: what the command, MLflow and the environment get."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown_params(path: str, command: str, params: Mapping[str, Any]) -> Iterator[FieldError]:
    """An error for each `${params.NAME}` that cannot be filled in."""
    for match in _PARAM.finditer(command):
        name = match[1]
        if name not in params:
            problem = f"${{params.{name[:40]}}} names a parameter that is not in params"
            allowed = one_of(sorted(map(str, params))) if params else "a parameter, and list it in params"
            guess = nearest(name, map(str, params))
            yield FieldError(path, None, problem, allowed, f"${{params.{guess}}}" if guess else None)
        elif _needs_quotes(params[name]) and _inside_quotes(command[: match.start()]):
            problem = f"${{params.{name}}} stands inside quotes, and its value needs quotes of its own"
            yield FieldError(path, None, problem, "it outside quotes; the value is quoted for you")


def _needs_quotes(value: object) -> bool:
    text = param_text(value)
    return shlex.quote(text) != text


def _inside_quotes(before: str) -> bool:
    quote = ""
    characters = iter(before)
    for character in characters:
        if character == "\\" and quote != "'":
            next(characters, "")
        elif not quote and character in "'\"":
            quote = character
        elif character == quote:
            quote = ""
    return bool(quote)
