"""Control the platform on this machine: functions of the module `updraft`.

`home` is the folder of its state; without it, `UPDRAFT_HOME`, or else `.updraft` in the checkout, as for the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from updraft.stack.layout import find_home

if TYPE_CHECKING:
    from updraft.stack.config import Config
    from updraft.stack.control import Addresses
    from updraft.stack.doctor import Check
    from updraft.stack.status import StackStatus


def init(
    home: Path | None = None,
    *,
    ports: Mapping[str, int] | None = None,
    node: Mapping[str, float | int] | None = None,
    cluster: Mapping[str, str] | None = None,
) -> Config:
    """Create the home with generated secrets and free ports, or change one that exists. Returns its config.

    Args:
        home: folder of the stack's state; by default UPDRAFT_HOME, else `.updraft` in the checkout.
        ports: fixed ports, by part: `airflow`, `mlflow`, `s3`, `node`.
        node: what the local node offers: `cpus`, `memory_mib`, `gpus`; by default what the machine has, and no GPU.
        cluster: `kubeconfig`, `context` and `address` of a Kubernetes cluster to use in place of the local node.

    Raises StackError (an UpdraftError) for a value that is not allowed, and for a cluster that cannot be left while it
    runs learners.
    """
    from updraft.stack import control

    return control.initialise(find_home(root=home), ports=ports, node=node, cluster=cluster)


def up(
    home: Path | None = None,
    *,
    ports: Mapping[str, int] | None = None,
    node: Mapping[str, float | int] | None = None,
    cluster: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
    build: bool = True,
) -> Addresses:
    """Start the stack of `home`, or attach to the one that runs, and return its addresses when every part is ready.

    `ports`, `node` and `cluster` are those of `init`. `say` is called with sentences that report progress. With
    `build=False` the environments are taken as they are.

    Raises StackError, which names the part that did not start, the reason and its log. An interrupt leaves the stack as
    it is.
    """
    from updraft.stack import control

    return control.up(find_home(root=home), ports=ports, node=node, cluster=cluster, say=say, build=build)


def down(home: Path | None = None) -> int:
    """Stop every process of the stack of `home`. Returns how many had to be killed."""
    from updraft.stack import control

    return control.down(find_home(root=home))


def status(home: Path | None = None) -> StackStatus:
    """Return what runs: every part with its state, port, memory and log. A home that does not exist is no error."""
    from updraft.stack.status import stack_status

    return stack_status(find_home(root=home))


def doctor(home: Path | None = None, kubeconfig: Path | None = None, context: str | None = None) -> list[Check]:
    """Check this machine, the home and its cluster, without changing anything. Returns one `Check` per finding.

    `kubeconfig` and `context` name a cluster to check in place of the home's.
    """
    from updraft.stack import doctor as checks

    return checks.doctor(find_home(root=home), kubeconfig, context)
