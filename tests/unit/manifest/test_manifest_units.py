"""Memory and durations, rules of promotion, cron, commands."""

from __future__ import annotations

import shlex
import subprocess
from contextlib import suppress
from datetime import timedelta

import pytest
from bounds import bounded
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from updraft.manifest import ManifestError, Promotion, PromotionRule, decide, parse, render_command
from updraft.manifest.cron import check_cron
from updraft.manifest.rules import parse_rule
from updraft.manifest.units import format_duration, format_memory, parse_duration, parse_memory


@pytest.mark.parametrize(
    ("text", "amount_bytes"),
    [("16GiB", 2**34), ("16Gi", 2**34), ("1.5 GB", 1_500_000_000), ("512MiB", 2**29), ("1TB", 10**12), ("3KB", 3000)],
)
def test_amounts_of_memory(text: str, amount_bytes: int) -> None:
    assert parse_memory(text) == amount_bytes


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        ("16 Gigs", "16GiB"), (16, "16GiB"), ("2048", "2048MiB"), ("16gb", "16GB"), ("16G", "16GiB"), ("4g", "4GiB"),
        (2**31, "2048MiB"), ("much", "2GiB"), (None, "2GiB"), ("-2GiB", "2GiB"), ("9999999999999TiB", "2GiB"),
        ("", "2GiB"), (True, "2GiB"), ([], "2GiB"),
    ],
)  # fmt: skip
def test_what_is_no_amount_of_memory_gets_the_nearest_writing(value: object, suggestion: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        parse_memory(value)
    assert caught.value.context is not None
    assert caught.value.context["fields"][0][0].suggestion == suggestion
    assert parse_memory(suggestion) > 0


@given(st.integers(1, 2**50))
def test_memory_comes_back_from_its_writing(amount_bytes: int) -> None:
    assert parse_memory(format_memory(amount_bytes)) == amount_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("1h30m", 5400), ("6h", 21600), ("1d", 86400), ("90m", 5400)]
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        (60, "1m"),
        ("60 seconds", "1m"),
        ("2 hours", "2h"),
        ("0.5h", "30m"),
        ("soon", "60s"),
        ("30m1h", "30m"),
        (None, "60s"),
    ],
)
def test_what_is_no_duration_gets_the_nearest_writing(value: object, suggestion: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        parse_duration(value)
    assert caught.value.context is not None
    assert caught.value.context["fields"][0][0].suggestion == suggestion


@given(st.integers(1, 10**9))
def test_a_duration_comes_back_from_its_writing(seconds: int) -> None:
    assert parse_duration(format_duration(timedelta(seconds=seconds))) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (">= champion", PromotionRule("m", ">=")),
        (">champion", PromotionRule("m", ">")),
        (">= 0.95", PromotionRule("m", ">=", 0.95)),
        ("<= -1e-3", PromotionRule("m", "<=", -0.001)),
        ("champion + 0.01", PromotionRule("m", ">=", None, 0.01)),
        ("< champion - 0.5", PromotionRule("m", "<", None, -0.5)),
    ],
)
def test_rules_are_read_and_written(text: str, rule: PromotionRule) -> None:
    assert parse_rule("m", text) == rule
    assert parse_rule("m", str(rule)) == rule


@pytest.mark.parametrize(
    "text", ["0.9", "champion", "champion - 0.1", ">=", "== 1", ">= nan", ">= 1e999", 0.9, None, ">= best"]
)
def test_what_is_no_rule_is_refused(text: object) -> None:
    with pytest.raises(PydanticCustomError):
        parse_rule("m", text)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([">=", ">", "<=", "<"]), st.booleans())
def test_every_rule_comes_back_from_its_writing(number: float, op: str, about_champion: bool) -> None:
    rule = PromotionRule("m", op, None, number) if about_champion else PromotionRule("m", op, number)
    assert parse_rule("m", str(rule)) == rule


NAN = float("nan")


