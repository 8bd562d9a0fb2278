"""Updraft: from a manifest to a registered model. The verbs of the CLI, as functions:

    import updraft

    job = updraft.submit("jobs/digits/manifest.yaml")
    print(job.wait().state)

Each call uses the platform that the command uses; `updraft login` shows which. For another one use `updraft.Client`.
`init`, `up`, `down`, `status` and `doctor` are those of the platform on this machine; they take `home=`, the folder of
its state. Importing this module imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from updraft.client import Client as Client
    from updraft.client import Connection as Connection
    from updraft.client import Job as Job
    from updraft.client.default import trainable as trainable

_CLASSES = ("Client", "Connection", "Job")
_VERBS = (
    "submit",
    "train",
    "validate",
    "jobs",
    "job",
    "transitions",
    "logs",
    "metrics",
    "files",
    "download",
    "attempts",
    "requests",
    "halt",
    "resume",
    "cancel",
    "wait",
    "health",
    "secrets",
    "set_secret",
    "delete_secret",
)

# The command's names where they differ; `updraft.checkpoints` is a package.
_ALIASES = {"list": "jobs", "show": "job", "list_checkpoints": "checkpoints"}
_STACK = ("init", "up", "down", "status", "doctor")

__all__ = [*_CLASSES, *_VERBS, *_ALIASES, *_STACK, "trainable"]


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        from updraft import client

        return getattr(client, name)
    if name in _VERBS or name in _ALIASES:
        from updraft.client.default import verb

        return verb(_ALIASES.get(name, name))
    if name == "trainable":
        from updraft.client import default

        return default.trainable
    if name in _STACK:
        from updraft.stack import verbs

        return getattr(verbs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
