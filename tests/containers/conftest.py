"""The engine that container tests share, and what they skip for, in words."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from containers import build, compose_program, recipes
from containers import engine as engines
from containers.engine import Engine
from containers.places import ContainersError, Places, find_places


@pytest.fixture(scope="session")
def places() -> Places:
    return find_places()


@pytest.fixture(scope="session")
def engine(places: Places) -> Engine:
    """One that answers, or Debian's; it goes on afterwards (`make images-down` ends it), so that layers are kept."""
    needs = engines.missing()
    if needs:
        why = "no Docker Engine answers and none can be started; needed: " + "; ".join(needs)
        pytest.skip(f"SKIPPED CONTAINER TESTS: {why}")
    return engines.find_or_start(places)


@pytest.fixture(scope="session")
def images(engine: Engine, places: Places) -> dict[str, build.Built]:
    """All images but the large ones, built from this checkout."""
    return {b.name: b for b in build.build(engine, places, recipes.chosen([]), build.warn)}


@pytest.fixture(scope="session")
def composing(engine: Engine, places: Places) -> Iterator[Future[list[str]]]:
    """Compose's command; a first build takes two minutes, in which images can be built as well."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(compose_program.find_or_build, engine, places, build.warn)


@pytest.fixture(scope="session")
def compose_command(composing: Future[list[str]]) -> list[str]:
    try:
        return composing.result()
    except ContainersError as exc:
        pytest.skip(f"SKIPPED COMPOSE TESTS: {exc}")


@pytest.fixture
def private_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """Places of an engine for one test, ended afterwards."""
    if not engine.own:
        pytest.skip("SKIPPED: an engine answers already, so none is started here")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    # Sockets have short paths; pytest's own folders do not.
    with tempfile.TemporaryDirectory(prefix="updraft-engine-", dir="/tmp") as folder:
        places = Places(cache=find_places().cache, state=Path(folder))
        try:
            yield places
        finally:
            engines.end(places)
