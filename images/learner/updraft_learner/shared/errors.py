"""What shared-memory training raises.

SharedTrainingError
├── InvalidSetting           an argument of `train`, or this machine; also a ValueError
├── InvalidSharedModel       the model cannot be trained so; also a ValueError
├── NotEnoughSharedMemory    nothing was started
├── ProgramFailed            the program raised an exception, or returned before its last step
├── TrainingStalled          a learner pushed nothing, or the server applied nothing, for `patience_seconds`
└── TooManyKills             a process was killed again and again, without a step in between
"""

from __future__ import annotations


class SharedTrainingError(Exception):
    """The base of all errors of shared-memory training."""


class InvalidSetting(SharedTrainingError, ValueError):
    """An argument is not allowed, or the machine cannot do this."""


class InvalidSharedModel(SharedTrainingError, ValueError):
    """The model cannot be trained through shared memory."""


class NotEnoughSharedMemory(SharedTrainingError):
    """The machine, or the pod, has less memory than the weights, moments and gradients need."""


class ProgramFailed(SharedTrainingError):
    """The program of a learner raised an exception, or returned too early."""


class TrainingStalled(SharedTrainingError):
    """A learner pushed no gradient, or the server applied none, although nothing kept it from doing so."""


class TooManyKills(SharedTrainingError):
    """A process was killed again and again, without a step in between."""
