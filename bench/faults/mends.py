"""Every failure that the lab has seen, with what was done about it: the report shows them for good.

A failed run that is not listed here is shown as open. `commit` of a Mend is the one whose code passes; a defect of the
lab itself is said to be one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from faults.outcomes import RunRecord


@dataclass(frozen=True)
class Failure:
    """A failed run, by what tells it from all others."""

    kind: str
    seed: int
    commit: str
    aim: str = ""


@dataclass(frozen=True)
class Mend:
    commit: str
    text: str
    failures: tuple[Failure, ...]


MENDS = (
    Mend(
        "bed0e01",
        "Two first jobs of a series that start at once race to create the series' experiment, and MLflow answered 403 "
        "to the one that came second. The second one now waits and uses the experiment of the first.",
        (Failure("sidecar_kill", 1, "0fdd067306ee"), Failure("sidecar_kill", 1, "0dbe4007ef1c")),
    ),
    Mend(
        "c019fdc",
        "A checkpoint that did not match its digest ended the job. A damaged checkpoint is set aside, and the learner "
        "goes on from the one before it.",
        (Failure("checkpoint_corrupted", 1, "0dbe4007ef1c"),),
    ),
    Mend(
        "4748050",
        "MLflow showed a halted job as RUNNING until the outbox came round. It is told of a halt and a resume at once.",
        (Failure("halt_resume", 1, "d26ab246e986"),),
    ),
    Mend(
        "39722ee",
        "Lines that a learner printed while its pod was removed were lost. They are read before the pod is deleted.",
        (
            Failure("mark_success", 1, "d26ab246e986"),
            Failure("mark_failed", 1, "d26ab246e986"),
            Failure("run_deleted", 1, "d26ab246e986"),
        ),
    ),
    Mend(
        "83960a9",
        "The lab's own mistake: the program ended before its killed sidecar was back, so nobody could store the last "
        "points. That moment is a kind of its own now, with a rule that allows it.",
        (Failure("sidecar_kill", 2, "81faabb58786"),),
    ),
    Mend(
        "314e11c",
        "The lab's own mistake: the halt met the program's own end. Such a run is void.",
        (Failure("halt_resume", 11, "f26d1c30ab1f"), Failure("halt_resume", 12, "f26d1c30ab1f")),
    ),
    Mend(
        "d78ba67",
        "A learner had no time to store its points while the object store was away, and the lab counted a launch that "
        "found no store as needless. A learner has 15 minutes to store at its end; such a launch starts no program.",
        (Failure("s3_stopped", 811, "be4dd37d738c"),),
    ),
    Mend(
        "3a56add",
        "The log of a learner that had ended was cut when its pod was removed. It is read to its end first.",
        (Failure("mark_success", 1, "113fc307dee1"),),
    ),
    Mend(
        "25603da",
        "The lab's own mistake: the manifest's progress watch allowed 10 s, and PyTorch took 12 to 18 s to start on a "
        "busy machine, so each launch was restarted before its first step. Whole life cycles are given 45 s.",
        (Failure("learner_freeze+s3_kill", 1, "25603dafc4da", "together"),),
    ),
    Mend(
        "3fe2fae",
        "The process that judges data was killed, and its job ended as if the data needed too much memory. The process "
        "is started again; when it is killed twice, the attempt is made again.",
        (Failure("any_process_kill", 1, "2f9830265ae6"),),
    ),
    Mend(
        "92493989",
        "The lab's own mistake: the pod was evicted with its disk, and the last points of its learner with it.",
        (Failure("member_evict", 2, "7fd77881c9b0"),),
    ),
    Mend(
        "6def7b95",
        "The lab's own mistake: it scaled the job to one learner, and killed that one.",
        (Failure("scale_and_member_kill", 2, "7fd77881c9b0"),),
    ),
    Mend(
        "e11a05ac",
        "The lab's own mistake: a user ended the job while its second attempt started, which had silenced the first "
        "one before its last point was sent. That step was after the checkpoint, so it was to be made again.",
        (
            Failure(
                "watch_dropped+dag_processor_kill+second_triggerer+disk_full+sidecar_kill_at_end+pod_delete+mark_failed",
                1,
                "e69c6068aa68",
            ),
        ),
    ),
)


def mend_of(record: RunRecord, mends: Iterable[Mend] = MENDS) -> Mend | None:
    """Return what was done about a failed run; None while it is open."""
    failure = Failure(record.kind, record.seed, record.commit, record.aim)
    return next((mend for mend in mends if failure in mend.failures), None)
