"""Compare the data of a job with what the champion was trained on: what is new, and the part to train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from updraft.exceptions import DataError, NotFoundError
from updraft.storage.staged import Staged
from updraft_learner.trees import Tree

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.manifest import Data, Manifest
    from updraft.services import Services
    from updraft.storage.content import ContentStore
    from updraft.tracking import VersionRef


@dataclass(frozen=True)
class DataChange:
    """How a data set of a job differs from that of another job, in files or objects."""

    source: str
    added: int = 0
    changed: int = 0
    removed: int = 0
    same: int = 0

    def __str__(self) -> str:
        """Return the numbers for people: `2 new, 1 changed, 10 the same`."""
        counts = ((self.added, "new"), (self.changed, "changed"), (self.removed, "gone"), (self.same, "the same"))
        return ", ".join(f"{count} {word}" for count, word in counts if count) or "nothing"


def champions_job(services: Services, job: Job, champion: VersionRef | None) -> Job | None:
    """Return the job of the same tenant that made the champion; None if there is none."""
    if champion is None or champion.job_id is None:
        return None
    try:
        made_by = services.ledger.jobs.get(champion.job_id)
    except NotFoundError:
        return None
    return made_by if made_by.tenant == job.tenant else None


def changes(services: Services, job: Job, other: Job) -> list[DataChange]:
    """Return how each data set of `job` differs from the one of `other` at the same place. Data whose content is not
    known, on claims or no longer stored, is left out. Raises UnavailableError."""
    content = services.content(job.tenant)
    before = {record["mount"]: record for record in other.data or ()}
    found: list[DataChange] = []
    for record in job.data or ():
        old = before.get(record["mount"])
        try:
            new_files = _files(content, record)
            old_files = {} if old is None else _files(content, old)
        except (DataError, NotFoundError):
            continue
        if new_files is not None and old_files is not None:
            found.append(_change(str(record["source"]), old_files, new_files))
    return found


def whole_tree(record: Mapping[str, Any]) -> str:
    """Return the tree of all that a recorded data set's source had, of which the job may train on a part."""
    return str(record.get("whole") or record["tree"])


def increment(services: Services, job: Job, manifest: Manifest, item: Data, found: Staged) -> Staged:
    """Return the part of the staged data that is new or changed since the champion was trained; all of it if there is
    no champion whose data is known.

    Raises DataError if nothing is new.
    """
    from updraft import tracking

    model = manifest.export.register_as if manifest.export else None
    current = tracking.champion(services.tracking, model) if model else None
    made_by = champions_job(services, job, current[0] if current else None)
    old = next((each for each in (made_by.data or () if made_by else ()) if each["mount"] == item.mount), None)
    if made_by is None or old is None:
        return found
    content = services.content(job.tenant)
    try:
        known = _files(content, old)
    except (DataError, NotFoundError):
        known = None
    if known is None:
        return found
    tree = content.get_tree(found.tree_sha256)
    fresh = Tree(tuple(file for file in tree.files if known.get(file.path) != file.sha256))
    if not fresh.files:
        raise DataError(
            f"data.increment: {item.source} has nothing new since job {made_by.id}, which made the champion; leave out "
            "increment to train on all of it"
        )
    origin = {**found.provenance, "increment_of": found.tree_sha256, "since_job": made_by.id}
    return Staged(content.put_tree(fresh), len(fresh.files), fresh.size_bytes, origin)


def _files(content: ContentStore, record: Mapping[str, Any]) -> dict[str, str] | None:
    """Return what tells the content of each file or object, by path; None for data on a claim."""
    if "claim" in record:
        return None
    if record.get("mode") == "stream" and record.get("bucket"):
        objects = content.get_listing(record["tree"]).objects
        return {path: f"{each.size} {each.version}" for path, each in objects.items()}
    return {file.path: file.sha256 for file in content.get_tree(whole_tree(record)).files}


def _change(source: str, old: Mapping[str, str], new: Mapping[str, str]) -> DataChange:
    both = old.keys() & new.keys()
    changed = sum(old[path] != new[path] for path in both)
    return DataChange(source, len(new.keys() - both), changed, len(old.keys() - both), len(both) - changed)
