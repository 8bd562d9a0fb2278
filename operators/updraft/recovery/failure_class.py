"""Define the two vocabularies of recovery: the class of an attempt's end, and the action that it calls for."""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """The class of an attempt's end; it decides what may follow."""

    DONE = "done"
    PROGRAM = "program"  # the user's program failed
    CONFIGURATION = "configuration"  # the job cannot work as it was configured
    DATA = "data"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTED = "preempted"
    HALTED = "halted"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class Action(StrEnum):
    """The action that an attempt's end calls for, if the budgets allow it."""

    NONE = "none"  # the role is done
    RELAUNCH = "relaunch"
    ELSEWHERE = "relaunch_elsewhere"  # not on the node where it was lost
    OLDER_CHECKPOINT = "older_checkpoint"  # the checkpoint that it resumed from is unusable
    STOP = "stop"
