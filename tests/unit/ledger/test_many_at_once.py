"""Several processes and threads on one ledger; each waits for the lock instead of failing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from updraft.allocation import Capacity, Node, Request
from updraft.ledger import Job, Ledger, NewJob, open_ledger, upgrade
from updraft.ledger.book import utc_now

TWO_CPUS = Capacity((Node("local", 2, 4096),))
OPEN_TEN_ATTEMPTS = """
import json, sys
from updraft.ledger import open_ledger
book = open_ledger(sys.argv[1])
print(json.dumps([book.open_attempt("job-1", "train") for _ in range(10)]))
"""


def _submit_same(url: str) -> str:
    return open_ledger(url).record_job(NewJob("job-1", "t", "n", "d", "job-1", {}, "ada")).id


def _upgrade(url: str) -> None:
    upgrade(url)


def test_fencing_numbers_are_unique_over_processes(ledger_url: str, submit: Callable[..., Job]) -> None:
    submit()
    command = [sys.executable, "-c", OPEN_TEN_ATTEMPTS, ledger_url]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    numbers = [number for process in processes for number in json.loads(process.communicate(timeout=60)[0])]
    assert sorted(numbers) == list(range(1, 31))


def test_two_submissions_of_the_same_run_at_once_are_one_job(ledger_url: str, ledger: Ledger) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(_submit_same, [ledger_url] * 16)) == {"job-1"}
    assert len(ledger.transitions("job-1")) == 1


def test_only_as_much_is_granted_as_exists_when_all_ask_at_once(
    ledger_url: str, ledger: Ledger, submit: Callable[..., Job]
) -> None:
    for number in range(8):
        submit(f"job-{number}")
        ledger.enqueue(f"job-{number}", Request(f"job-{number}", 1, 1.0, 64, 0, None, utc_now()))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: open_ledger(ledger_url).try_admit(f"job-{n}", TWO_CPUS), range(8)))
    assert [answer.granted for answer in answers] == [True, True] + [False] * 6
    assert len(ledger.grants()) == 2


def test_all_may_migrate_a_new_ledger_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('new')}/sub/ledger.db"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(_upgrade, [url] * 4))
    assert Ledger(url).jobs() == []


def test_one_ledger_per_process_and_url(ledger_url: str) -> None:
    assert open_ledger(ledger_url) is open_ledger(ledger_url)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own_connections(ledger_url: str, submit: Callable[..., Job]) -> None:
    submit()
    parents = open_ledger(ledger_url)
    parents.job("job-1")
    pid = os.fork()
    if pid == 0:
        mine = open_ledger(ledger_url)
        good = mine is not parents and mine.open_attempt("job-1", "train") == 1
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert parents.open_attempt("job-1", "train") == 2
