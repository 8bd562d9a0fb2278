"""Define the manifest of a training job: its model, the functions that read it, its errors.

Pure: standard library, pydantic and PyYAML. Used by the CLI, the DAGs, the plugin's routes and the operators.
"""

from __future__ import annotations

from updraft.manifest.command import param_text, render_command
from updraft.manifest.errors import FieldError, ManifestError
from updraft.manifest.form import FormField, form_fields, from_form, read_form
from updraft.manifest.model import Data, Export, Failure, Manifest, Resources, Secret
from updraft.manifest.reading import JobFile, Loaded, load, load_any, load_jobs, parse, parse_any, with_files
from updraft.manifest.revision import with_params
from updraft.manifest.rules import Promotion, PromotionRule, decide
from updraft.manifest.schema import json_schema
from updraft.manifest.sizes import SIZES
from updraft.manifest.sources import Source, parse_source
from updraft.manifest.submission import (
    export_image_of,
    image_of,
    local_sources,
    named_secrets,
    refuse_unsupported,
    with_trees,
)
from updraft.manifest.values import reserved_env_names

__all__ = [
    "SIZES",
    "Data",
    "Export",
    "Failure",
    "FieldError",
    "FormField",
    "JobFile",
    "Loaded",
    "Manifest",
    "ManifestError",
    "Promotion",
    "PromotionRule",
    "Resources",
    "Secret",
    "Source",
    "decide",
    "export_image_of",
    "form_fields",
    "from_form",
    "image_of",
    "json_schema",
    "load",
    "load_any",
    "load_jobs",
    "local_sources",
    "named_secrets",
    "param_text",
    "parse",
    "parse_any",
    "parse_source",
    "read_form",
    "refuse_unsupported",
    "render_command",
    "reserved_env_names",
    "with_files",
    "with_params",
    "with_trees",
]
