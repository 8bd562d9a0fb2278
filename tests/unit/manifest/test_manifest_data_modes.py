"""`data.mode`: how the program gets a data set."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import ManifestError, parse

SUITE = {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "a"}}]}


def job(*data: dict[str, Any]) -> dict[str, Any]:
    return {"name": "a", "framework": {"name": "pytorch"}, "command": "true", "data": list(data)}


@pytest.mark.parametrize(
    ("data", "how", "listed", "shared"),
    [
        ({"source": "s3://aa/"}, "copy", False, False),
        ({"source": "s3://aa/", "mode": "stream"}, "stream", True, False),
        ({"source": "folder", "mode": "stream"}, "stream", False, False),
        ({"source": "folder", "mode": "mount"}, "mount", False, True),
        ({"source": "pvc://a"}, "mount", False, False),
        ({"source": "pvc://a", "mode": "mount"}, "mount", False, False),
    ],
)
def test_each_source_has_a_default_and_what_it_needs(
    data: dict[str, Any], how: str, listed: bool, shared: bool
) -> None:
    (item,) = parse(job(data)).data
    assert (item.how, item.is_listed, item.needs_node_cache) == (how, listed, shared)


@pytest.mark.parametrize(
    ("data", "path", "said"),
    [
        ([{"source": "pvc://a", "mode": "copy"}], "data[0].mode", "'copy' is not possible for a claim"),
        ([{"source": "pvc://a", "mode": "stream"}], "data[0].mode", "'stream' is not possible for a claim"),
        ([{"source": "s3://aa/", "mode": "lazy"}], "data[0].mode", "is not allowed here"),
        (
            [{"source": "s3://aa/", "mode": "stream", "expectations": SUITE}],
            "data[0].expectations",
            "streamed data is not read before the learners start",
        ),
        (
            [{"source": "s3://aa/", "as": "a", "mode": "mount"}, {"source": "s3://bb/", "as": "a/b"}],
            "data[1].as",
            "'a/b' is below 'a', which a mount covers",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(data: list[dict[str, Any]], path: str, said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(job(*data))
    (error,) = caught.value.fields
    assert error.path == path
    assert said in error.text
