"""Whoever changes a manifest in `jobs/` sees it on Airflow's pages within seconds."""

from __future__ import annotations

import os
from pathlib import Path

from updraft.stack.manifest_watch import ManifestWatch

OLD = 1_000_000_000


def _tree(root: Path) -> tuple[Path, Path]:
    (root / "jobs" / "digits").mkdir(parents=True)
    (root / "jobs" / "digits" / "manifest.yaml").write_text("name: digits\n")
    dag_file = root / "jobs.py"
    dag_file.touch()
    os.utime(dag_file, (OLD, OLD))
    return root / "jobs", dag_file


def test_what_was_there_from_the_start_is_no_change(tmp_path: Path) -> None:
    jobs, dag_file = _tree(tmp_path)
    watch = ManifestWatch(jobs, dag_file)
    assert [watch.look(), watch.look()] == [False, False]
    assert dag_file.stat().st_mtime == OLD


def test_new_changed_and_removed_manifests_make_the_dag_file_newer(tmp_path: Path) -> None:
    jobs, dag_file = _tree(tmp_path)
    watch = ManifestWatch(jobs, dag_file)
    watch.look()
    (jobs / "shell").mkdir()
    (jobs / "shell" / "manifest.yaml").write_text("name: shell\n")
    assert watch.look()
    assert dag_file.stat().st_mtime > OLD
    os.utime(jobs / "digits" / "manifest.yaml", (OLD, OLD))
    assert watch.look()
    (jobs / "digits" / "manifest.yaml").unlink()
    assert watch.look()
    assert not watch.look()


def test_airflow_parses_a_second_time_after_a_change(tmp_path: Path) -> None:
    jobs, dag_file = _tree(tmp_path)
    now = [0.0]
    watch = ManifestWatch(jobs, dag_file, clock=lambda: now[0])
    assert not watch.look()
    os.utime(jobs / "digits" / "manifest.yaml", (OLD, OLD))
    looks = []
    for now[0] in (1.0, 2.0, 10.0, 11.0, 12.0, 60.0):
        looks.append(watch.look())
    assert looks == [True, False, False, True, False, False]


def test_a_dag_file_that_may_not_be_written_is_left_to_the_next_parse(tmp_path: Path) -> None:
    jobs, dag_file = _tree(tmp_path)
    watch = ManifestWatch(jobs, dag_file.with_name("missing.py"))
    watch.look()
    (jobs / "digits" / "manifest.yaml").unlink()
    assert not watch.look()
