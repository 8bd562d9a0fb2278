"""Hostile manifests: whatever is sent, judging it takes little time and memory and ends in a short error."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from bounds import bounded

from updraft.manifest import ManifestError, limits, load, parse, parse_any, read_form
from updraft.manifest.revision import revised

SMALL: dict[str, Any] = {"name": "a", "image": "busybox:1", "command": "true"}
FFDL: dict[str, Any] = {"name": "a", "framework": {"name": "pytorch", "command": "true"}, "data_stores": []}


def references(number: int, name: str = "q") -> str:
    return " ".join(f"${{params.{name}{n}}}" for n in range(number))


def named(number: int, value: object = 1) -> dict[str, object]:
    """Names that look alike, so that comparing them is as slow as it can be."""
    return {f"{'ab' * 20}{n:05d}": value for n in range(number)}


def suite(regexes: list[Any]) -> dict[str, Any]:
    """Changes to a manifest: one suite in each of two data sets, with an expectation for each expression."""
    expectations = [
        {
            "type": f"expect_column_values_to_match_regex{'_list' if isinstance(regex, list) else ''}",
            "kwargs": {"column": "a", "regex_list" if isinstance(regex, list) else "regex": regex},
        }
        for regex in regexes
    ]
    half = len(expectations) // 2
    parts = (expectations[:half], expectations[half:])
    return {
        "data": [
            {"source": f"s3://datasets/{n}/", "as": f"d{n}", "expectations": {"expectations": part}}
            for n, part in enumerate(parts)
        ]
    }


HOSTILE: dict[str, dict[str, Any]] = {
    "20,000 params and 1,500 references": {"params": named(20_000), "command": references(1_500, "ab" * 20)},
    "as many as are allowed": {"params": named(1_000), "command": references(1_000, "ab" * 20)},
    "references inside quotes": {"params": {"p": "a b"}, "command": "'" + "${params.p}" * 1_000 + "'"},
    "references that do not end": {"command": "${params." * 11_000 + "${params.q}"},
    "a command of 2 MB": {"command": "${params.q}" * 180_000},
    "a command that grows when it is filled in": {"params": {"p": "x" * 6_000}, "command": "${params.p} " * 1_000},
    "unknown fields": named(1_000),
    "unknown fields in a list": {"failures": [named(1_000) for _ in range(50)]},
    "unknown fields in data": {"data": [named(400) for _ in range(100)]},
    "variables": {"env": named(1_000, 1)},
    "rules": {"export": {"register_as": "m", "promote_if": {f"m{n}": "1" * 1_900 + "x" for n in range(1_000)}}},
    "a version that a pattern tries for long": {"code": "git+https://h/r@" + "1." * 1_000_000 + "!"},
    "a list of a million": {"data": [1] * 1_000_000},
    "lists in lists": {"annotations": {"a": [[[1] * 100] * 100] * 100}},
    "long texts": {"annotations": dict.fromkeys(map(str, range(900)), "x" * 4_000_000)},  # one text, kept once
    "numbers with a million digits": {"params": {"a": 10**1_000_000}},
    "a name of 4 MB": {"name": "x" * 4_000_000},
    "a key of 4 MB": {"x" * 4_000_000: 1},
    "regular expressions that take long to compile": suite(["(?i)" + "[\x01-\U0010ffff]" * 99] * 2_000),
    "regular expressions, in lists": suite([["(?i)" + "[\x01-\U0010ffff]" * 99] * 50] * 41),
    "regular expressions of groups": suite(["(|)" * 160 + "("] * 400),
    "keys that are no text": {"params": dict.fromkeys(range(1000), 1)},  # type: ignore[dict-item]
}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_refused_shortly(what: str) -> None:
    with bounded(), pytest.raises(ManifestError) as caught:
        parse_any({**SMALL, **HOSTILE[what]})
    assert len(caught.value.fields) <= limits.REPORTED
    assert len(str(caught.value)) < 100_000


@pytest.mark.parametrize("what", HOSTILE)
def test_so_it_is_in_ffdls_form_in_airflows_form_and_in_changes(what: str) -> None:
    with bounded(), pytest.raises(ManifestError):
        parse_any({**FFDL, "name": 1, **{k: v for k, v in HOSTILE[what].items() if k != "command"}})
    with bounded(), pytest.raises(ManifestError):
        read_form(
            {**SMALL, "manifest": HOSTILE[what]}
            if "command" not in HOSTILE[what]
            else {"manifest": {**SMALL, **HOSTILE[what]}}
        )
    with bounded(), pytest.raises(ManifestError):
        revised(SMALL, HOSTILE[what])


def test_unknown_fields_of_airflows_form_are_counted_too() -> None:
    given = {f"resources_{name}": 1 for name in named(990)} | {f"params_{name}": 1 for name in list(named(5))}
    with bounded(), pytest.raises(ManifestError, match="more than 50 fields are wrong"):
        read_form({**SMALL, **given})


def test_depth_is_limited() -> None:
    parse({**SMALL, "annotations": {"a": deep(30)}})
    for levels in (50, 100_000):
        with bounded(), pytest.raises(ManifestError, match="nested too deeply"):
            parse({**SMALL, "annotations": {"a": deep(levels)}})


def test_text_that_is_nested_a_million_times_does_not_end_the_process() -> None:
    """libyaml's recursion overflowed the stack. In a process of its own, because it ended the one that it ran in."""
    code = "import sys; from updraft.manifest import load, ManifestError\n"
    code += "for opened in ('[', '{a: ', '- ', '? '):\n    try: load('a: b\\n' + opened * (1_000_000 // len(opened)))\n"
    code += "    except ManifestError: continue\n    sys.exit(1)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    "text",
    ["a: [" + "1," * 500_000 + "1]", "a: [" + "[]," * 300_000 + "1]", "- \n" * 300_000],
    ids=["numbers", "lists", "lines"],  # pytest would make names of the texts, and keep them many times over
)
def test_text_of_many_values_is_refused_while_it_is_read(text: str) -> None:
    with bounded(), pytest.raises(ManifestError, match=r"too many values|is not a mapping"):
        load(text + "\n")
    with bounded(), pytest.raises(ManifestError):
        load(json.dumps({**SMALL, "data": [[]] * 200_000}))


