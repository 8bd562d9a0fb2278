"""Give each failure the error code that FfDL's users know: S if the platform is at fault, C if the user is.

The codes are those of FfDL's paper and source (S100 to S305, C101 to C201). FfDL has no code for a deadline, and none
is given for what a person asked for.
"""

from __future__ import annotations

from updraft.recovery.failure_class import FailureClass

BY_LABEL = {
    "pod.not_started": "S101",
    "pod.no_room": "S100",
    "quota.exceeded": "S100",
    "quota.too_small": "C104",
    "node.full": "S100",
    "node.refused": "S100",
    "gpu.refused": "S100",
    "image.unreachable": "S103",
    "image.registry_unknown": "S103",
    "image.unexplained": "S103",
    "image.missing": "S103",
    "container.slow": "S101",
    "container.config": "C101",
    "container.start": "C101",
    "stage.configuration": "C101",
    "stage.data": "S302",
    "stage.failed": "S302",
    "store.unreachable": "S302",
    "checkpoint.damaged": "S302",
    "checkpoint.refused": "S302",
    "results.not_stored": "S303",
    "credentials.refused": "C103",
}
BY_CLASS = {
    FailureClass.INFRASTRUCTURE: "S104",
    FailureClass.PREEMPTED: "S104",
    FailureClass.PROGRAM: "C201",
    FailureClass.CONFIGURATION: "C201",  # of the program: its command, its imports, its arguments
    FailureClass.DATA: "C201",
}
MEANINGS = {
    "S100": "not enough resources",
    "S101": "the job could not be deployed",
    "S103": "the image could not be pulled",
    "S104": "the learner failed for another reason than its program",
    "S302": "code, data or a checkpoint could not be loaded",
    "S303": "results could not be stored",
    "C101": "the manifest asks for something that cannot be",
    "C103": "credentials or a bucket are wrong",
    "C104": "the resources asked for can never be had",
    "C201": "the program failed",
}


def ffdl_code(label: str | None, cause: str | None) -> str | None:
    """Return FfDL's code for a row of the catalogue and a class of failure; None if FfDL has none."""
    if label in BY_LABEL:
        return BY_LABEL[label]
    return BY_CLASS.get(FailureClass(cause)) if cause in set(FailureClass) else None
