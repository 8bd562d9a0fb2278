"""Make and check job ids. A job's id names its pods and its service: it is a DNS label that starts with a letter.
Pure."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

JOB_ID_LENGTH = 52  # leaves room in a DNS label (63) for role and learner: `<job id>-evaluate-12`
_NAME_LENGTH = 30
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?", re.ASCII)


def is_job_id(text: str) -> bool:
    return len(text) <= JOB_ID_LENGTH and _LABEL.fullmatch(text) is not None


def job_id(name: str, now: datetime, entropy: bytes) -> str:
    """Create an id such as `digits-cnn-261231-235959-1a2b3c`. `now` has a time zone; `entropy` distinguishes equal
    times."""
    moment = now.astimezone(UTC).strftime("%y%m%d-%H%M%S")
    return f"{_head(name)}-{moment}-{hashlib.sha256(entropy).hexdigest()[:6]}"


def job_id_of_run(dag_id: str, run_id: str, name: str) -> str:
    """Return the id of the job that an Airflow run guards: the run's id where it can be one, otherwise derived from it,
    always in the same way (Airflow's own run ids hold colons and plus signs)."""
    if is_job_id(run_id):
        return run_id
    digest = hashlib.sha256(f"{dag_id}\0{run_id}".encode(errors="surrogatepass")).hexdigest()
    return f"{_head(name)}-{digest[:12]}"


def _head(name: str) -> str:
    head = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not head[:1].isalpha():
        head = f"job-{head}"
    return head[:_NAME_LENGTH].strip("-")
