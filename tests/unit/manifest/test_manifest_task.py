"""`task: text-classification`: two lines become an ordinary job, and what does not go with it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from updraft.manifest import ManifestError, form_fields, json_schema, load_any, parse, read_form
from updraft.manifest.strategy import shared_learners
from updraft.manifest.task import COMMAND, UNUSABLE
from updraft_learner.tasks import texts

REPOSITORY = Path(__file__).parents[3]
TWO = {"data": "reviews.csv", "task": "text-classification"}


def problems(**given: Any) -> list[str]:
    with pytest.raises(ManifestError) as error:
        parse({**TWO, **given})
    return [field.text for field in error.value.fields]


def test_two_lines_are_a_job_with_a_name_a_strategy_and_a_model(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\n")
    (tmp_path / "manifest.yaml").write_text("data: reviews.csv\ntask: text-classification\n")
    loaded = load_any(tmp_path / "manifest.yaml")
    manifest = loaded.manifest
    assert (manifest.name, manifest.command, loaded.warnings) == ("reviews", COMMAND, ())
    assert shared_learners(manifest) == 2
    assert manifest.export is not None
    assert manifest.export.register_as == "reviews"
    assert manifest.export.promote_if == {"val_accuracy": ">= champion"}
    assert [(rule.exit_code, rule.cause, rule.action) for rule in manifest.failures] == [(UNUSABLE, "data", "stop")]


def test_it_can_be_read_again() -> None:
    manifest = parse(TWO)
    assert parse(manifest.given()) == parse(manifest.canonical()) == manifest


@pytest.mark.parametrize(
    ("source", "name"),
    [("s3://team/2024/News_Items.jsonl", "news-items"), ("texts/", "texts"), ("2024.csv", "job-2024")],
)
def test_the_name_is_that_of_the_data(source: str, name: str) -> None:
    assert parse({**TWO, "data": source}).name == name


def test_what_the_manifest_says_itself_is_kept() -> None:
    own = parse({**TWO, "name": "mine", "resources": {"cpus": 4}, "export": {"register_as": "other"}})
    assert own.name == "mine"
    assert shared_learners(own) == 4
    assert own.export is not None
    assert own.export.register_as == "other"
    assert parse({**TWO, "params": {"text": "body", "label": "stars"}}).params == {"text": "body", "label": "stars"}


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"data": None}, "data: is missing"),
        ({"command": "python train.py"}, "command: is given, but with task: text-classification"),
        ({"code": "."}, "code: is given"),
        ({"params": {"lr": 0.1}}, "params.lr: is no parameter of the task, whose hyper-parameters are fixed"),
        ({"task": "text-clasification"}, "task: 'text-clasification' is not allowed here"),
    ],
)
def test_each_wrong_field_is_the_only_error(given: dict[str, Any], start: str) -> None:
    (text,) = problems(**given)
    assert text.startswith(start)


def test_the_form_and_the_schema_have_it() -> None:
    assert form_fields()["task"].schema["enum"] == ["text-classification", None]
    assert read_form({"name": "reviews", "manifest": TWO}).manifest.name == "reviews"
    assert {"required": ["task", "data"]}.items() <= json_schema()["anyOf"][1].items()


def test_the_page_shows_the_manifest_of_the_example_and_what_is_really_fixed() -> None:
    page = (REPOSITORY / "docs" / "howto" / "train-on-texts.md").read_text()
    shown = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    assert shown == yaml.safe_load((REPOSITORY / "jobs" / "messages" / "manifest.yaml").read_text())
    assert f"at least {texts.LEAST_TEXTS} different texts" in page
    assert "from updraft_learner.tasks.texts import encode" in page


TABLE = "text,label\n" + "".join(f"good {n},yes\nbad {n},no\n" for n in range(10))


def test_every_fifth_text_of_a_label_is_held_out_whatever_the_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    found = texts.read(tmp_path)
    assert found.names == ("no", "yes")
    assert (len(found.training), len(found.validation)) == (16, 4)
    assert not {text for text, _ in found.training} & {text for text, _ in found.validation}
    head, *rows = TABLE.splitlines()
    (tmp_path / "a.csv").write_text("\n".join([head, *reversed(rows)]))
    assert texts.read(tmp_path) == found
    lines = [f'{{"text": "{row.split(",")[0]}", "label": "{row.split(",")[1]}"}}' for row in rows]
    (tmp_path / "a.csv").unlink()
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert texts.read(tmp_path) == found


def test_words_and_pairs_are_numbers_and_the_order_of_words_counts() -> None:
    one, other = texts.encode("Dog bites man"), texts.encode("man bites dog")
    assert len(one) == texts.TOKENS
    assert one[:3] == other[:3][::-1]
    assert set(one) != set(other)
    assert texts.encode("") == [0] * texts.TOKENS
    assert all(0 <= each < texts.BUCKETS for each in one)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", TABLE.replace("label", "class", 1), "line 2: there is no 'label', only 'text', 'class'; rename it"),
        ("a.csv", "text,label\n" + "x,same\n", "all texts in a.csv have the label 'same'"),
        ("a.csv", TABLE + ",yes\n ,no\n", "a.csv, line 22: the text is empty, and so it is in 1 rows more; fill it in"),
        ("a.csv", TABLE + "hello,\n", "a.csv, line 22: the label is empty; fill it in or remove the row"),
        ("a.csv", TABLE + "one, two,yes\n", "line 22: there are 3 values, and the first line names 2 columns"),
        ("a.csv", TABLE + "lone,rare\n", "too few different texts have the label 'rare'; each label needs at least 5"),
        ("a.csv", "text,label\n", "a.csv has no rows"),
        ("a.csv", b"text,label\n\xff\xfe,x\n", "a.csv is not text in UTF-8"),
        ("a.jsonl", "hello\n", "a.jsonl, line 1: this is not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl, line 1: this is no object"),
        ("a.xlsx", "PK", "there is only a.xlsx; save the texts as CSV"),
        ("a.csv", "text,label\n" + "".join(f"t{n},{n}\n" for n in range(1001)), "1,001 different labels"),
    ],
)
def test_data_that_cannot_be_used_is_answered_in_words(
    name: str, content: str | bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(texts.UnusableDataError) as raised:
        texts.read(tmp_path)
    assert words in str(raised.value)
