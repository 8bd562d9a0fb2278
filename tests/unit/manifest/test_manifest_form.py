"""The trigger form and the reference page: made from the model, and true to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from updraft.manifest import SIZES, ManifestError, form_fields, from_form, json_schema, parse, read_form
from updraft.manifest.schema import reference_page, schema_text
from updraft.manifest.sizes import SizeName
from updraft.manifest.submission import UNSUPPORTED

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
BASE = parse(
    {
        "name": "digits",
        "framework": {"name": "pytorch"},
        "command": "python train.py --epochs ${params.epochs}",
        "params": {"epochs": 10, "amp": False},
        "env": {"A": "1"},
        "resources": {"learners": 2},
        "data": [{"source": "s3://datasets/digits/"}],
        "checkpoints": {"every": "60s"},
        "export": {"register_as": "digits", "promote_if": {"acc": ">= champion"}},
        "schedule": {"cron": "@daily"},
    }
)
SIZED = parse({"name": "a", "image": "b", "command": "c", "resources": {"size": "large"}})


def defaults(base: Any = None) -> dict[str, Any]:
    return {name: field.default for name, field in form_fields(base).items()}


def test_an_empty_form_has_no_defaults_that_could_hide_what_the_box_says() -> None:
    assert {name: value for name, value in defaults().items() if value is not None} == {"manifest": {}}


def test_the_form_of_a_manifest_says_everything_once() -> None:
    values = defaults(BASE)
    assert (values["name"], values["resources_learners"], values["checkpoints_every"]) == ("digits", 2, "1m")
    assert (values["params_epochs"], values["params_amp"]) == (10, False)
    assert values["manifest"] == {
        "env": {"A": "1"},
        "data": [{"source": "s3://datasets/digits/"}],
        "export": {"promote_if": {"acc": ">= champion"}},
        "schedule": {"cron": "@daily"},
    }


@pytest.mark.parametrize("base", [BASE, SIZED])
def test_an_untouched_form_means_its_manifest(base: Any) -> None:
    assert from_form(defaults(base), base) == base
    assert from_form(defaults(base)) == base
    assert from_form(defaults(base), defaults=defaults(base)) == base


@pytest.mark.parametrize("base", [None, BASE, SIZED])
def test_every_default_satisfies_its_own_schema(base: Any) -> None:
    for field in form_fields(base).values():
        jsonschema.Draft202012Validator.check_schema(field.schema)
        jsonschema.validate(field.default, field.schema)
        assert "null" in field.schema["type"]
        assert field.schema["description"]
        assert field.schema["title"]
    sections = {field.section for field in form_fields(base).values()}
    assert sections - {"Params"} == {"Job", "Resources", "Checkpoints", "Evaluate", "Budget", "Export"}


def test_no_field_of_the_form_is_one_that_would_be_refused() -> None:
    names = {path.replace(".", "_") for path in UNSUPPORTED}
    assert not [name for name in form_fields(BASE) if name in names or name.startswith("elastic")]


def test_a_field_wins_over_the_box_and_an_empty_one_does_not() -> None:
    box = BASE.canonical()
    manifest = from_form({"manifest": box, "resources_learners": 4, "name": None, "tenant": "", "submitted_by": "ann"})
    assert (manifest.name, manifest.resources.learners, manifest.tenant) == ("digits", 4, "default")


def test_the_box_wins_over_a_default_that_nobody_touched() -> None:
    conf = {**defaults(BASE), "manifest": {**defaults(BASE)["manifest"], "resources": {"learners": 7}}}
    assert from_form(conf, BASE).resources.learners == 7
    assert from_form({**conf, "resources_learners": 3}, BASE).resources.learners == 3


def test_a_chosen_size_replaces_values_that_nobody_touched() -> None:
    conf = {**defaults(BASE), "resources_size": "large"}
    assert from_form(conf, BASE).resources.cpus == 4
    with pytest.raises(ManifestError, match=r"resources.cpus: 3.5 is not what size large has"):
        from_form({**conf, "resources_cpus": 3.5}, BASE)
    sized = from_form({**defaults(SIZED), "resources_cpus": 3.5}, SIZED).resources
    assert (sized.size, sized.cpus, sized.memory_bytes) == (None, 3.5, 8 * 1024**3)


def test_the_box_may_hold_text_or_an_ffdl_manifest() -> None:
    assert from_form({"manifest": "name: a\nimage: b\ncommand: c\n"}).name == "a"
    ffdl = {"name": "Old Job", "framework": {"name": "pytorch", "version": "latest", "command": "python x.py"}}
    loaded = read_form({"manifest": ffdl})
    assert loaded.manifest.name == "old-job"
    assert any("framework.version" in warning for warning in loaded.warnings)


def test_credentials_are_refused_in_the_form() -> None:
    connection = {"auth_url": "https://s3.example.org", "user_name": "hunter", "password": "hunter2"}
    store = {"id": "a", "type": "mount_cos", "training_data": {"container": "bucket"}, "connection": connection}
    ffdl = {"name": "a", "framework": {"name": "pytorch", "command": "c"}, "memory": "1GB", "data_stores": [store]}
    with pytest.raises(ManifestError, match="submit this manifest with the CLI") as caught:
        from_form({"manifest": ffdl})
    assert "hunter" not in str(caught.value)


def test_wrong_fields_of_the_form_and_of_the_manifest_are_named_together() -> None:
    with pytest.raises(ManifestError) as caught:
        from_form({**defaults(BASE), "resource_cpus": 2, "resources_memory": "16 Gigs"}, BASE)
    assert str(caught.value) == (
        "form: 2 fields are wrong\n"
        "  resource_cpus: no such field; did you mean 'resources_cpus'?\n"
        "  resources.memory: '16 Gigs' is not an amount of memory; write a number and a unit, such as 16GiB"
    )


def test_an_empty_form_asks_for_what_is_needed() -> None:
    with pytest.raises(ManifestError) as caught:
        from_form(defaults())
    assert {field.path for field in caught.value.fields} == {"name", "command", "framework"}


def test_the_sizes_of_the_schema_are_those_of_the_table() -> None:
    assert list(SizeName.__args__) == list(SIZES)  # type: ignore[attr-defined]


def test_the_published_schema_and_page_are_those_of_the_model() -> None:
    command = "run: python -m updraft.manifest docs/reference"
    assert (REFERENCE / "manifest.schema.json").read_text(encoding="utf-8") == schema_text(), command
    assert (REFERENCE / "manifest.md").read_text(encoding="utf-8") == reference_page(), command


def test_every_field_of_the_schema_is_described() -> None:
    schema = json_schema()
    for part in (schema, *schema["$defs"].values()):
        assert part["description"]
        for name, field in part["properties"].items():
            assert field.get("description"), name
