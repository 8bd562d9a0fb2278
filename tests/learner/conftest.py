"""What the tests of the sidecar share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from learner.sidecar_fakes import FakeMlflow


@pytest.fixture
def mlflow() -> Iterator[FakeMlflow]:
    server = FakeMlflow()
    yield server
    server.close()
