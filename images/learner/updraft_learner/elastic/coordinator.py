"""The coordinator of one elastic job, a process of its own: `python -m updraft_learner.elastic.coordinator`.

It puts `membership` on a TCP port: one JSON object per line. Losing it delays resizes, not training: learners exchange
gradients among themselves, and connect again when it is back. Its state file must outlive it.

A person or the platform asks with `request(address, {"type": "status"})` and `{"type": "remove", "member": NAME}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from pathlib import Path

from updraft_learner.elastic.membership import MembershipCoordinator, Message, Sent

TICK_SECONDS = 0.05


def request(address: str, message: Message, seconds: float = 5.0) -> Message:
    """Ask the coordinator at `address`, "host:port". Raises OSError if it does not answer."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(json.dumps(message).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer: Message = json.loads(lines.readline() or b"{}")
    if not answer:
        raise ConnectionError(f"the coordinator at {address} closed the connection")
    return answer


class Coordinator:
    """Serves one job.

    Args:
        membership: Its state.
        file: Where that is kept.
    """

    def __init__(self, membership: MembershipCoordinator, file: Path) -> None:
        self._membership, self._file = membership, file
        self._kept = json.dumps(membership.saved())
        self._writers: dict[str, asyncio.StreamWriter] = {}

    async def serve(self, host: str, port: int) -> None:
        server = await asyncio.start_server(self._connection, host, port)
        print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._send(self._membership.tick(time.monotonic()))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if message["type"] == "hello":
                    name = str(message["name"])
                    self._writers[name] = writer  # an older connection of this learner counts no more
                elif not name:
                    self._answer(writer, message)
                    continue
                if self._writers.get(name) is not writer:
                    return
                self._send(self._membership.receive(name, message, time.monotonic()))
        except (OSError, ValueError, KeyError, TypeError) as exc:
            print(f"connection of {name or 'a stranger'} ended: {exc!r}", flush=True)
        finally:
            if name and self._writers.get(name) is writer:
                del self._writers[name]
                self._send(self._membership.gone(name, time.monotonic()))
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, message: Message) -> None:
        if message["type"] == "remove":
            answer, sent = self._membership.remove(str(message["member"]))
            self._send(sent)
        else:
            answer = "ok"
        writer.write(json.dumps({"answer": answer, **self._membership.status()}).encode() + b"\n")

    def _send(self, sent: Sent) -> None:
        """Keep the state, then send: what a learner was told is never forgotten."""
        kept = json.dumps(self._membership.saved())
        if kept != self._kept:
            temporary = self._file.with_name(self._file.name + ".new")
            with temporary.open("w", encoding="utf-8") as file:
                file.write(kept)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._file)
            self._kept = kept
        for name, message in sent:
            if (writer := self._writers.get(name)) is not None and not writer.is_closing():
                writer.write(json.dumps(message).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Coordinate the learners of one elastic job.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, which it prints")
    parser.add_argument("--state", type=Path, required=True, help="its file, which must outlive it")
    parser.add_argument("--first", type=int, default=1, help="how many learners begin the training")
    parser.add_argument("--hang-seconds", type=float, default=60.0)
    parser.add_argument("--settle-seconds", type=float, default=5.0)
    given = parser.parse_args()
    saved = json.loads(given.state.read_text(encoding="utf-8")) if given.state.exists() else None
    membership = MembershipCoordinator(
        given.first, hang_seconds=given.hang_seconds, settle_seconds=given.settle_seconds, saved=saved
    )
    asyncio.run(Coordinator(membership, given.state).serve(given.host, given.port))


if __name__ == "__main__":
    main()
