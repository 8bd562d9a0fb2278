"""Seams that are left out: by the setting, by the version of Airflow; what is left is Airflow as it is."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from airflow.executors.local_executor import LocalExecutor
from sqlalchemy import create_engine, text

from updraft.airflow_seams import scheduler_sleep, switch, trigger_events
from updraft.airflow_seams.dead_schedulers import free_tasks_of_dead_schedulers
from updraft.airflow_seams.failure_log import show_reason_alone
from updraft.airflow_seams.registry import SEAMS
from updraft.airflow_seams.shared_imports import import_ahead
from updraft.airflow_seams.sqlite_sessions import LoopSession, session_maker
from updraft.airflow_seams.switch import VARIABLE, airflow_version, applies, reason_off, switched_off
from updraft.airflow_seams.task_processes import ProcessExecutor, TaskExecutor, executor_class
from updraft.exceptions import UpdraftError
from updraft.settings import Settings
from updraft.stack import airflow_dag_processor, migrate
from updraft.stack.config import choose_config, generate_secrets, reveal
from updraft.stack.files import airflow_configuration
from updraft.stack.layout import Home


@pytest.fixture(autouse=True)
def said_nothing() -> Iterator[None]:
    for cached in (switch._warn_once, airflow_version):
        cached.cache_clear()
    yield
    for cached in (switch._warn_once, airflow_version):
        cached.cache_clear()


@pytest.fixture
def later_airflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is found first says that a later Airflow is installed."""
    metadata = tmp_path / "installed" / "apache_airflow_core-3.4.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.4\nName: apache-airflow-core\nVersion: 3.4.0\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")


@pytest.fixture(params=["switched off", "another Airflow"])
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seam is left out, for either reason."""
    if request.param == "switched off":
        monkeypatch.setenv(VARIABLE, "all")
    else:
        request.getfixturevalue("later_airflow")


def test_all_seams_apply_here() -> None:
    assert [name for name in SEAMS if not applies(name)] == []
    assert executor_class() is ProcessExecutor is TaskExecutor


def test_the_setting_names_seams_or_all() -> None:
    assert switched_off({}) == switched_off({VARIABLE: " "}) == frozenset()
    assert switched_off({VARIABLE: "failure_log, task_processes"}) == {"failure_log", "task_processes"}
    assert switched_off({VARIABLE: "all"}) == set(SEAMS)
    given = {VARIABLE: "failure_log"}
    assert reason_off("failure_log", given, airflow_version()) == f"{VARIABLE} names it"
    assert reason_off("task_processes", given, airflow_version()) is None


def test_an_unknown_name_is_refused_with_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = f"{VARIABLE}: there is no seam wakeup; the seams are scheduler_sleep, .*, or all"
    with pytest.raises(UpdraftError, match=wanted):
        switched_off({VARIABLE: "wakeup"})
    with pytest.raises(UpdraftError, match=wanted):
        Settings.from_environment({VARIABLE: "wakeup"})
    monkeypatch.setenv(VARIABLE, "wakeup")
    with pytest.raises(SystemExit, match=wanted):
        migrate.main()


@pytest.mark.usefixtures("later_airflow")
def test_an_airflow_that_was_not_tried_gets_no_seam_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not applies("trigger_events")
        assert not applies("trigger_events")
    assert [record.getMessage() for record in caplog.records] == [
        "The Airflow seam trigger_events is left out: it was tried with Airflow 3.3.2, and this is 3.4.0. "
        "Each wait of a job takes half a second longer."
    ]


@pytest.mark.usefixtures("off")
class TestWithout:
    """Each seam left out."""

    def test_scheduler_sleep(self) -> None:
        runner = SimpleNamespace(time=None)
        assert not scheduler_sleep.install(runner, "sqlite:////srv/airflow.db")
        assert runner.time is None

    def test_trigger_events(self) -> None:
        runner = SimpleNamespace()
        assert not trigger_events.install(runner)
        assert vars(runner) == {}

    def test_sqlite_sessions(self, tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'airflow.db'}")

        async def change() -> None:
            with session_maker(engine)() as session:
                assert not isinstance(session, LoopSession)
                session.execute(text("create table log (event text)"))
                session.execute(text("insert into log values ('here')"))
                session.commit()

        asyncio.run(change())
        with engine.connect() as connection:
            assert connection.execute(text("select event from log")).scalars().all() == ["here"]
        engine.dispose()

    def test_task_processes(self) -> None:
        assert executor_class() is LocalExecutor

    def test_dead_schedulers(self) -> None:
        def refuse(*_: object) -> int:
            raise AssertionError("the records of schedulers were touched")

        free_tasks_of_dead_schedulers(refuse)

    def test_shared_imports(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "this", raising=False)
        assert not import_ahead(["this"])
        airflow_dag_processor.prepare()
        assert "this" not in sys.modules

    def test_failure_log(self) -> None:
        processors = structlog.get_config()["processors"]
        before = list(processors)
        show_reason_alone(ZeroDivisionError)
        assert processors == before

    def test_the_scheduler_then_sleeps_for_a_second(self, tmp_path: Path) -> None:
        assert sleep_of(tmp_path) == "1"


def test_the_scheduler_that_is_woken_sleeps_longer(tmp_path: Path) -> None:
    assert sleep_of(tmp_path) == "5"


def sleep_of(folder: Path) -> str:
    """The scheduler's idle sleep in the embedded stack's configuration, seconds."""
    home = Home(root=folder, repository=folder)
    written = airflow_configuration(home, choose_config({}), reveal(generate_secrets()))
    return next(
        line.partition(" = ")[2] for line in written.splitlines() if line.startswith("scheduler_idle_sleep_time")
    )
