from __future__ import annotations

import threading
from typing import Any

import pytest

from updraft.exceptions import UnavailableError
from updraft.ledger import Ledger, open_ledger


def test_one_holder_at_a_time(ledger_url: str) -> None:
    inside, most, guard = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with open_ledger(ledger_url).leases.lock("promote digits"):
            with guard:
                inside += 1
                most = max(most, inside)
            open_ledger(ledger_url).jobs.find()
            with guard:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_lock_that_is_held_is_waited_for_and_others_are_free(ledger: Ledger) -> None:
    with ledger.leases.lock("a"), ledger.leases.lock("b"):
        with pytest.raises(UnavailableError, match="'a' was held by another for 0 seconds"):
            with ledger.leases.lock("a", wait_seconds=0):
                pass
    with ledger.leases.lock("a", wait_seconds=0):
        pass


def test_the_lock_of_a_dead_holder_runs_out(ledger: Ledger, clock: Any) -> None:
    with ledger.leases.lock("a", lease_seconds=60):
        clock.forward(61)
        with ledger.leases.lock("a", wait_seconds=0):
            pass
        # The late first holder must not free what another took in the meantime; leaving is harmless.
    with ledger.leases.lock("a", wait_seconds=0):
        pass
