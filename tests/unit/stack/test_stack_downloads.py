from __future__ import annotations

from updraft.stack.environments import downloads


def test_uvs_lines_become_a_percentage() -> None:
    told: list[str] = []
    progress = downloads(told.append)
    for line in (
        "Resolved 30 packages in 2ms",
        "Downloading scipy (30.0MiB)",
        "Downloading numpy (10.0MiB)",
        " Downloaded numpy",
        " Downloaded scipy",
        " + numpy==2.0",
    ):
        progress(line)
    assert told == ["0 % of 30 MiB downloaded", "25 % of 40 MiB downloaded", "100 % of 40 MiB downloaded"]
