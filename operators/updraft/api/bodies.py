"""Read JSON bodies of requests after the guards have let the caller in, with limits on size, shape and time.

FastAPI reads and parses a body that is a route's parameter before any dependency runs, so anybody could send one. A
route takes `Depends(JsonBody(...))` instead: dependencies run in order, and the router's guards come first. A route
that waits for its turn before it reads takes a `TextBody` and calls its `read` then.
"""

from __future__ import annotations

from typing import Any, Generic, Optional, TypeVar

import anyio
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from updraft.schemas import PossibleBody, PriorityBody, ResumeBody, RollBackBody, ScaleBody, SecretBody, TreeBody
from updraft_learner.trees import DEFAULT_LIMIT_FILES

SECONDS = 60.0
MANIFEST_BYTES = 4 * 1024 * 1024  # twice a manifest's limit, because JSON escapes characters
MANIFEST_VALUES = 200_000  # four times a manifest's limit, because commas in texts are counted too
PRIORITY_BYTES = 200
ROLL_BACK_BYTES = 16 * 1024
SECRET_BYTES = 2 * 1024 * 1024
SECRET_VALUES = 20_000
TREE_BYTES = 32 * 1024 * 1024  # twice the size of a tree of 100,000 files
TREE_VALUES = 5 * DEFAULT_LIMIT_FILES + 10  # each file has a brace and four commas

REF = "#/components/schemas/{model}"
T = TypeVar("T")


class TextBody:
    """A dependency that reads the body as JSON text without parsing it; `model` only documents it.

    Raises HTTPException 408 (not all of it came within `seconds`), 413 (too large) or 415 (not JSON). `limit_values`
    limits the number of values in the document before it is parsed: `[],[],[]` takes 30 times its size in memory.
    """

    def __init__(
        self,
        model: type[Any],
        *,
        limit_bytes: int,
        limit_values: int,
        optional: bool = False,
        seconds: float = SECONDS,
    ) -> None:
        self.limit_bytes, self.limit_values = limit_bytes, limit_values
        self.optional, self.seconds = optional, seconds
        schema: dict[str, Any] = {"type": "object"} if model is dict else {"$ref": REF.format(model=model.__name__)}
        content = {"application/json": {"schema": {"anyOf": [schema, {"type": "null"}]} if optional else schema}}
        self.documented: dict[str, Any] = {"requestBody": {"required": not optional, "content": content}}

    async def read(self, request: Request) -> bytes:
        text = await self._read(request)
        if text and request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the body must be JSON, with the header Content-Type: application/json")
        if sum(text.count(mark) for mark in (b",", b"[", b"{")) > self.limit_values:
            raise HTTPException(413, f"the body holds more than {self.limit_values} values (commas and brackets)")
        return text

    async def _read(self, request: Request) -> bytes:
        too_large = HTTPException(413, f"the body is larger than the limit of {self.limit_bytes} bytes")
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and (len(announced) > 15 or int(announced) > self.limit_bytes):
            raise too_large
        text = bytearray()
        try:
            with anyio.fail_after(self.seconds):
                async for chunk in request.stream():
                    if len(text) + len(chunk) > self.limit_bytes:
                        raise too_large
                    text += chunk
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {self.seconds:g} s; send it again") from None
        return bytes(text)


class JsonBody(TextBody, Generic[T]):
    """A dependency that returns the body as a `T`. Raises as `TextBody` does, and RequestValidationError if the body
    does not have this shape."""

    def __init__(
        self,
        kind: type[T],
        *,
        limit_bytes: int,
        limit_values: int,
        optional: bool = False,
        seconds: float = SECONDS,
    ) -> None:
        super().__init__(kind, limit_bytes=limit_bytes, limit_values=limit_values, optional=optional, seconds=seconds)
        wanted: Any = Optional[kind] if optional else kind  # noqa: UP045 - `|` does not accept type variables
        self._adapter: TypeAdapter[Any] = TypeAdapter(wanted)

    async def __call__(self, request: Request) -> T:
        text = await self.read(request)
        if self.optional and not text:
            text = b"null"
        try:
            return self._adapter.validate_json(text)  # type: ignore[no-any-return]
        except ValidationError as exc:
            errors = exc.errors(include_url=False, include_input=False, include_context=False)
            raise RequestValidationError([{**error, "loc": ("body", *error["loc"])} for error in errors]) from None


manifest_body = JsonBody(dict, limit_bytes=MANIFEST_BYTES, limit_values=MANIFEST_VALUES)
possible_body = JsonBody(PossibleBody, limit_bytes=MANIFEST_BYTES, limit_values=MANIFEST_VALUES)
priority_body = JsonBody(PriorityBody, limit_bytes=PRIORITY_BYTES, limit_values=10)
scale_body = JsonBody(ScaleBody, limit_bytes=PRIORITY_BYTES, limit_values=10)
resume_body = JsonBody(ResumeBody, limit_bytes=MANIFEST_BYTES, limit_values=MANIFEST_VALUES, optional=True)
roll_back_body = JsonBody(RollBackBody, limit_bytes=ROLL_BACK_BYTES, limit_values=100)
secret_body = JsonBody(SecretBody, limit_bytes=SECRET_BYTES, limit_values=SECRET_VALUES)
tree_body = TextBody(TreeBody, limit_bytes=TREE_BYTES, limit_values=TREE_VALUES)


def schemas() -> dict[str, Any]:
    """Return the JSON Schemas of all bodies, as the OpenAPI document holds them: FastAPI does not know them."""
    bodies = (PossibleBody, PriorityBody, ResumeBody, RollBackBody, ScaleBody, SecretBody, TreeBody)
    models = [(model, "validation") for model in bodies]
    return dict(models_json_schema(models, ref_template=REF)[1]["$defs"])  # type: ignore[arg-type]
