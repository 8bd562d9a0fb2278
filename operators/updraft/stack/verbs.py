"""The verbs of the platform on this machine, as functions of the module `updraft`.

`home` is the folder of its state; without it, `UPDRAFT_HOME`, else `.updraft` in the checkout, as for the command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from updraft.stack.layout import find_home


def init(home: Path | None = None, **options: Any) -> Any:
    """Make the home with generated secrets and free ports; see `control.initialise` for the options."""
    from updraft.stack import control

    return control.initialise(find_home(root=home), **options)


def up(home: Path | None = None, **options: Any) -> Any:
    """Start every part, or attach to what runs; see `control.up` for the options. Returns the addresses."""
    from updraft.stack import control

    return control.up(find_home(root=home), **options)


def down(home: Path | None = None) -> int:
    """End every process of the home. Returns how many had to be ended by force."""
    from updraft.stack import control

    return control.down(find_home(root=home))


def status(home: Path | None = None) -> Any:
    """What runs, as a `StackStatus`."""
    from updraft.stack.status import stack_status

    return stack_status(find_home(root=home))


def doctor(home: Path | None = None, kubeconfig: Path | None = None, context: str | None = None) -> Any:
    """What is wrong with this machine, the home or its cluster (or another one), as a list of `Check`."""
    from updraft.stack import doctor as checks

    return checks.doctor(find_home(root=home), kubeconfig, context)
