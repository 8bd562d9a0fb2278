"""A learner's connection to its coordinator: a thread makes it again when it is lost, and updates `MemberState`."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from updraft_learner.elastic.member_state import MemberState
from updraft_learner.elastic.membership import Message

RETRY_SECONDS = 0.1
ANSWER_LIMIT_BYTES = 1 << 20  # with the names of all learners
RESOLVE_SECONDS = 120.0  # for the coordinator's name, which a cluster gives to it once its pod has an address
Value = TypeVar("Value")


class _Locked:
    def __init__(self, lock: threading.RLock, member: MemberState) -> None:
        self._lock, self._member = lock, member

    def __enter__(self) -> MemberState:
        self._lock.acquire()
        return self._member

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Link:
    """Owns the lock of a `MemberState`: use that within `locked()` only.

    Args:
        address: Of the coordinator, host and port; None: there is none, and nobody answers.
        token: What the coordinator wants to see first.
    """

    def __init__(self, member: MemberState, address: tuple[str, int] | None, token: str = "") -> None:
        self._address, self._member, self._token = address, member, token
        lock = threading.RLock()
        self._changed, self._locked = threading.Condition(lock), _Locked(lock, member)
        self._connection: socket.socket | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="updraft-elastic-link", daemon=True)

    def start(self) -> None:
        if self._address is not None:
            self._thread.start()

    def close(self) -> None:
        """Say what is still to be said, and end."""
        with self._changed:
            self._closed = True
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_WR)  # the coordinator then closes the connection
        if self._thread.is_alive():
            self._thread.join(2.0)

    def locked(self) -> _Locked:
        """Return a context in which the state may be used. Each step takes it three times, so it is made only once."""
        return self._locked

    def send(self, message: Message) -> None:
        """Send if there is a connection; `MemberState.hello` repeats what matters on the next one."""
        with self._changed:
            if self._connection is not None:
                with suppress(OSError):  # the thread notices, and connects again
                    self._connection.sendall(json.dumps(message).encode() + b"\n")

    def wait(self, look: Callable[[MemberState], Value | None], seconds: float | None = None) -> Value | None:
        """Wait until `look` returns something; None: the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while True:
                if (found := look(self._member)) is not None:
                    return found
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)

    def _run(self) -> None:
        while not self._closed:
            with suppress(OSError, ValueError):  # it is not there, or died in the middle of a line
                with socket.create_connection(self._address, timeout=5.0) as connection:  # type: ignore[arg-type]
                    connection.settimeout(None)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._serve(connection)
            with self._changed:
                self._connection = None
            if not self._closed:
                time.sleep(RETRY_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        with self._changed:
            self._connection = connection
            self.send({**self._member.hello(), "token": self._token})
        with connection.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    for answer in self._member.receive(json.loads(line)):
                        self.send(answer)
                    self._changed.notify_all()


def own_host(coordinator: tuple[str, int] | None) -> str:
    """Return the address under which the other learners reach this process."""
    if coordinator is None:
        return "127.0.0.1"
    until = time.monotonic() + RESOLVE_SECONDS
    while True:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
                probe.connect(coordinator)
                return str(probe.getsockname()[0])
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.5)


def request(address: str, message: Message) -> Message:
    """Ask the coordinator at `address`, "host:port". Raises OSError if it does not answer."""
    with connect(address) as connection:
        return ask(connection, message)


def connect(address: str, seconds: float = 5.0) -> socket.socket:
    """Return a connection to ask the coordinator at `address`, "host:port". Raises OSError."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=seconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def ask(connection: socket.socket, message: Message) -> Message:
    """Return the coordinator's answer. Raises OSError if there is none."""
    connection.sendall(json.dumps(message).encode() + b"\n")
    with connection.makefile("rb") as lines:
        answer: Message = json.loads(lines.readline(ANSWER_LIMIT_BYTES) or b"{}")
    if not answer:
        raise ConnectionError("the coordinator closed the connection")
    return answer
