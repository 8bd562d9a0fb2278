"""What is kept of a run that failed, for the search for the defect. Called by `run`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from faults.checks import Violation
from faults.facts import JobFacts, as_json
from faults.lab import Lab
from faults.plan import Planned
from updraft.exceptions import UpdraftError
from updraft.lifecycle.workflow import TRAIN_DAG

LOG_BYTES = 2 * 1024**2  # of the end of each part's log


def keep(lab: Lab, planned: Planned, facts: Sequence[JobFacts], violations: Sequence[Violation], folder: Path) -> Path:
    """Write a folder with the facts, the jobs' histories, logs and documents, and the ends of the parts' logs."""
    place = folder / f"{planned.name}-{planned.seed}-{datetime.now():%m%d-%H%M%S}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "violations.txt").write_text("".join(f"{v.kind}: {v.job}: {v.text}\n" for v in violations))
    for part in sorted(lab.home.logs.glob("*.log")):
        _tail(part, place / "parts" / part.name)
    for each in facts:
        own = place / each.id
        own.mkdir(exist_ok=True)
        (own / "facts.json").write_text(json.dumps(as_json(each), indent=1, default=str))
        with suppress(UpdraftError):
            history = lab.ledger.jobs.transitions(each.id)
            text = "".join(f"{t.at:%H:%M:%S.%f} {t.from_state} -> {t.to_state}: {t.reason}\n" for t in history)
            (own / "transitions.txt").write_text(text)
        runs = lab.home.airflow / "logs" / f"dag_id={TRAIN_DAG}" / f"run_id={each.id}"
        for source, name in ((runs, "tasks"), (lab.stored(each.id) / "attempts", "attempts")):
            if source.is_dir():
                shutil.copytree(source, own / name, dirs_exist_ok=True)
        if (lab.witness / each.id).is_dir():
            shutil.copytree(lab.witness / each.id, own / "witness", dirs_exist_ok=True)
    return place


def _tail(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with suppress(OSError), source.open("rb") as file:
        file.seek(max(0, source.stat().st_size - LOG_BYTES))
        target.write_bytes(file.read())