@pytest.mark.parametrize(
    ("texts", "metrics", "champion", "expected"),
    [
        ({"acc": ">= champion"}, {"acc": 0.9}, {"acc": 0.9}, Promotion(True, "acc 0.9 >= 0.9 (champion 0.9)")),
        ({"acc": "> champion"}, {"acc": 0.9}, {"acc": 0.9}, Promotion(False, "acc 0.9 is not > 0.9 (champion 0.9)")),
        ({"acc": ">= champion"}, {"acc": 0.9}, None, Promotion(True, "acc 0.9: there is no champion yet")),
        ({"acc": ">= 0.95"}, {"acc": 0.9}, None, Promotion(False, "acc 0.9 is not >= 0.95")),
        (
            {"acc": "champion + 0.05"}, {"acc": 0.9}, {"acc": 0.8},
            Promotion(True, "acc 0.9 >= 0.85 (champion 0.8 +0.05)"),
        ),
        ({"acc": ">= champion"}, {"acc": NAN}, None, Promotion(False, "acc is nan, which is never promoted")),
        ({"acc": ">= 0"}, {"acc": float("inf")}, None, Promotion(False, "acc is inf, which is never promoted")),
        (
            {"acc": ">= 0"}, {"loss": 1.0, "auc": 1.0}, None,
            Promotion(False, "the run has no metric 'acc'; its metrics are: auc, loss"),
        ),
        (
            {"acc": ">= champion"}, {"acc": 0.9}, {},
            Promotion(False, "the champion has no metric 'acc', so they cannot be compared"),
        ),
        (
            {"acc": ">= 0.5", "loss": "< champion"}, {"acc": 0.9, "loss": 0.3}, {"loss": 0.2},
            Promotion(False, "loss 0.3 is not < 0.2 (champion 0.2)"),
        ),
        ({}, {"acc": 1.0}, None, Promotion(False, "export.promote_if names no rule, so the champion stays as it is")),
    ],
)  # fmt: skip
def test_promotion(
    texts: dict[str, str], metrics: dict[str, float], champion: dict[str, float] | None, expected: Promotion
) -> None:
    assert decide([parse_rule(metric, text) for metric, text in texts.items()], metrics, champion) == expected


@given(
    st.lists(
        st.builds(
            PromotionRule, st.sampled_from("ab"), st.sampled_from([">=", ">", "<=", "<"]), st.none() | st.floats()
        ),
        min_size=1,
    ),
    st.dictionaries(st.sampled_from("ab"), st.floats()),
    st.none() | st.dictionaries(st.sampled_from("ab"), st.floats()),
)
def test_what_is_promoted_is_finite_and_known(
    rules: list[PromotionRule], metrics: dict[str, float], champion: dict[str, float] | None
) -> None:
    decision = decide(rules, metrics, champion)
    assert decision.reason
    if decision.promote:
        assert all(abs(metrics[rule.metric]) < float("inf") for rule in rules)


@pytest.mark.parametrize(
    "text",
    ["0 3 * * *", "*/5 0-6,12 1 jan-mar Mon", "0 0 * * 7", "0 0 L * *", "0 0 29 2 *", "0 0 * * fri-mon", "@daily"],
)
def test_cron_expressions(text: str) -> None:
    assert check_cron(text) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has 0 fields"),
        ("0 3 * *", "has 4 fields"),
        ("0 0 3 * * *", "has 6 fields"),
        ("60 * * * *", "has '60' as its minute"),
        ("* * 0 * *", "has '0' as its day of month"),
        ("* */0 * * *", "has '*/0' as its hour"),
        ("x * * * *", "has 'x' as its minute"),
        ("0 0 * * mon,r", "has 'mon,r' as its day of week"),
        ("H(0-5) * * * *", "has 'H(0-5)' as its minute"),
        ("0 0 31 2,4 *", "never comes"),
        ("@dayly", "is not a known schedule"),
    ],
)
def test_what_is_no_cron_expression_is_refused(text: str, problem: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        check_cron(text)
    assert caught.value.context is not None
    assert problem in caught.value.context["fields"][0][0].problem


@pytest.mark.parametrize(
    "text",
    [
        f"{','.join(['*/1'] * 1200)} * * * *",
        " ".join([",".join(["1-7"] * 240)] * 5),
        f"0 0 {','.join(['31'] * 700)} {','.join(['2,4,6'] * 300)} *",
    ],
)
def test_a_hostile_cron_expression_costs_little(text: str) -> None:
    check_cron("0 0 * * *")  # the library is loaded
    with bounded(1, 10), suppress(PydanticCustomError):
        check_cron(text)


def test_parameters_are_quoted_for_the_shell() -> None:
    params = {"a": "it's; rm -rf $HOME", "b": 0.1, "c": True, "d-e.f": -3}
    command = "printf '%s\\n' ${params.a} ${params.b} ${params.c} ${params.d-e.f} ${HOME:+$x}"
    manifest = parse({"name": "a", "image": "b", "command": command, "params": params})
    rendered = render_command(manifest)
    assert rendered.endswith("0.1 true -3 ${HOME:+$x}")
    output = subprocess.run(["/bin/sh", "-c", rendered], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["it's; rm -rf $HOME", "0.1", "true", "-3"]
    assert render_command(manifest, "echo ${params.b}") == "echo 0.1"


def test_an_unknown_parameter_is_named_with_the_nearest() -> None:
    manifest = parse({"name": "a", "image": "b", "command": "c", "params": {"epochs": 1}})
    with pytest.raises(ManifestError, match=r"epoch\} names a parameter .* such as \$\{params.epochs\}"):
        render_command(manifest, "x ${params.epoch}")


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30))
def test_any_parameter_arrives_as_one_word(value: str) -> None:
    manifest = parse({"name": "a", "image": "b", "command": "run ${params.v}", "params": {"v": value}})
    assert shlex.split(render_command(manifest)) == ["run", value]
