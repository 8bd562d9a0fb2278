"""The words of recovery: the class of an attempt's end, and what it calls for. Everything here uses them."""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """Class of an attempt's end; it decides what may be done about it."""

    DONE = "done"
    PROGRAM = "program"  # the user's program failed
    CONFIGURATION = "configuration"  # it cannot work as it was asked for
    DATA = "data"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTED = "preempted"
    HALTED = "halted"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class Action(StrEnum):
    """What an attempt's end calls for, budgets permitting."""

    NONE = "none"  # it is done
    RELAUNCH = "relaunch"
    ELSEWHERE = "relaunch_elsewhere"  # not on the node that it was lost on
    OLDER_CHECKPOINT = "older_checkpoint"  # the one that it went on from is no good
    STOP = "stop"
