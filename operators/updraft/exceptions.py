"""Every error that Updraft raises on purpose.

    UpdraftError                 a message that a person can act on
    ├── ManifestError            the manifest is wrong; carries every wrong field (updraft.manifest.errors)
    ├── RefusedError             well-formed, but not allowed or not possible here and now
    │   ├── NotFoundError        the thing named does not exist, or is another tenant's
    │   ├── LimitError           larger than a limit that an operator has set
    │   └── QuotaError           no room in a quota of the cluster now; it may be raised, or others may leave
    ├── DataError                the user's data or code cannot be used as it is
    ├── IllegalTransitionError   a job cannot go from this state to that one (a defect of ours)
    ├── StaleAttemptError        an older attempt tried to have an effect; it was refused
    └── UnavailableError         a part of the platform could not be reached; trying again may help

Foreign exceptions are wrapped where they enter (`raise X(...) from exc`), nowhere else.
"""

from __future__ import annotations


class UpdraftError(Exception):
    """A message that a person can act on."""


class RefusedError(UpdraftError):
    """Well-formed, but not allowed or not possible here and now."""


class NotFoundError(RefusedError):
    """The thing named does not exist, or belongs to another tenant."""


class LimitError(RefusedError):
    """Larger than a limit that an operator has set."""


class QuotaError(RefusedError):
    """No room in a quota of the tenant's namespace now; it may be raised, or others may leave."""


class DataError(UpdraftError):
    """The user's data or code cannot be used as it is."""


class IllegalTransitionError(UpdraftError):
    """A job cannot go from this state to that one."""


class StaleAttemptError(UpdraftError):
    """An older attempt tried to have an effect; it was refused."""


class UnavailableError(UpdraftError):
    """A part of the platform could not be reached; trying again may help."""
