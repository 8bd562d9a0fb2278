"""The reference page of the plugin's routes, made from the routes themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from updraft.api.access import Caller, Guards
from updraft.api.app import create_app, document
from updraft.api.parts import platform_parts
from updraft.settings import Settings

HEAD = """# The plugin's routes

<!-- Made by `make reference`; change the routes, not this page. -->

The plugin adds these routes to Airflow's api-server, below `/updraft`. The CLI and the Python API are clients of them
and of Airflow's own REST API. The OpenAPI document is at `/updraft/api/v1/openapi.json`.

**Log-in.** Every route needs a token of Airflow (`POST /auth/token`), as `Authorization: Bearer`, or the cookie of
Airflow's UI. Reading needs the right to see runs of a tenant's DAG `train_model`, writing (everything but GET and
`validate`) the right to start them; otherwise 403.

**Tenants.** Where the platform has one tenant, it is everybody's. Where it has several, a user sees those that the file
of tenants gives to the user, or that the user's teams in Airflow name. Another tenant's job answers 404, exactly as one
that does not exist.
Each tenant has its own DAGs of Airflow for starting, halting, resuming and cancelling, with Airflow's rights on them.

**Errors** are `{"error": {"message": text, "fields": [{"field": path, "message": text}]}}` with 401 (no valid token),
403, 404, 408 (the body came too slowly), 409 (not possible now), 413 (over a limit), 415 (not JSON),
422 (the content is wrong) or 503 (a part of the platform,
named in the message, did not answer within 5 s, for `/trees` 120 s). Values of secrets are in no answer and no log.

**Bounds.** Tests hold hostile requests to 2 s of CPU and 100 MB of the api-server. A body has at most 4 MiB
(manifests), 2 MiB (secrets) or 32 MiB (trees). A tree has at most 100,000 files; the largest takes 1 s and up to
300 MB, the most where its paths are long and not ASCII. Of one user one tree is read and four blobs are stored at
once; further ones wait before their body is read.

**Starting a job** is Airflow's: `POST /api/v2/dags/train_model/dagRuns` (`TENANT.train_model` for a tenant other than
`default`) with
`{"dag_run_id": JOB, "logical_date": null, "conf": {"manifest": {...}}}`. The run's id is the job's id; the same id
again is 409. Code and data folders are uploaded first: `POST trees/missing`, `PUT blobs/...` for each that is missing,
`PUT trees/...`; the manifest then names them as `tree:SHA256`. A manifest in `jobs/` has a DAG of its own, whose form
is filled in with it: with `"conf": {"manifest": {...}}` it runs that manifest instead, if it has a name, else its own
with these values.

**Pages.** `/updraft/jobs` and `/updraft/jobs/JOB` are the same facts as HTML, shown in Airflow's navigation as
"Updraft jobs".
"""


def page() -> str:
    """Return docs/reference/api.md."""
    described = _app_document()
    schemas = described["components"]["schemas"]
    parts = [HEAD, "## Routes\n"]
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            parts += _route(f"{method.upper()} {path}", route)
    parts.append("## Answers\n")
    for name, schema in sorted(schemas.items()):
        if name not in ("HTTPValidationError", "ValidationError"):
            parts += _schema(name, schema)
    return "\n".join(parts)


def _app_document() -> dict[str, Any]:
    def nobody() -> Caller:
        raise AssertionError("nothing is asked of this application")

    example = Settings(ledger_url="sqlite:////x", s3_endpoint="x", mlflow_uri="x", credentials_file=Path("x"))
    app = create_app(platform_parts(example), Guards(nobody, nobody), lambda _caller, _tenant: False)
    return document(app)


def _route(title: str, route: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {title}\n\n{route['summary']}. {route.get('description', '')}".rstrip() + "\n"
    parameters = [p for p in route.get("parameters", ()) if p["in"] == "query"]
    if parameters:
        rows = [f"| `{p['name']}` | {p['description']} | {_default(p['schema'])} |" for p in parameters]
        yield "\n".join(["| parameter | | default |", "|---|---|---|", *rows]) + "\n"
    body = route.get("requestBody", {}).get("content", {}).get("application/json")
    answer: Mapping[str, Any] = next((r for code, r in route["responses"].items() if code.startswith("2")), {})
    shape = answer.get("content", {}).get("application/json", {}).get("schema")
    words = [f"Body: {_type(body['schema'])}."] if body else []
    words += [f"Answer: {_type(shape)}."] if shape else []
    if words:
        yield " ".join(words) + "\n"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if schema.get("description"):
        yield " ".join(schema["description"].split()) + "\n"
    rows = [
        f"| `{field}` | {_type(kind)} | {kind.get('description', '')} |"
        for field, kind in schema.get("properties", {}).items()
    ]
    yield "\n".join(["| field | type | |", "|---|---|---|", *rows]) + "\n"


def _default(schema: Mapping[str, Any]) -> str:
    return f"`{schema['default']}`" if schema.get("default") is not None else ""


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping of text to {_type(schema['additionalProperties'])}"
    names = {"string": "text", "object": "JSON object", "null": "null"}
    kind = str(schema.get("format") or schema.get("type") or "JSON")
    return names.get(kind, kind)
