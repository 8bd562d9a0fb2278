"""`python -m updraft_localnode`: start the local node. Called by `updraft.stack`, or by hand."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from updraft_learner.catalogue import CatalogueError
from updraft_learner.quantity import parse_quantity
from updraft_localnode.errors import LocalNodeError
from updraft_localnode.kubelet import Timing
from updraft_localnode.node import NodeConfig, run


def _quantity(text: str) -> int:
    """Parse a quantity into bytes. People write GiB where Kubernetes writes Gi."""
    try:
        return int(parse_quantity(text.removesuffix("B")))
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; write for example 8GiB or 512MiB") from exc


def _cpus(text: str) -> int:
    try:
        milli = int(parse_quantity(text) * 1000)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of CPUs; write for example 2 or 1500m") from exc
    if milli <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0")
    return milli


def _gpus(text: str) -> tuple[str, int]:
    kind, _, count = text.partition("=")
    if not kind or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} must be TYPE=COUNT, for example nvidia-a100=2")
    return kind, int(count)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m updraft_localnode",
        description="Serves the part of the Kubernetes pod API that Updraft uses, for this machine.",
    )
    result.add_argument("--state-dir", type=Path, required=True, help="folder for objects, logs and pods' files")
    result.add_argument("--port", type=int, required=True, help="TCP port; 0 takes a free one and prints it")
    result.add_argument("--host", default="127.0.0.1", help="address to listen on; in a container of its own, 0.0.0.0")
    result.add_argument("--token-file", type=Path, required=True, help="file with the bearer token of all clients")
    result.add_argument("--catalogue", type=Path, required=True, help="TOML file of the images that are known")
    result.add_argument("--images-dir", type=Path, required=True, help="folder of the images' virtual environments")
    result.add_argument(
        "--builder", default="", metavar="COMMAND", help="what builds the environment of an image, called with its name"
    )
    result.add_argument("--cpus", type=_cpus, help="CPUs to hand out; default: all")
    result.add_argument("--memory", type=_quantity, help="memory to hand out, e.g. 8GiB; default: all")
    result.add_argument(
        "--gpus", type=_gpus, nargs="*", default=[], metavar="TYPE=N", help="GPUs to hand out, possibly imaginary"
    )
    result.add_argument(
        "--restart-backoff-seconds", type=float, default=10.0, help="first pause before a container is restarted"
    )
    result.add_argument(
        "--shutdown-grace-seconds", type=float, default=5.0, help="time that containers have when the node is stopped"
    )
    return result


def config_of(arguments: argparse.Namespace) -> NodeConfig:
    """Return the configuration that the arguments describe. Raises LocalNodeError."""
    try:
        token = arguments.token_file.read_text().strip()
    except OSError as exc:
        raise LocalNodeError(f"token-file: {arguments.token_file} cannot be read ({exc.strerror})") from exc
    if not token:
        raise LocalNodeError(f"token-file: {arguments.token_file} is empty; write a random token into it")
    amounts = {"cpu_milli": arguments.cpus, "memory_bytes": arguments.memory}
    return NodeConfig(
        state_dir=arguments.state_dir.absolute(),
        token=token,
        catalogue=arguments.catalogue.absolute(),
        images_dir=arguments.images_dir.absolute(),
        port=arguments.port,
        host=arguments.host,
        gpus=tuple(arguments.gpus),
        timing=Timing(backoff_seconds=arguments.restart_backoff_seconds),
        builder=arguments.builder,
        shutdown_grace_seconds=arguments.shutdown_grace_seconds,
        **{name: value for name, value in amounts.items() if value is not None},
    )


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        run(config_of(parser().parse_args()))
    except (CatalogueError, LocalNodeError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
