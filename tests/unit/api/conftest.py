from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.api.api_fakes import Platform, make_platform


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    made = make_platform(tmp_path)
    yield made
    made.ledger.close()


@pytest.fixture
def two_tenants(tmp_path: Path) -> Iterator[Platform]:
    made = make_platform(tmp_path, ("vision", "speech"))
    yield made
    made.ledger.close()