def test_a_reference_is_reported_once_and_only_some_names_are_listed() -> None:
    with pytest.raises(ManifestError) as caught:
        parse({**SMALL, "params": {f"p{n:03d}": n for n in range(100)}, "command": "${params.p1000} " * 500})
    (field,) = caught.value.fields
    assert field.suggestion == "${params.p000}" or field.suggestion in {f"${{params.p{n:03d}}}" for n in range(100)}
    assert field.allowed.endswith("p019 ...")


def test_what_an_honest_manifest_needs_is_allowed() -> None:
    many = parse(
        {
            **SMALL,
            "params": {f"p{n}": n for n in range(limits.KEYS)},
            "command": references(limits.REFERENCES, "p"),
            "env": {f"E{n}": "1" for n in range(limits.KEYS)},
            "data": [{"source": f"s3://datasets/{n}/", "as": f"d{n}"} for n in range(limits.LISTED)],
        }
    )
    assert parse(many.canonical()) == many


def test_the_syntax_of_a_regular_expression_is_checked() -> None:
    for regex in ("(", "a{99999999999}", "(?:" * 160, "[b-a]", "(?P<a>)(?P<a>)", r"\8"):
        with pytest.raises(ManifestError, match=r"data\[1\]\.expectations.*is no regular expression"):
            parse({**SMALL, **suite(["ok", regex])})
    parse({**SMALL, **suite(["ok", r"^(?P<a>[^\W\d_])+(?=x)|\N{DIGIT ONE}(?i:b{1,2}?)$"])})
