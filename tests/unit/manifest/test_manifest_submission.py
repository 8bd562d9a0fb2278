"""What is decided at submission."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import (
    ManifestError,
    Source,
    image_of,
    local_sources,
    parse,
    parse_source,
    refuse_unsupported,
    with_trees,
)

SMALL: dict[str, Any] = {"name": "a", "framework": {"name": "pytorch"}, "command": "true"}
IMAGES = {
    "pytorch": "updraft/learner-pytorch:2.15",
    "pytorch:2.14": "updraft/old@sha256:00",
    "shell": "updraft/shell:1",
}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"tenant": "vison"}, "tenant"),
    ],
)
def test_what_this_version_does_not_act_on_is_refused_by_name(changes: dict[str, Any], path: str) -> None:
    manifest = parse({**SMALL, **changes})
    (error,) = refuse_unsupported(manifest, tenants=("default", "vision"))
    assert error.path == path
    assert error.allowed
    assert refuse_unsupported(parse(manifest.canonical()), tenants=("default", "vision")) == (error,)


def test_what_is_acted_on_is_not_refused() -> None:
    budget = {"infra_attempts": 0, "app_attempts": 3, "max_runtime": "1h", "no_progress": "5m"}
    keep = {"keep": {"every_nth": 2}}
    raw = {
        **SMALL,
        "budget": budget,
        "checkpoints": keep,
        "schedule": {"cron": "@daily"},
        "export": {"register_as": "m"},
    }
    assert refuse_unsupported(parse(raw)) == ()


def test_a_misspelt_tenant_is_answered_with_the_nearest() -> None:
    (error,) = refuse_unsupported(parse({**SMALL, "tenant": "vison"}), tenants=("default", "vision"))
    assert (
        error.text == "tenant: 'vison' is not a tenant of this platform; write one of default, vision, such as vision"
    )


@pytest.mark.parametrize(
    ("framework", "image"),
    [
        ({"name": "pytorch"}, "updraft/learner-pytorch:2.15"),
        ({"name": "pytorch", "version": "2.15"}, "updraft/learner-pytorch:2.15"),
        ({"name": "pytorch", "version": "2"}, "updraft/learner-pytorch:2.15"),
        ({"name": "pytorch", "version": "2.14"}, "updraft/old@sha256:00"),
        ({"name": "pytorch", "version": ">=2.10,<3"}, "updraft/learner-pytorch:2.15"),
        ({"name": "pytorch", "version": "~=2.15"}, "updraft/learner-pytorch:2.15"),
    ],
)
def test_the_image_of_a_framework(framework: dict[str, str], image: str) -> None:
    assert image_of(parse({**SMALL, "framework": framework}), IMAGES) == image


def test_an_own_image_is_taken_as_it_is() -> None:
    assert image_of(parse({"name": "a", "image": "x/y:1", "command": "c"}), IMAGES) == "x/y:1"


@pytest.mark.parametrize(
    ("framework", "message"),
    [
        ({"name": "pytroch"}, "framework.name: 'pytroch' has no image on this platform; write one of pytorch, shell"),
        ({"name": "pytorch", "version": "2.1"}, "framework.version: '2.1' is not a version of pytorch"),
        ({"name": "pytorch", "version": ">=3"}, "framework.version: '>=3' is not a version of pytorch"),
        ({"name": "custom"}, "or give image in place of framework"),
    ],
)
def test_a_framework_without_an_image_lists_those_that_have_one(framework: dict[str, str], message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        image_of(parse({**SMALL, "framework": framework}), IMAGES)
    assert message in str(caught.value)


def test_local_sources_are_replaced_by_trees() -> None:
    raw = {**SMALL, "code": "src", "data": [{"source": "s3://aa/", "as": "x"}, {"source": "data"}]}
    manifest = parse(raw)
    assert local_sources(manifest) == {"code": "src", "data[1].source": "data"}
    stored = with_trees(manifest, {"code": "a" * 64, "data[1].source": "b" * 64})
    assert (stored.code, stored.data[1].source) == ("tree:" + "a" * 64, "tree:" + "b" * 64)
    assert local_sources(stored) == {}


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("s3://bb/p/x.zip", Source("s3", bucket="bb", key="p/x.zip")),
        ("src/train", Source("local", path="src/train")),
        ("tree:" + "0" * 64, Source("tree", tree="0" * 64)),
        (
            "git+https://h.org/a/b.git@0123abc#subdirectory=x/y",
            Source("git", url="https://h.org/a/b.git", ref="0123abc", subfolder="x/y"),
        ),
        ("git+ssh://git@h.org/a/b@v1", Source("git", url="ssh://git@h.org/a/b", ref="v1")),
        ("git+file:///srv/a@0123abc", Source("git", url="file:///srv/a", ref="0123abc")),
    ],
)  # fmt: skip
def test_sources_are_taken_apart(text: str, source: Source) -> None:
    assert parse_source(text, git=True) == source
