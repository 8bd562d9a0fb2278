"""/validate and /manifest.schema.json: check a manifest, and return its schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from updraft import tenants
from updraft.api.bodies import manifest_body
from updraft.api.depends import PartsDep
from updraft.api.errors import manifest_fields
from updraft.api.parts import Parts
from updraft.manifest import (
    Loaded,
    Manifest,
    ManifestError,
    export_image_of,
    image_of,
    json_schema,
    parse_any,
)
from updraft.manifest.pod_rules import judge
from updraft.manifest.submission import unknown_notifiers
from updraft.schemas import Validation

router = APIRouter(tags=["manifests"])


@router.post(
    "/validate",
    summary="Every wrong field of a manifest, and what this platform does not offer",
    openapi_extra=manifest_body.documented,
)
def validate(parts: PartsDep, manifest: Annotated[dict[str, Any], Depends(manifest_body)]) -> Validation:
    """Validate a manifest without looking at the client's files. Stores nothing."""
    try:
        loaded = read(manifest, parts)
    except ManifestError as exc:
        return Validation(valid=False, errors=tuple(manifest_fields(exc)))
    wrong = refusals(loaded.manifest, parts)
    return Validation(
        valid=wrong is None, errors=tuple(manifest_fields(wrong)) if wrong else (), warnings=loaded.warnings
    )


def read(manifest: Mapping[str, Any], parts: Parts) -> Loaded:
    """Return the manifest of a request with the defaults of its tenant, as it would be run. Raises ManifestError."""
    loaded = parse_any(manifest)
    tenancy = parts.deadline.call("ledger", parts.tenancy)
    return replace(loaded, manifest=tenants.completed(loaded.manifest, tenancy))


def refusals(manifest: Manifest, parts: Parts) -> ManifestError | None:
    """Return what is well-formed but not possible on this platform, all of it at once."""
    settings = parts.settings
    fields = tenants.refusals(manifest, parts.deadline.call("ledger", parts.tenancy))
    fields += judge(manifest.pod, settings.pod_policy_of(manifest.tenant))
    fields += unknown_notifiers(manifest, [*settings.notifiers])
    try:
        image_of(manifest, settings.framework_images)
        if manifest.export is not None:
            export_image_of(manifest, settings.framework_images, settings.sidecar_image)
    except ManifestError as exc:
        fields += exc.fields
    return ManifestError(fields) if fields else None


@router.get("/manifest.schema.json", summary="JSON Schema of the manifest")
def schema() -> dict[str, Any]:
    return dict(json_schema())
