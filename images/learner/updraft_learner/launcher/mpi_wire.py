"""Frames between the launchers of an MPI job, and how both ends prove that they know the launch's token.

A frame is its kind, a session, a length, and that many bytes. A session is one command of one agent.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import threading

RUN, OUTPUT, ERROR, EXIT, END, HELLO = range(6)
LARGEST_BYTES = 1 << 20
NONCE_BYTES = 32
_HEAD = struct.Struct("!BII")


class WireError(Exception):
    """The other end does not follow the protocol, or does not know the token."""


class Wire:
    """A connection that carries frames. Several threads may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, kind: int, session: int, content: bytes) -> None:
        with self._lock:
            self.connection.sendall(_HEAD.pack(kind, session, len(content)) + content)

    def receive(self) -> tuple[int, int, bytes]:
        """Return kind, session and content of the next frame. Raises OSError, WireError at the end."""
        kind, session, size = _HEAD.unpack(self._exactly(_HEAD.size))
        if size > LARGEST_BYTES:
            raise WireError("a frame is too large")
        return kind, session, self._exactly(size)

    def expect(self, kind: int) -> tuple[int, bytes]:
        """Return session and content of the next frame, which must be of this kind."""
        found, session, content = self.receive()
        if found != kind:
            raise WireError("the other end is no launcher of this job")
        return session, content

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.connection.recv(min(size, 65536))
            if not part:
                raise WireError("the connection was closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def greet_leader(wire: Wire, token: bytes, number: int) -> None:
    """Say which learner this is, and check that the other end is the leader."""
    nonce = os.urandom(NONCE_BYTES)
    _, theirs = wire.expect(HELLO)
    wire.send(HELLO, number, nonce + _proof(token, b"agent", theirs, nonce, number))
    _, proof = wire.expect(HELLO)
    if not hmac.compare_digest(proof, _proof(token, b"leader", nonce, theirs, number)):
        raise WireError("the first learner does not know the token of this launch")
    wire.connection.settimeout(None)


def greet_agent(wire: Wire, token: bytes) -> int:
    """Return the number of the learner at the other end. Raises WireError if it does not know the token."""
    nonce = os.urandom(NONCE_BYTES)
    wire.send(HELLO, 0, nonce)
    number, answer = wire.expect(HELLO)
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"agent", nonce, theirs, number)):
        raise WireError("a learner does not know the token of this launch")
    wire.send(HELLO, number, _proof(token, b"leader", theirs, nonce, number))
    return number


def _proof(token: bytes, role: bytes, given: bytes, own: bytes, number: int) -> bytes:
    return hmac.new(token, b"%s %d " % (role, number) + given + own, "sha256").digest()
