"""Print for `updraft validate --pods` the objects of each role as YAML that `kubectl` reads."""

from __future__ import annotations

from typing import Any

import typer
import yaml

from updraft.lifecycle.workflow import PREPARE_ROLE
from updraft.schemas import Planned

WIDTH = 64  # PyYAML breaks a line after the word that crosses this column


class BlockDumper(yaml.SafeDumper):
    """A YAML dumper that writes texts of several lines, such as shell programs, as blocks."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return the node of a text; YAML quotes one that it cannot write as a block."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


BlockDumper.add_representer(str, BlockDumper.represent_text)


def print_planned(planned: Planned) -> None:
    """Print the objects, each role after a comment that names it."""
    for role in planned.roles:
        number = len(role.objects)
        when = ", unless code and judged data are in the store already" if role.role == PREPARE_ROLE else ""
        typer.echo(f"# {role.role}: {number} {'object' if number == 1 else 'objects'}{when}")
        for made in role.objects:
            typer.echo("---")
            typer.echo(as_yaml(made), nl=False)


def as_yaml(made: dict[str, Any]) -> str:
    """Return the object as a YAML document."""
    text: str = yaml.dump(made, Dumper=BlockDumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return text
