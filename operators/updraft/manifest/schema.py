"""Make the manifest's JSON Schema from the model. scripts/docs/reference writes it and the reference page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from updraft.manifest.model import Manifest

SCHEMA_ID = "https://updraft.dev/schemas/manifest.schema.json"


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a manifest, for editors and other programs.

    It is shared between calls: copy it before you change it.
    """
    schema = Manifest.model_json_schema(by_alias=True, mode="validation")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    one_image = [
        {"required": ["framework"], "properties": {"framework": {"not": {"type": "null"}}, "image": {"type": "null"}}},
        {"required": ["image"], "properties": {"image": {"not": {"type": "null"}}, "framework": {"type": "null"}}},
    ]
    own = {
        "required": schema.pop("required"),
        "properties": {"task": {"type": "null"}},
        "oneOf": one_image,
    }
    by_task = {"required": ["task", "data"], "properties": {"task": {"not": {"type": "null"}}}}
    data = schema["properties"]["data"]
    listed = {key: data.pop(key) for key in ("type", "items", "maxItems") if key in data}
    data["anyOf"] = [listed, {"type": "string", "description": "With task: the source alone"}]
    for part in (schema, *schema["$defs"].values()):
        for field in part["properties"].values():
            if isinstance(field.get("default"), dict) and "$ref" in field:
                del field["default"]  # the fields of the part have defaults of their own
    return {**head, **schema, "title": "Updraft manifest", "anyOf": [own, by_task]}


def leaf(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's schema with its reference resolved and `X | null` made X."""
    flat = {key: value for key, value in node.items() if key not in ("anyOf", "$ref")}
    for inner in node.get("anyOf", []):
        if inner.get("type") != "null":
            flat = {**leaf(inner, definitions), **flat}
    if "$ref" in node:
        flat = {**definitions[node["$ref"].rpartition("/")[2]], **flat}
    return flat
