from __future__ import annotations

from pathlib import Path

from updraft_learner.checkpoint_names import QUARANTINE_MARKER, part_name
from updraft_learner.contract import CHECKPOINT_MARKER, Keys

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "storage.md"


def test_every_part_of_the_layout_is_documented() -> None:
    page, keys = PAGE.read_text(), Keys("T")
    made = [
        keys.blob("SHA256"),
        keys.tree("SHA256"),
        keys.source("SHA256"),
        keys.listing("SHA256"),
        keys.resolved("SHA256"),
        keys.checkpoint("JOB", "NAME"),
        keys.status("JOB", "ROLE", 1, 1).replace("ROLE-1", "ROLE-ATTEMPT").replace("learner-1", "learner-N"),
        keys.results("JOB", "train", 1).replace("learner-1", "learner-N"),
    ]
    assert [key for key in made if f"`{key.removeprefix('T/')}" not in page] == []
    for part in ("done.json", "/metrics/", "/logs/", CHECKPOINT_MARKER, QUARANTINE_MARKER, part_name(1, 2)):
        assert part in page
