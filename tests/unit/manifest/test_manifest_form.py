"""The trigger form and the schema: made from the model, and true to it."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest

from updraft.manifest import SIZES, ManifestError, form_fields, from_form, json_schema, parse, read_form
from updraft.manifest.sizes import SizeName

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
WITH_NUMBERS = parse(
    {
        "name": "numbers",
        "image": "b",
        "command": "c",
        "params": {"epochs": 10, "rate": 2e-4, "note": "", "optimizer": "adam"},
    }
)
SIZED = parse({"name": "a", "image": "b", "command": "c", "resources": {"size": "large"}})


def defaults(base: Any = None) -> dict[str, Any]:
    return {name: field.default for name, field in form_fields(base).items()}


def test_an_empty_form_has_no_defaults_that_could_hide_what_the_box_says() -> None:
    assert {name: value for name, value in defaults().items() if value is not None} == {"manifest": {}, "name": ""}


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


@pytest.mark.parametrize("base", [BASE, SIZED, WITH_NUMBERS])
def test_an_untouched_form_means_its_manifest(base: Any) -> None:
    assert from_form(defaults(base), base) == base
    assert from_form(defaults(base)) == base
    assert from_form(defaults(base), defaults=defaults(base)) == base


@pytest.mark.parametrize("base", [None, BASE, SIZED])
def test_every_default_satisfies_its_own_schema(base: Any) -> None:
    for field in form_fields(base).values():
        jsonschema.Draft202012Validator.check_schema(field.schema)
        jsonschema.validate(field.default, field.schema)
        assert field.schema["description"]
        assert field.schema["title"]
    sections = {field.section for field in form_fields(base).values()} - {"Job", None}
    assert sections == {"Resources", "Checkpoints", "Evaluate", "Budget", "Export"}


def test_what_people_change_stands_first_in_the_part_that_is_open_from_the_start() -> None:
    def opened(base: Any) -> list[str]:
        fields = form_fields(base)
        names = [name for name, field in fields.items() if field.section is None]
        assert list(fields)[: len(names) - 1] == names[:-1] or base is not None
        return names

    assert opened(WITH_NUMBERS) == ["params_epochs", "params_rate", "params_note", "params_optimizer"]
    assert list(form_fields(WITH_NUMBERS))[:4] == opened(WITH_NUMBERS)
    assert opened(None)[:3] == ["name", "description", "tenant"]
    assert "manifest" in opened(None)
    assert {field.section for name, field in form_fields(WITH_NUMBERS).items() if name in ("name", "manifest")} == {
        "Job"
    }


def test_only_what_a_run_needs_must_be_filled_in() -> None:
    """Airflow's form asks for a value where the type does not include null."""

    def needed(base: Any) -> set[str]:
        return {name for name, field in form_fields(base).items() if "null" not in field.schema["type"]}

    assert needed(None) == {"name"}
    assert needed(WITH_NUMBERS) == {"name", "params_epochs", "params_rate", "params_optimizer"}


def test_a_field_of_a_number_takes_what_a_text_field_gives() -> None:
    """Airflow's own number field drops the `e` of 1e-3."""
    schemas = {name: field.schema for name, field in form_fields(WITH_NUMBERS).items()}
    for name, text, value in (
        ("rate", "1e-3", 0.001),
        ("rate", ".5E+2", 50.0),
        ("rate", 0.25, 0.25),
        ("epochs", "20", 20),
        ("epochs", 30, 30),
    ):
        jsonschema.validate(text, schemas[f"params_{name}"])
        # The first type is the field that Airflow shows; without examples it would be a box of six lines.
        assert schemas[f"params_{name}"]["type"][0] == "string"
        assert schemas[f"params_{name}"]["examples"]
        conf = {**defaults(WITH_NUMBERS), f"params_{name}": text}
        params = from_form(conf, defaults=defaults(WITH_NUMBERS)).params
        assert params == {**WITH_NUMBERS.params, name: value}
        assert type(params[name]) is type(value)


