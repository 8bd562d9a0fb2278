"""The manifest and the policy that docs/howto/pods.md shows."""

from __future__ import annotations

import json
from typing import Any

import pages
import pytest
import yaml

from updraft.manifest import parse
from updraft.manifest.pod import Pod
from updraft.manifest.pod_rules import judge
from updraft.settings import Settings

PAGE = "docs/howto/pods.md"


def shown(language: str) -> str:
    (block,) = [block for block in pages.blocks(PAGE) if block.language == language]
    return block.text


@pytest.fixture
def settings() -> Settings:
    needed = {"LEDGER_URL": "sqlite://", "S3_ENDPOINT": "http://s3", "MLFLOW_URI": "http://m", "CREDENTIALS_FILE": "c"}
    given: dict[str, Any] = {
        **needed,
        "TENANTS": "vision,speech",
        "TRUSTED_TENANTS": "true",
        "POD_POLICY": shown("json"),
    }
    return Settings.from_environment({f"UPDRAFT_{name}": value for name, value in given.items()})


def test_the_policy_of_the_page_allows_the_manifest_of_the_page(settings: Settings) -> None:
    pod = parse(yaml.safe_load(shown("yaml"))).pod
    assert judge(pod, settings.pod_policy_of("vision")) == []
    # The policy of other tenants allows the node selector and the scratch volume.
    assert {error.path.split(".")[1].partition("[")[0] for error in judge(pod, settings.pod_policy_of("speech"))} == {
        "tolerations", "volumes", "service_account", "labels", "annotations", "image_pull_secrets"
    }  # fmt: skip


def test_the_refusal_is_the_one_that_the_page_shows(settings: Settings) -> None:
    (error,) = judge(Pod(service_account="admin"), settings.pod_policy_of("vision"))
    assert error.text == " ".join(shown("text").split())


def test_the_page_shows_every_field_of_the_policy() -> None:
    from updraft.pod_policy import PodPolicy

    assert set(json.loads(shown("json"))["vision"]) == set(PodPolicy.model_fields)
    assert set(yaml.safe_load(shown("yaml"))["pod"]) == set(Pod.model_fields)
