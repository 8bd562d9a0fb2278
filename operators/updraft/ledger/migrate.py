"""Migrate a ledger's tables to this version. Called by `updraft up` and by tests; safe to call at any time."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from updraft.ledger.engine import make_engine, writing

log = logging.getLogger(__name__)

VERSION_TABLE = "ledger_version"
_MIGRATION_LOCK = 0x75706472  # an arbitrary number that nothing else in this database uses


def upgrade(url: str, revision: str = "head") -> None:
    """Run all missing migrations in one transaction. Callers at the same time wait for each other."""
    engine = make_engine(url)
    try:
        with writing(engine) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            command.upgrade(configuration(connection), revision)
    finally:
        engine.dispose()
    log.info("The ledger is at revision %s", revision)


def configuration(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration without a file: the scripts are part of the package."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
