from __future__ import annotations

import re
from pathlib import Path

from updraft.ledger.tables import metadata

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "ledger.md"


def test_every_table_and_column_is_documented() -> None:
    words = set(re.findall(r"`([a-z0-9_]+)`", PAGE.read_text()))
    columns = {column.name for table in metadata.tables.values() for column in table.columns}
    assert (set(metadata.tables) | columns) - words == set()
