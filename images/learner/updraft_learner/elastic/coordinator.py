"""The coordinator of one elastic job, a process of its own: `python -m updraft_learner.elastic.coordinator`.

It puts `membership` on a TCP port: one JSON object per line. Losing it delays resizes, not training: learners exchange
gradients among themselves, and connect again when it is back. What it keeps must outlive it. `pod` does the same for a
job of the platform.

A person or the platform asks with `link.request(address, {"type": "status"})` and `{"type": "remove", "member": NAME}`.
A learner's sidecar says `{"type": "killed", "member": NAME}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from updraft_learner.elastic.membership import MembershipCoordinator, Message, Sent

TICK_SECONDS = 0.05


class Coordinator:
    """Serves one job.

    Args:
        membership: Its state.
        keep: Keeps what `membership.saved` returns where it outlives this process; raises OSError if it cannot now.
        token: What each message must bring to be heard; empty: nothing.
    """

    def __init__(self, membership: MembershipCoordinator, keep: Callable[[Message], None], token: str = "") -> None:
        self._membership, self._keep, self._token = membership, keep, token
        self._kept = membership.saved()
        self._held: Sent = []  # what may be said only when the state is kept
        self._writers: dict[str, asyncio.StreamWriter] = {}

    @property
    def connected(self) -> int:
        """Return how many learners are connected."""
        return len(self._writers)

    async def listen(self, host: str, port: int) -> int:
        """Begin to serve; return the port."""
        server = await asyncio.start_server(self._connection, host, port)
        return int(server.sockets[0].getsockname()[1])

    async def tick(self) -> None:
        """Wait a moment, and do what its time has come for."""
        await asyncio.sleep(TICK_SECONDS)
        self.send(self._membership.tick(time.monotonic()))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if not name and not secrets.compare_digest(str(message.get("token", "")), self._token):
                    print("a connection without the job's token was refused", flush=True)
                    return
                if message["type"] == "hello":
                    name = str(message["name"])
                    self._writers[name] = writer  # an older connection of this learner counts no more
                elif not name:
                    self._answer(writer, message)
                    continue
                if self._writers.get(name) is not writer:
                    return
                self.send(self._membership.receive(name, message, time.monotonic()))
        except (OSError, ValueError, KeyError, TypeError) as exc:
            print(f"connection of {name or 'a stranger'} ended: {exc!r}", flush=True)
        finally:
            if name and self._writers.get(name) is writer:
                del self._writers[name]
                self.send(self._membership.gone(name, time.monotonic()))
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, message: Message) -> None:
        if message["type"] == "remove":
            answer, sent = self._membership.remove(str(message["member"]))
            self.send(sent)
        else:
            answer = "ok"
            if message["type"] == "killed":
                self.send(self._membership.killed(str(message["member"]), time.monotonic()))
        writer.write(json.dumps({"answer": answer, **self._membership.status()}).encode() + b"\n")

    def send(self, sent: Sent) -> None:
        """Keep the state, then send: the beginning of the training, and a change that is decided, are never forgotten.

        While the state cannot be kept, these two are not said. Everything else is: learners report again what a
        successor has to know of it.
        """
        state = self._membership.saved()
        if state != self._kept:
            try:
                self._keep(state)
                self._kept = state
            except OSError as exc:
                print(f"the state cannot be kept now: {exc}", flush=True)
                self._held += [each for each in sent if _needs_memory(each[1])]
                sent = [each for each in sent if not _needs_memory(each[1])]
        if self._held and state == self._kept:
            sent, self._held = [*self._held, *sent], []
        for name, message in sent:
            if (writer := self._writers.get(name)) is not None and not writer.is_closing():
                writer.write(json.dumps(message).encode() + b"\n")


def _needs_memory(message: Message) -> bool:
    """Return whether a coordinator that forgot this could do harm: it would begin another training, or forget those
    who are about to have the state."""
    kind = message["type"]
    return kind == "go" or bool(kind == "plan" and message["plan"]["generation"] == 1)


def keep_in_file(path: Path) -> Callable[[Message], None]:
    """Return what keeps the state of a coordinator in a file."""

    def keep(state: Message) -> None:
        temporary = path.with_name(path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    return keep


async def _serve(membership: MembershipCoordinator, state: Path, host: str, port: int) -> None:
    coordinator = Coordinator(membership, keep_in_file(state))
    print(json.dumps({"port": await coordinator.listen(host, port)}), flush=True)
    while True:
        await coordinator.tick()


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
    asyncio.run(_serve(membership, given.state, given.host, given.port))


if __name__ == "__main__":
    main()
