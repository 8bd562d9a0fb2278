"""The verbs as functions of the module `updraft`, over one client that is made at the first call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from updraft.client.client import Client


@functools.cache
def default_client() -> Client:
    return Client()


def verb(name: str) -> Callable[..., Any]:
    """The method of that name, bound at the call, so that importing it connects to nothing."""
    method = getattr(Client, name)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(default_client(), name)(*args, **kwargs)

    return call
