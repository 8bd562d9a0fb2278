"""Offer the client's methods as functions of the module `updraft`, over one client that is made at the first call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from updraft.client.client import Client
from updraft.client.train import Trainable

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def default_client() -> Client:
    """Return the client of the platform that `load_config` finds; the same one at every call."""
    return Client()


def trainable(**fields: Any) -> Callable[[Callable[P, R]], Trainable[P, R]]:
    """Make a function trainable on the platform; `fields` are fields of its job's manifest, as for `Client.train`.

    Example:
        @updraft.trainable(resources={"cpus": 2})
        def fit(epochs: int = 3) -> None:
            import torch
            ...

        fit(epochs=1)                 # here
        job = fit.submit(epochs=30)   # on the platform
    """
    return lambda function: Trainable(function, fields, default_client)


def verb(name: str) -> Callable[..., Any]:
    """Return the client's method `name` as a function. The client is made at the first call, not here."""
    method = getattr(Client, name)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(default_client(), name)(*args, **kwargs)

    signature = inspect.signature(method)
    without_self = list(signature.parameters.values())[1:]
    call.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]
    return call
