"""docs/howto/cluster.md: each of its blocks is executed by a test, or says why none does."""

from __future__ import annotations

import re

import account_helpers
import test_cluster_howto
from account_helpers import PAGE, steps

NOT_HERE = "# no test runs this: "


def blocks() -> list[tuple[str, str]]:
    """Language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_block_is_run_by_a_test_or_says_why_not() -> None:
    here = test_cluster_howto.commands()  # each line, without `sudo`
    for language, text in blocks():
        if language:
            assert (language, text.startswith(NOT_HERE)) == ("sh", True), text
        else:
            lines = [line.removeprefix("sudo ") for line in text.splitlines()]
            assert set(lines) <= set(here) or text in vars(steps()).values(), text


def test_the_steps_are_those_that_tests_take_them_for() -> None:
    page = steps()
    assert "kubectl apply -k" in page.apply
    assert "create token" in page.kubeconfig
    assert "updraft doctor" in page.doctor
    assert "updraft up --kubeconfig" in page.up
    assert account_helpers.REGISTRY in page.up
    assert "updraft submit" in page.submit
