"""The CLI over the fake platform of the client's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner
from unit.client.client_fakes import FakeAirflow, make_client

from updraft.cli.app import app


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def make_runner(airflow: FakeAirflow, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("list", "--json")`; the client that a command makes speaks to the fake."""
    import updraft.client

    monkeypatch.setattr(updraft.client, "Client", lambda connection=None: make_client(airflow, connection=connection))

    def run(*arguments: str, **options: Any) -> Ran:
        result = CliRunner().invoke(app, list(arguments), prog_name="updraft", **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run
