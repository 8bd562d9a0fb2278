"""Fill parameters into a command: `${params.NAME}` becomes the parameter's value, quoted for the shell.

Pure. Everything of another form (`$DATA_DIR`, `${HOME}`) is left to the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from updraft.manifest.errors import FieldError, ManifestError, nearest, one_of
from updraft.manifest.limits import COMMAND_BYTES, REFERENCES

if TYPE_CHECKING:
    from updraft.manifest.model import Manifest

_PARAM = re.compile(r"\$\{params\.([^}]{0,250})\}")


def render_command(manifest: Manifest, command: str | None = None) -> str:
    """Return the command of `manifest` with its parameters filled in, quoted for the shell.

    `command` is another command of the same manifest, such as that of `evaluate`.
    Raises ManifestError for a parameter that does not exist or that cannot be put inside quotes.

        render_command(manifest)  # "python train.py --epochs ${params.epochs}" becomes "python train.py --epochs 10"
    """
    path = "command" if command is None else "evaluate.command"
    text = manifest.command if command is None else command
    errors = tuple(unknown_params(path, text, manifest.params))
    if errors:
        raise ManifestError(errors)
    return _PARAM.sub(lambda match: shlex.quote(param_text(manifest.params[match[1]])), text)


def param_text(value: object) -> str:
    """Return `value`, a parameter, as the text that commands, MLflow and the environment get: True is `true`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown_params(path: str, command: str, params: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each `${params.NAME}` that cannot be filled in, once per name, and for a command that would be
    too long."""
    if len(command) > COMMAND_BYTES:
        yield FieldError(path, None, f"has {len(command)} characters", f"at most {COMMAND_BYTES} bytes")
        return
    found = list(_PARAM.finditer(command))
    if len(found) > REFERENCES:
        problem = f"holds {len(found)} references to parameters"
        yield FieldError(path, None, problem, f"at most {REFERENCES}; a program reads UPDRAFT_PARAMS_FILE")
        return
    quoted = _quoted_positions(command)
    allowed = one_of(sorted(map(str, params))) if params else "a parameter, and list it in params"
    seen: set[str] = set()
    length_bytes = len(command.encode(errors="replace"))
    for match in found:
        name = match[1]
        if name in params:
            needs_quotes, text = _quote(params[name])
            length_bytes += len(text.encode(errors="replace")) - len(match[0])
            if needs_quotes and quoted[match.start()] and name not in seen:
                seen.add(name)
                problem = f"${{params.{name}}} stands inside quotes, and its value needs quotes of its own"
                yield FieldError(path, None, problem, "it outside quotes; the value is quoted for you")
        elif name not in seen:
            seen.add(name)
            problem = f"${{params.{name[:40]}}} names a parameter that is not in params"
            guess = nearest(name, map(str, params))
            yield FieldError(path, None, problem, allowed, f"${{params.{guess}}}" if guess else None)
    if length_bytes > COMMAND_BYTES:
        problem = f"has {length_bytes} bytes with its parameters filled in"
        yield FieldError(path, None, problem, f"at most {COMMAND_BYTES} bytes; a program reads UPDRAFT_PARAMS_FILE")


def _quote(value: object) -> tuple[bool, str]:
    """Return whether the value needs quotes in a shell, and the value with those it needs."""
    text = param_text(value)
    quoted = shlex.quote(text)
    return quoted != text, quoted


def _quoted_positions(command: str) -> bytearray:
    """Return, for each character of the command, whether it stands inside quotes of the shell."""
    positions, quote, escaped = bytearray(len(command)), "", False
    for number, character in enumerate(command):
        positions[number] = bool(quote)
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif not quote and character in "'\"":
            quote = character
        elif character == quote:
            quote = ""
    return positions
