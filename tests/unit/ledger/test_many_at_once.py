"""Several processes and threads on one ledger; each waits for the lock instead of failing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from ledger_helpers import grants, try_admit

from updraft.allocation import Capacity, GangRequest, Node
from updraft.ledger import Job, Ledger, NewJob, open_ledger, upgrade
from updraft.ledger.clock import utc_now

TWO_CPUS = Capacity((Node("local", 2, 4096),))
ATTEMPTS = 10
# Each process asks for what follows the newest closed attempt as soon as it sees one, and closes what it sees open.
MAKE_ATTEMPTS = """
import json, sys
from updraft.ledger import AttemptClosure, open_ledger
book, seen = open_ledger(sys.argv[1]), []
after = None
while len(seen) < int(sys.argv[2]):
    attempt = book.attempts.ensure("job-1", "train", after=after)
    if attempt.number not in seen:
        seen.append(attempt.number)
    if attempt.ended_at is None:
        try:
            book.attempts.close("job-1", "train", attempt.number, AttemptClosure("infrastructure", "lost"))
        except Exception as exc:
            if type(exc).__name__ != "StaleAttemptError":
                raise
    after = attempt.number
print(json.dumps(seen))
"""


def _submit_same(url: str) -> str:
    return open_ledger(url).jobs.record(NewJob("job-1", "t", "n", "d", "job-1", {}, "ada")).id


def _upgrade(url: str) -> None:
    upgrade(url)


def _ensure_first(url: str) -> int:
    return open_ledger(url).attempts.ensure("job-1", "train", after=None).number


def test_processes_that_ask_for_the_same_attempt_make_it_once(
    ledger_url: str, ledger: Ledger, submit: Callable[..., Job]
) -> None:
    submit()
    command = [sys.executable, "-c", MAKE_ATTEMPTS, ledger_url, str(ATTEMPTS)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    seen = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    # A process may have slept through some numbers, but each made no gap and no double.
    assert all(numbers == sorted(set(numbers)) for numbers in seen)
    made = [attempt.number for attempt in ledger.attempts.of_job("job-1")]
    assert made == list(range(1, max(map(max, seen)) + 1))
    assert len(made) <= 3 * ATTEMPTS
    assert all(attempt.ended_at for attempt in ledger.attempts.of_job("job-1"))


def test_threads_that_ask_for_the_same_attempt_make_it_once(
    ledger_url: str, ledger: Ledger, submit: Callable[..., Job]
) -> None:
    submit()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(_ensure_first, [ledger_url] * 16)) == {1}
    assert len(ledger.attempts.of_job("job-1")) == 1


def test_two_submissions_of_the_same_run_at_once_are_one_job(ledger_url: str, ledger: Ledger) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(_submit_same, [ledger_url] * 16)) == {"job-1"}
    assert len(ledger.jobs.transitions("job-1")) == 1


def test_only_as_much_is_granted_as_exists_when_all_ask_at_once(
    ledger_url: str, ledger: Ledger, submit: Callable[..., Job]
) -> None:
    for number in range(8):
        submit(f"job-{number}")
        ledger.queue.enqueue(f"job-{number}", GangRequest(f"job-{number}", 1, 1.0, 64, 0, None, utc_now()))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: try_admit(open_ledger(ledger_url), f"job-{n}", TWO_CPUS), range(8)))
    assert [answer.granted for answer in answers] == [True, True] + [False] * 6
    assert len(grants(ledger)) == 2


def test_all_may_migrate_a_new_ledger_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('new')}/sub/ledger.db"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(_upgrade, [url] * 4))
    assert Ledger(url).jobs.find() == []


def test_one_ledger_per_process_and_url(ledger_url: str) -> None:
    assert open_ledger(ledger_url) is open_ledger(ledger_url)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own_connections(ledger_url: str, submit: Callable[..., Job]) -> None:
    submit()
    parents = open_ledger(ledger_url)
    parents.jobs.get("job-1")
    pid = os.fork()
    if pid == 0:
        mine = open_ledger(ledger_url)
        good = mine is not parents and mine.attempts.ensure("job-1", "train", after=None).number == 1
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [attempt.number for attempt in parents.attempts.of_job("job-1")] == [1]
