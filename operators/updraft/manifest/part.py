"""Define what every part of the manifest's model is made from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from updraft.manifest import limits

Text = Annotated[str, Field(strict=True, max_length=limits.STRING_CHARACTERS)]


class Part(BaseModel):
    """A part of the manifest. It is frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
