"""docs/howto/deploy.md: each command says whether it was tried, and what it says of upgrades holds."""

from __future__ import annotations

import ast
from pathlib import Path

import deploy_page
import pytest
from alembic.util import CommandError
from sqlalchemy import text

from updraft import ledger
from updraft.ledger.engine import make_engine, writing
from updraft.ledger.migrate import VERSION_TABLE

VERSIONS = Path(ledger.__file__).parent / "migrations" / "versions"
MORE = {
    "0003": {"batch_alter_table"},
    "0004": {"get_bind"},
    "0017": {"batch_alter_table"},
}  # the page says what that means
ONLY_ADDS = {"create_table", "create_index", "add_column", "bulk_insert", "execute"}


def test_every_block_says_whether_it_was_tried() -> None:
    marks = {block.mark for block in deploy_page.blocks()}
    assert marks == {deploy_page.CLUSTER, deploy_page.SYSTEM, deploy_page.NOT_HERE}


@pytest.mark.parametrize("path", sorted(VERSIONS.glob("0*.py")), ids=lambda path: path.stem)
def test_migrations_only_add_as_the_page_says(path: Path) -> None:
    """One that does more is no mistake: then the page has to say what old parts do with new tables."""
    tree = ast.parse(path.read_text())
    upgrade = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "upgrade")
    used = {
        node.func.attr
        for node in ast.walk(upgrade)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "op"
    }
    assert used <= ONLY_ADDS | MORE.get(path.stem[:4], set())
    assert path.stem[:4] in deploy_page.PAGE.read_text()


def test_a_version_that_does_not_know_the_ledgers_tables_starts_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger.upgrade(url)
    engine = make_engine(url)
    with writing(engine) as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(CommandError, match="9999"):
        ledger.upgrade(url)
