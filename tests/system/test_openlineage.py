"""What an OpenLineage backend receives of a job, over HTTP, if the stack was started with OPENLINEAGE_URL."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import public_programs
import pytest
import yaml
from referencing import Registry, Resource
from system_helpers import REPOSITORY, pretty, running_stack

from updraft.schemas import JobDetail

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(600)]
SPECIFICATION = {
    "repository": "https://github.com/OpenLineage/OpenLineage",
    "commit": "8f02abfb7a252783b95df79f443edb13959bf52c",
    "folder": "spec",
}
OURS = ("DatasetVersionDatasetFacet", "InputStatisticsInputDatasetFacet", "TagsRunFacet")
SECONDS = 60


class Received(ThreadingHTTPServer):
    """A receiver of events on a free port of this machine."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Receiver)

    def of(self, task: str, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["job"]["name"].endswith(f".{task}") and e["eventType"] == kind]


class Receiver(BaseHTTPRequestHandler):
    server: Received

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/v1/lineage":
            self.server.events.append(json.loads(body))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[Received, JobDetail, list[str]]]:
    """The receiver after a job has ended, the job, and the secrets of the stack."""
    receiver = Received()
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{receiver.server_address[1]}"
    folder = REPOSITORY / "jobs" / "digits-cnn"
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    manifest["params"]["epochs"] = 2
    manifest["export"] |= {"register_as": "digits-lineage", "promote_if": {"val_accuracy": ">= 0"}}
    try:
        with running_stack("openlineage", {"OPENLINEAGE_URL": address}) as stack:
            detail = stack.end(stack.submit(manifest, base=folder))
            assert detail.state == "COMPLETED", pretty(detail)
            deadline = time.monotonic() + SECONDS
            while not receiver.of("promote", "COMPLETE"):
                assert time.monotonic() < deadline, [(e["job"]["name"], e["eventType"]) for e in receiver.events]
                time.sleep(0.5)
            yield receiver, detail, secrets_of(stack.home)
    finally:
        receiver.shutdown()
        receiver.server_close()


def secrets_of(home: Path) -> list[str]:
    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for each in value.values():
                yield from texts(each)
        elif isinstance(value, str):
            yield value

    return [text for text in texts(json.loads((home / "secrets.json").read_text())) if len(text) >= 16]


def test_from_data_to_run_to_version_to_alias(told: tuple[Received, JobDetail, list[str]]) -> None:
    receiver, detail, _ = told
    [staged] = receiver.of("stage_data", "COMPLETE")
    [registered] = receiver.of("register_model", "COMPLETE")
    [promoted] = receiver.of("promote", "COMPLETE")
    [tree] = next(move.evidence["data"] for move in detail.transitions if "data" in move.evidence)
    for event in (staged, registered):
        [data] = event["inputs"]
        assert (data["namespace"], data["name"]) == ("s3://datasets", "digits")
        assert data["facets"]["version"]["datasetVersion"] == tree
        assert data["inputFacets"]["inputStatistics"]["fileCount"] > 0
        tags = {tag["key"]: tag["value"] for tag in event["run"]["facets"]["tags"]["tags"]}
        assert tags["updraft.job"] == detail.id
        assert tags["updraft.mlflow_run"] in str(detail.links.mlflow_run)
    version = ("updraft://models", "default/digits-lineage")
    assert [(each["namespace"], each["name"]) for each in registered["outputs"]] == [version]
    assert registered["outputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    assert [(each["namespace"], each["name"]) for each in promoted["inputs"]] == [version]
    assert [each["name"] for each in promoted["outputs"]] == ["default/digits-lineage@champion"]


def test_no_event_has_a_secret(told: tuple[Received, JobDetail, list[str]]) -> None:
    receiver, _, secrets = told
    sent = json.dumps(receiver.events)
    assert secrets
    assert not [secret for secret in secrets if secret in sent]


def test_each_event_is_as_the_published_schema_says(
    told: tuple[Received, JobDetail, list[str]], tmp_path: Path
) -> None:
    try:
        folder = public_programs.sources(SPECIFICATION, public_programs.repositories_folder(), tmp_path)
    except public_programs.NoSources as exc:
        pytest.skip(f"SKIPPED THE CHECK AGAINST OPENLINEAGE'S SCHEMA: {exc}")
    documents = [json.loads(path.read_text()) for path in (folder / "OpenLineage.json", *folder.glob("facets/*.json"))]
    registry: Registry[Any] = Registry().with_resources(  # type: ignore[call-arg]
        (document["$id"], Resource.from_contents(document)) for document in documents
    )
    event_schema = next(each["$id"] for each in documents if each["$id"].endswith("/OpenLineage.json"))
    facets = {name: each for each in documents for name in OURS if name in each.get("$defs", {})}
    receiver, _, _ = told
    assert len(receiver.events) >= 10
    assert not receiver.of("admit", "COMPLETE")
    for event in receiver.events:
        validator = jsonschema.Draft202012Validator(
            {"$ref": f"{event_schema}#/$defs/RunEvent"},
            registry=registry,
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )
        validator.validate(event)
    checked = set()
    for name, document in facets.items():
        validator = jsonschema.Draft202012Validator({"$ref": f"{document['$id']}#/$defs/{name}"}, registry=registry)
        for facet in facets_named(next(iter(document["properties"])), receiver.events):
            validator.validate(facet)
            checked.add(name)
    assert checked == set(OURS)


def facets_named(key: str, value: Any) -> Iterator[dict[str, Any]]:
    """The facets of this name anywhere in an event."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == key and isinstance(each, dict) and "_schemaURL" in each:
                yield each
            yield from facets_named(key, each)
    elif isinstance(value, list):
        for each in value:
            yield from facets_named(key, each)
