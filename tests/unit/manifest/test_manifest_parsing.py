"""What a manifest may say, what comes of it, and that everything wrong is named at once."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.manifest import (
    Manifest,
    ManifestError,
    from_form,
    json_schema,
    load,
    load_any,
    load_jobs,
    parse,
    parse_any,
)
from updraft.manifest.limits import TEXT_CHARACTERS

FULL: dict[str, Any] = {
    "name": "digits-cnn",
    "description": "Digits",
    "tenant": "vision",
    "framework": {"name": "pytorch", "version": "2.15"},
    "code": "git+https://example.org/a/b@v1.2#subdirectory=train",
    "code_secret": "git-read",
    "command": "python train.py --epochs ${params.epochs}",
    "params": {"epochs": 10, "lr": 0.001, "amp": True, "note": "a b"},
    "env": {"OMP_NUM_THREADS": "1"},
    "secrets": [{"name": "hub", "key": "token", "as": "HUB_TOKEN"}],
    "resources": {"learners": 2, "cpus": 1, "memory": "1.5GB", "gpus": 1, "gpu_type": "v100"},
    "elastic": {"min_learners": 1, "max_learners": 4, "min_batch": 32, "max_batch": 512},
    "data": [
        {"source": "s3://datasets/digits/", "as": "training", "secret": "bucket", "limit": "10GiB"},
        {
            "source": "tree:" + "a" * 64,
            "expectations": {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "a"}}]},
        },
    ],
    "checkpoints": {"every": "90s", "keep": {"latest": 3, "best": 1, "every_nth": 5}, "metric": "acc", "mode": "max"},
    "evaluate": {"command": "python evaluate.py"},
    "budget": {
        "infra_attempts": 5,
        "app_attempts": 1,
        "max_runtime": "6h",
        "no_progress": "15m",
        "on_no_progress": "stop",
    },
    "failures": [
        {"exit_code": 42, "cause": "infrastructure", "action": "relaunch", "text": "All licenses are in use."},
        {"contains": "loss is nan", "cause": "program", "action": "older_checkpoint", "text": "It diverged."},
        {"exit_code": 3, "contains": "no such split", "cause": "data", "action": "stop", "text": "A split is missing."},
    ],
    "priority": "high",
    "export": {
        "formats": ["onnx"],
        "register_as": "digits",
        "promote_if": {"acc": "champion + 0.01", "loss": "<0.5"},
        "approval": "required",
    },
    "schedule": {"cron": "0 3 * * mon-fri", "and_new": ["s3://datasets/digits/"], "timezone": "Europe/Berlin"},
    "annotations": {"ticket": ["V", 12]},
}
SMALL: dict[str, Any] = {"name": "a", "image": "busybox:1", "command": "true"}


def errors_of(raw: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        parse(raw)
    return {field.path: field.text for field in caught.value.fields}


def small(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SMALL), **changes}


def test_a_full_manifest_is_understood() -> None:
    manifest = parse(FULL)
    assert manifest.resources.memory_bytes == 1_500_000_000
    assert manifest.checkpoints is not None
    assert manifest.checkpoints.every == timedelta(seconds=90)
    assert manifest.data[0].mount == "training"
    assert manifest.secrets[0].env_name == "HUB_TOKEN"
    assert manifest.export is not None
    assert manifest.export.promote_if == {"acc": ">= champion + 0.01", "loss": "< 0.5"}
    assert manifest.budget.max_runtime == timedelta(hours=6)


@pytest.mark.parametrize("raw", [FULL, SMALL])
def test_the_canonical_form_is_the_manifest_again(raw: dict[str, Any]) -> None:
    manifest = parse(raw)
    canonical = manifest.canonical()
    assert parse(canonical) == manifest
    assert parse(json.loads(json.dumps(canonical))).canonical() == canonical
    assert parse(canonical).digest() == manifest.digest()
    assert parse(manifest.given()).digest() == manifest.digest()
    assert "priority" not in parse(SMALL).given()


def test_the_digest_changes_with_any_value_and_not_with_the_writing() -> None:
    assert parse(small(params={"a": 1})).digest() != parse(SMALL).digest()
    assert parse(small(resources={"memory": "2048MiB"})).digest() == parse(SMALL).digest()


def test_defaults_of_a_small_manifest() -> None:
    manifest = parse(SMALL)
    assert (manifest.tenant, manifest.resources.learners, manifest.resources.cpus) == ("default", 1, 1.0)
    assert (manifest.checkpoints, manifest.export, manifest.evaluate, manifest.schedule) == (None, None, None, None)


def test_the_input_is_not_changed() -> None:
    raw = copy.deepcopy(FULL)
    parse(raw)
    assert raw == FULL


def test_all_wrong_fields_are_named_at_once() -> None:
    text = """