@pytest.mark.parametrize(("name", "text", "kind"), [("rate", "0,5", "a number"), ("epochs", "1e3", "a whole number")])
def test_a_text_that_is_no_number_is_refused_by_the_form_and_by_the_run(name: str, text: str, kind: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=re.escape(repr(text))):
        jsonschema.validate(text, form_fields(WITH_NUMBERS)[f"params_{name}"].schema)
    conf = {**defaults(WITH_NUMBERS), f"params_{name}": text, "resources_memory": "16 Gigs"}
    with pytest.raises(ManifestError, match=rf"2 fields(.|\n)*params.{name}: '{text}' is of another type(.|\n)*{kind}"):
        from_form(conf, defaults=defaults(WITH_NUMBERS))


def test_a_choice_that_is_empty_is_shown_as_not_set() -> None:
    for field in form_fields().values():
        if None in field.schema.get("enum", ()):
            assert field.schema["values_display"]["null"] == "not set"


def test_a_field_wins_over_the_box_and_an_empty_one_does_not() -> None:
    box = BASE.canonical()
    manifest = from_form({"manifest": box, "resources_learners": 4, "name": None, "tenant": "", "submitted_by": "ann"})
    assert (manifest.name, manifest.resources.learners, manifest.tenant) == ("digits", 4, "default")


def test_the_box_wins_over_a_default_that_nobody_touched() -> None:
    conf = {**defaults(BASE), "manifest": {**defaults(BASE)["manifest"], "resources": {"learners": 7}}}
    assert from_form(conf, BASE).resources.learners == 7
    assert from_form({**conf, "resources_learners": 3}, BASE).resources.learners == 3


def test_a_whole_manifest_in_the_box_of_a_jobs_form_is_not_mixed_with_the_forms_own() -> None:
    other = parse({"name": "digits", "image": "other:1", "command": "sh other.sh"})
    conf = {**defaults(BASE), "manifest": other.canonical()}
    assert from_form(conf, defaults=defaults(BASE)) == other
    assert from_form({"manifest": other.canonical()}, BASE) == other
    changed = from_form({**conf, "params_epochs": 3, "resources_learners": 4}, BASE)
    assert (changed.params, changed.resources.learners) == ({"epochs": 3}, 4)


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


def test_a_model_that_runs_code_is_asked_for_by_both_fields_of_the_form() -> None:
    conf = defaults(BASE)
    for base in (BASE, None):
        with pytest.raises(ManifestError, match=r"export\.formats: .* runs the job's code; .* trust_code: true too"):
            from_form({**conf, "export_formats": ["mlflow"]}, base)
        with pytest.raises(ManifestError, match=r"export\.trust_code: is given, but no code is exported"):
            from_form({**conf, "export_trust_code": True}, base)
        export = from_form({**conf, "export_formats": ["mlflow"], "export_trust_code": True}, base).export
        assert export is not None
        assert (export.formats, export.trust_code) == (("mlflow",), True)


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


def test_every_field_of_the_schema_is_described() -> None:
    schema = json_schema()
    for part in (schema, *schema["$defs"].values()):
        assert part["description"]
        for name, field in part["properties"].items():
            assert field.get("description"), name


@pytest.mark.parametrize("box", [{"name": "digits", "command": "true"}, "name: digits\ncommand: 'true'\n"])
def test_a_manifest_that_names_no_tenant_gets_that_of_its_dag(box: Any) -> None:
    shell = {"framework_name": "shell"}
    assert read_form({"manifest": box, **shell}, tenant="vision").manifest.tenant == "vision"
    assert read_form({"manifest": box, **shell}).manifest.tenant == "default"
    named = read_form({"manifest": box, "tenant": "speech", **shell}, tenant="vision")
    assert named.manifest.tenant == "speech"
    ffdl = {"name": "old", "framework": {"name": "pytorch", "version": "latest", "command": "python x.py"}}
    assert read_form({"manifest": ffdl}, tenant="vision").manifest.tenant == "vision"
