"""Every error that Updraft raises on purpose.

    UpdraftError                 a message that a person can act on
    ├── ManifestError            the manifest is wrong; carries every wrong field (updraft.manifest.errors)
    ├── RefusedError             well-formed, but not allowed or not possible here and now
    │   ├── NotFoundError        the thing named does not exist, or is another tenant's
    │   ├── LimitError           larger than a limit that an operator has set
    │   ├── QuotaError           no room in a quota of the cluster now; it may be raised, or others may leave
    │   ├── ConflictError        the thing to create exists already (updraft.client)
    │   └── InvalidRequestError  the server refused the content; carries every wrong field (updraft.client)
    ├── DataError                the user's data or code cannot be used as it is
    ├── IllegalTransitionError   a job cannot go from this state to that one (a defect of ours)
    ├── StaleAttemptError        an older attempt tried to have an effect; it was refused
    └── UnavailableError         a part of the platform could not be reached; trying again may help

Foreign exceptions are wrapped where they enter (`raise X(...) from exc`), nowhere else.
"""

from __future__ import annotations


class UpdraftError(Exception):
    """Base class. The message says what happened, to what, and what to do."""


class RefusedError(UpdraftError):
    """A well-formed request that is not allowed, or not possible here and now."""


class NotFoundError(RefusedError):
    """The thing named does not exist, or belongs to another tenant."""


class LimitError(RefusedError):
    """Something is larger than a limit that an operator of the platform has set."""


class QuotaError(RefusedError):
    """A quota of the tenant's namespace has no room now. It may be raised, or other jobs may end."""


class DataError(UpdraftError):
    """The user's data or code cannot be used as it is."""


class IllegalTransitionError(UpdraftError):
    """A job cannot change from this state to that one. A defect of the platform."""


class StaleAttemptError(UpdraftError):
    """An older attempt of a job tried to have an effect. It had none."""


class UnavailableError(UpdraftError):
    """A part of the platform could not be reached. Trying again may help."""