name: Digits CNN
comand: python train.py
framework: {name: pytorch, version: 2.15}
resources: {memory: 16 Gigs, learners: -1}
checkpoints: {every: 60}
priority: hgh
"""
    with pytest.raises(ManifestError) as caught:
        load(text)
    assert str(caught.value) == (
        "manifest: 8 fields are wrong\n"
        "  name: 'Digits CNN' is not a valid name; write lower-case letters, digits and hyphens, a letter first, "
        "at most 40 characters, such as 'digits-cnn'\n"
        "  priority: 'hgh' is not allowed here; write one of low, normal, high, such as high\n"
        "  framework.version: 2.15 is a number, and 2.10 would become 2.1; "
        "write the version in quotes, such as '2.15'\n"
        "  command: is missing; write the shell command (/bin/sh) that starts the program, in the code's folder, "
        "such as 'python train.py --epochs ${params.epochs}'\n"
        "  resources.learners: -1 is too small; write a number of at least 1, such as 2\n"
        "  resources.memory: '16 Gigs' is not an amount of memory; write a number and a unit, such as 16GiB\n"
        "  checkpoints.every: 60 is not a length of time; write a number and a unit (s, m, h, d), such as 1m\n"
        "  comand: no such field; did you mean 'command'?"
    )


def test_disk_is_an_amount_and_may_be_left_out() -> None:
    assert parse(small(resources={"disk": "20GiB"})).resources.disk_bytes == 20 * 2**30
    assert parse(small(resources={"size": "small", "disk": "1.5 GB"})).resources.disk_bytes == 1_500_000_000
    assert parse(small(resources={"disk": None})) == parse(small(resources={}))
    assert parse(small()).resources.disk_bytes is None
    assert errors_of(small(resources={"disk": "20 Gigs"})) == {
        "resources.disk": "resources.disk: '20 Gigs' is not an amount of disk; write a number and a unit, such as 20GiB"
    }
    assert errors_of(small(resources={"disk": "9999TiB"})) == {
        "resources.disk": "resources.disk: '9999TiB' is more than there is; write at most 1024TiB, such as 20GiB"
    }


def test_one_wrong_field_is_one() -> None:
    with pytest.raises(ManifestError, match=r"^manifest: 1 field is wrong\n"):
        parse(small(priority="x"))


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("comand", "command"),
        ("learners", "resources.learners"),
        ("memory", "resources.memory"),
        ("storage", "resources.disk"),
        ("cpu", "resources.cpus"),
        ("timeout", "budget.max_runtime"),
        ("register_as", "export.register_as"),
    ],
)
def test_an_unknown_field_is_answered_with_the_one_that_was_meant(field: str, meant: str) -> None:
    assert errors_of(small(**{field: 1})) == {field: f"{field}: no such field; did you mean '{meant}'?"}


def test_an_unknown_field_without_a_likeness_lists_the_fields() -> None:
    text = errors_of(small(resources={"zzzz": 1}))["resources.zzzz"]
    fields = "size, learners, cpus, memory, disk, gpus, gpu_type, processes_per_learner, mpi, shm"
    assert text == f"resources.zzzz: no such field; the fields here are {fields}"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"name": "x" * 41}, "name"),
        ({"name": "1a"}, "name"),
        ({"name": "a-"}, "name"),
        ({"name": None}, "name"),
        ({"tenant": "A"}, "tenant"),
        ({"image": "a b"}, "image"),
        ({"framework": {"name": "pytorch"}}, "image"),
        ({"image": None}, "framework"),
        ({"command": "  "}, "command"),
        ({"command": "x ${params.y}"}, "command"),
        ({"command": "x '${params.y}'", "params": {"y": "a b"}}, "command"),
        ({"params": {"a b": 1}}, "params['a b']"),
        ({"params": {"a": [1]}}, "params.a"),
        ({"params": {"a": None}}, "params.a"),
        ({"params": 3}, "params"),
        ({"env": {"RANK": "1"}}, "env.RANK"),
        ({"env": {"UPDRAFT_X": "1"}}, "env.UPDRAFT_X"),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "env.NVIDIA_VISIBLE_DEVICES"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A-B": "1"}}, "env.A-B"),
        ({"secrets": [{"name": "s", "as": "RANK"}]}, "secrets[0].as"),
        ({"secrets": [{"name": "s", "as": "A"}], "env": {"A": "1"}}, "secrets[0].as"),
        ({"secrets": {"name": "s"}}, "secrets"),
        ({"secrets": ["s"]}, "secrets[0]"),
        ({"resources": {"learners": 0}}, "resources.learners"),
        ({"resources": {"learners": True}}, "resources.learners"),
        ({"resources": {"learners": 1.0}}, "resources.learners"),
        ({"resources": {"cpus": 0}}, "resources.cpus"),
        ({"resources": {"cpus": "500m"}}, "resources.cpus"),
        ({"resources": {"memory": 16}}, "resources.memory"),
        ({"resources": {"memory": "0GiB"}}, "resources.memory"),
        ({"resources": {"disk": 20}}, "resources.disk"),
        ({"resources": {"disk": "0GiB"}}, "resources.disk"),
        ({"resources": {"gpus": -1}}, "resources.gpus"),
        ({"resources": {"gpu_type": "v100"}}, "resources.gpu_type"),
        ({"resources": {"size": "smal"}}, "resources.size"),
        ({"resources": {"size": "small", "cpus": 3}}, "resources.cpus"),
        ({"resources": []}, "resources"),
        ({"elastic": {"min_learners": 5, "max_learners": 2}}, "elastic.min_learners"),
        ({"data": [{"source": "gs://a/b"}]}, "data[0].source"),
        ({"data": [{"source": "s3://"}]}, "data[0].source"),
        ({"data": [{"source": "s3://aa/../b"}]}, "data[0].source"),
        ({"data": [{"source": "s3://aa/", "as": "/abs"}]}, "data[0].as"),
        ({"data": [{"source": "s3://aa/", "as": "a/../../b"}]}, "data[0].as"),
        ({"data": [{"source": "s3://aa/"}, {"source": "s3://bb/"}]}, "data[1].as"),
        ({"data": [{"source": "x", "secret": "s"}]}, "data[0].secret"),
        ({"data": [{"source": "s3://aa/", "expectations": {"expectations": []}}]}, "data[0].expectations.expectations"),
        ({"data": [{"source": "s3://aa/", "expectations": "x.yaml"}]}, "data[0].expectations"),
        ({"data": [{"source": "s3://aa/", "format": "cvs"}]}, "data[0].format"),
        ({"checkpoints": {"keep": {"best": 1}}}, "checkpoints.keep.best"),
        ({"checkpoints": {"keep": {"latest": 0}}}, "checkpoints.keep.latest"),
        ({"export": {"formats": []}}, "export.formats"),
        ({"export": {"formats": ["onnx", "onnx"]}}, "export.formats"),
        ({"export": {"formats": ["onxn"]}}, "export.formats[0]"),
        ({"export": {"promote_if": {"acc": ">= champion"}}}, "export.promote_if"),
        ({"export": {"register_as": "a", "promote_if": {"acc": 0.9}}}, "export.promote_if.acc"),
        ({"export": {"register_as": "a/b"}}, "export.register_as"),
        ({"export": {"formats": ["mlflow"]}}, "export.formats"),
        ({"export": {"formats": ["mlflow"], "trust_code": False}}, "export.formats"),
        ({"export": {"trust_code": "true"}}, "export.trust_code"),
        ({"export": {"trust_code": 1}}, "export.trust_code"),
        ({"export": {"formats": ["mlflow", "onnx"], "trust_code": True}}, "export.formats"),
        ({"export": {"trust_code": True}}, "export.trust_code"),
        ({"export": {"formats": ["onnx"], "trust_code": True}}, "export.trust_code"),
        ({"schedule": {}}, "schedule.cron"),
        ({"schedule": {"cron": "0 25 * * *"}}, "schedule.cron"),
        ({"schedule": {"cron": "@daily", "timezone": "Mars/Base"}}, "schedule.timezone"),
        ({"schedule": {"cron": "@daily", "timezone": "../etc/passwd"}}, "schedule.timezone"),
        ({"budget": {"max_runtime": "0s"}}, "budget.max_runtime"),
        ({"description": "\ud800"}, "description"),
        ({"description": "a\0b"}, "description"),
        ({"annotations": {"a": float("nan")}}, "annotations.a"),
        ({"annotations": {"a": {1, 2}}}, "annotations.a"),
    ],
)
def test_a_wrong_value_is_refused_at_its_path(changes: dict[str, Any], path: str) -> None:
    assert list(errors_of(small(**changes))) == [path]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("git+https://example.org/a/b@main", "reads as a branch"),
        ("git+https://example.org/a/b", "not pinned"),
        ("git+https://example.org/a/b@abc12", "reads as a branch"),
        ("git+https://example.org/a/b@1234567#x=1", "unknown part"),
        ("git+https://user:hunter2@example.org/a/b@1234567", "holds credentials"),
        ("git+https://hunter2@example.org/a/b@1234567", "holds credentials"),
        ("https://example.org/x.tar", "not supported"),
        ("s3://key:hunter2@bucket/x", "holds credentials"),
        ("tree:123", "not the name of a tree"),
        ("", "is empty"),
    ],
)
def test_code_that_cannot_be_fetched_twice_alike_is_refused(code: str, problem: str) -> None:
    text = errors_of(small(code=code))["code"]
    assert problem in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "code",
    [
        ".",
        "../src",
        "train.zip",
        "s3://bucket_1/prefix/code.zip",
        "git+https://example.org/a/b.git@0123abc",
        "git+ssh://git@example.org/a/b@v1.0.3",
        "git+https://example.org/a/b@refs/tags/release",
        "tree:" + "0" * 64,
    ],
)
def test_code_that_is_pinned_or_local_is_accepted(code: str) -> None:
    assert parse(small(code=code)).code == code


def test_what_may_be_a_secret_is_never_repeated() -> None:
    raw = small(
        secrets=[{"name": "hunter2 ", "as": "hunter2="}],
        env={"API_TOKEN": 20230417, "A": "1"},
        code="git+https://me:hunter2@example.org/a@main",
        params={"password": ["hunter2"]},
        code_secret="hunter2!",
        zzz="hunter2",
    )
    with pytest.raises(ManifestError) as caught:
        parse(raw)
    whole = f"{caught.value} {caught.value!r} {caught.value.fields!r}"
    assert "hunter2" not in whole
    assert "20230417" not in whole
    assert len(caught.value.fields) == 7


def test_a_size_stands_for_four_values() -> None:
    resources = parse(small(resources={"size": "v100-1", "learners": 2})).resources
    assert (resources.cpus, resources.memory_bytes, resources.gpus, resources.gpu_type, resources.learners) == (
        26.0, 24 * 10**9, 1, "nvidia-TeslaV100", 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1\n", "line 2, column 1"),
        ("a: 1\nb: 2\na: 3\n", "line 3"),
        ("a:\n  b: 1\n  b: 2\n", "line 3"),
        ('{"a": 1, "a": 2}', "a"),
        ("a: *b\n", "line 1, column 4"),
        ("a: !!python/object/apply:os.system ['true']\n", "line 1, column 4"),
        ("<<: {a: 1}\n", "line 1, column 1"),
        ("a: \x01\n", "character 4"),
        ("a: " + "9" * 5000 + "\n", "text"),
        ("x" * (TEXT_CHARACTERS + 1) + "\n", "text"),
    ],
)
def test_text_that_is_no_manifest_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load(text)
    assert [field.path for field in caught.value.fields] == [place]
    assert str(caught.value).startswith("manifest: cannot be read\n")


def test_yaml_that_grows_without_end_is_refused() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ManifestError, match="too large or nested too deeply"):
        load("\n".join(lines))
    with pytest.raises(ManifestError, match="too large or nested too deeply"):
        load("a: &a [*a]\n")
    with pytest.raises(ManifestError):
        load("a: " + "[" * 5000 + "]" * 5000 + "\n")


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "name: a\nimage: b\ncommand: c\nparams: {a: 1e-3, b: no, c: 012, d: 1:30, e: 2024-01-01, f: true, g: .5}\n"
    assert load(text).params == {"a": 0.001, "b": "no", "c": 12, "d": "1:30", "e": "2024-01-01", "f": True, "g": 0.5}


def test_json_is_accepted() -> None:
    assert load(json.dumps(FULL)) == parse(FULL)


def test_an_error_survives_pickling() -> None:
    with pytest.raises(ManifestError) as caught:
        parse({"name": 3})
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.fields) == (str(caught.value), caught.value.fields)


def test_a_file_is_judged_with_what_lies_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text("name: a\nimage: b\ncommand: c\ncode: src\ndata: [{source: d.csv, expectations: suite.json}]\n")
    with pytest.raises(ManifestError) as caught:
        load(file)
    assert str(caught.value).startswith("manifest.yaml: 3 fields are wrong\n  code: 'src' does not exist beside")
    (tmp_path / "src").mkdir()
    (tmp_path / "d.csv").write_text("label\n1\n")
    (tmp_path / "suite.json").write_text('{"expectations": []}')
    with pytest.raises(ManifestError, match="lists no expectation"):
        load(file)
    (tmp_path / "suite.json").write_text("nonsense")
    with pytest.raises(ManifestError, match="does not hold JSON"):
        load(file)
    suite = {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "label"}}]}
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    manifest = load(str(file))
    assert manifest.data[0].expectations == suite
    assert load_any(file).manifest == manifest


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="No such file"):
        load(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="not a text file"):
        load(tmp_path / "binary.yaml")
    with pytest.raises(ManifestError, match="Is a directory"):
        load(tmp_path)


def test_a_wrong_job_does_not_hide_the_others(tmp_path: Path) -> None:
    for name, text in {"good": "name: a\nimage: b\ncommand: c\ncode: .\n", "wrong": "name: [\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.yaml").write_text(text)
    good, wrong = load_jobs(tmp_path)
    assert good.manifest is not None
    assert good.manifest.code == str((tmp_path / "good").resolve())
    assert good.error is None
    assert wrong.manifest is None
    assert "manifest.yaml: cannot be read" in str(wrong.error)


def test_the_schema_accepts_what_the_model_accepts() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for raw in (FULL, SMALL, parse(FULL).canonical(), parse(SMALL).canonical()):
        assert list(validator.iter_errors(raw)) == []
    for wrong in (small(comand=1), small(framework={"name": "x"}), small(resources={"memory": 16}), {"name": "a"}):
        assert list(validator.iter_errors(wrong))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
garbage = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def field_names(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = set(schema.get("properties", {})) if isinstance(schema.get("properties"), dict) else set()
        return own.union(*map(field_names, schema.values()))
    return set().union(*map(field_names, schema)) if isinstance(schema, list) else set()


names = st.sampled_from(sorted(field_names(json_schema()) | {"data_stores", "connection", "training_data"}))
nested = st.recursive(
    garbage,
    lambda inner: st.dictionaries(names, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=8,
)


def error_of(read: Callable[[Any], object], raw: object) -> ManifestError | None:
    try:
        read(raw)
    except ManifestError as exc:
        return exc
    return None


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(names | st.text(max_size=5), nested, max_size=8))
def test_nothing_but_a_manifest_error_comes_out(raw: dict[str, Any]) -> None:
    for read in (parse, parse_any, from_form):
        error = error_of(read, raw)
        if error is not None:
            assert error.fields
            assert all(field.problem and field.allowed for field in error.fields)
            assert all(field.text.startswith(f"{field.path}: ") for field in error.fields)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40) | st.text("[]{}:,&*!|>-'\"#%@? \n\tab1", max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    error_of(load, f"{text}\n")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FULL)), garbage)
def test_a_spoilt_field_is_named_and_no_field_that_has_nothing_to_do_with_it(name: str, value: Any) -> None:
    error = error_of(parse, {**FULL, name: value})
    together = {"params": "command", "image": "framework", "framework": "image", "env": "secrets",
                "budget": "failures"}  # fmt: skip
    heads = {re.split(r"[.\[]", field.path)[0] for field in error.fields} if error else set()
    assert heads <= {name, together.get(name, name), "framework"}


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        lambda cpus, memory, every, params, learners: {
            **FULL,
            "resources": {"cpus": cpus, "memory": f"{memory}MiB", "learners": learners},
            "checkpoints": {"every": f"{every}s"},
            "params": {**params, "epochs": 1},
        },
        st.floats(0.01, 4096),
        st.integers(1, 10**9),
        st.integers(1, 10**7),
        st.dictionaries(
            st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
            st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20),
            max_size=4,
        ),
        st.integers(1, 4),
    )
)  # fmt: skip
def test_every_manifest_comes_back_from_its_canonical_form(raw: dict[str, Any]) -> None:
    manifest = parse(raw)
    assert isinstance(manifest, Manifest)
    assert parse(manifest.canonical()) == manifest
    assert load(json.dumps(manifest.canonical())) == manifest


def test_a_command_longer_than_a_process_can_be_given_is_refused() -> None:
    with pytest.raises(ManifestError, match="put a longer script into the code's folder"):
        parse({"name": "long", "framework": {"name": "shell"}, "command": "x" * 100_001})


def failing(**rule: Any) -> dict[str, Any]:
    budget = {"infra_attempts": rule.pop("infra_attempts", None), "app_attempts": rule.pop("app_attempts", None)}
    whole = {"exit_code": 3, "cause": "infrastructure", "action": "relaunch", "text": "t", **rule}
    return small(failures=[whole], budget=budget)


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        ({"exit_code": 0}, "failures[0].exit_code", "0 is too small; write a number of at least 1"),
        ({"exit_code": 256}, "failures[0].exit_code", "256 is too large; write a number of at most 255"),
        ({"exit_code": None}, "failures[0].exit_code", "is missing, and so is contains; write an exit code"),
        ({"contains": "nan"}, "failures[0].contains", "'nan' has 3 characters; write 4 to 200 characters of one line"),
        ({"contains": "a" * 201}, "failures[0].contains", "has 201 characters"),
        ({"contains": "one\ntwo"}, "failures[0].contains", "has more than one line"),
        ({"cause": "infra"}, "failures[0].cause", "'infra' is not allowed here; write one of infrastructure, program"),
        ({"action": "retry"}, "failures[0].action", "'retry' is not allowed here; write one of relaunch"),
        ({"text": " "}, "failures[0].text", "is empty; write a sentence for people"),
        ({"text": "a" * 301}, "failures[0].text", "has 301 characters; write at most 300 characters"),
        ({"cause": "data"}, "failures[0].action", "'relaunch' is no action for data, which is never tried again"),
        ({"cause": "configuration"}, "failures[0].action", "'relaunch' is no action for configuration"),
        ({"cause": "program"}, "failures[0].action", "'relaunch' can never be, because budget.app_attempts is 0"),
        ({"infra_attempts": 0}, "failures[0].action", "can never be, because budget.infra_attempts is 0"),
        ({"pattern": "x+"}, "failures[0].pattern", "no such field"),
    ],
)
def test_a_wrong_row_of_failures_is_named(changes: dict[str, Any], path: str, text: str) -> None:
    errors = errors_of(failing(**changes))
    assert list(errors) == [path]
    assert text in errors[path]


@pytest.mark.parametrize(
    "changes",
    [
        {"exit_code": None, "contains": "four"},
        {"cause": "data", "action": "stop"},
        {"cause": "program", "action": "relaunch_elsewhere", "app_attempts": 1},
        {"cause": "program", "action": "stop", "app_attempts": 0},
    ],
)
def test_rows_of_failures_that_are_right(changes: dict[str, Any]) -> None:
    (rule,) = parse(failing(**changes)).failures
    assert rule.text == "t"


def test_failures_are_few() -> None:
    row = {"exit_code": 3, "cause": "infrastructure", "action": "relaunch", "text": "t"}
    assert errors_of(small(failures=[row] * 51)) == {
        "failures": "failures: lists too many; write a list with at most 50"
    }
