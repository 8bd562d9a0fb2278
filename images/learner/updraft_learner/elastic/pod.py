"""The coordinator of a job of the platform: `python -m updraft_learner.elastic.pod`, in a pod of its own.

It keeps its state in the object store, so that a successor on another node goes on. There it also reads which learners
shall train, and says which do (`report`). It ends when the training has ended, when a newer attempt exists, or when no
learner has been connected for a long time; the platform starts another one if it is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time

from updraft_learner import contract
from updraft_learner.contract import SIGNAL_LIMIT_BYTES, ExitCode, Keys, PodConfig
from updraft_learner.elastic.coordinator import Coordinator
from updraft_learner.elastic.membership import MembershipCoordinator, Message, learner_of
from updraft_learner.elastic.report import REPORT_LIMIT_BYTES, GroupReport, Members, saved_in
from updraft_learner.pod import PodError, read_config, read_credentials
from updraft_learner.store import ObjectStore, StorageError, open_store

POLL_SECONDS = 0.5
FENCE_SECONDS = 2.0
STORE_SECONDS = 2.0  # timeout of one request: learners that report a loss wait for it
RETRY_SECONDS = 1.0
FAREWELL_SECONDS = 5.0  # after the training's end, for learners that connect again
IDLE_SECONDS = 600.0
SETTLE_SECONDS = 5.0


class JobCoordinator:
    """The coordinator of one attempt.

    Args:
        store: A store with short timeouts.
        hang_seconds: For how long a learner may keep the others waiting.
    """

    def __init__(self, config: PodConfig, store: ObjectStore, token: str, hang_seconds: float) -> None:
        self._config, self._store = config, store
        place = (config.job_id, config.role, config.attempt)
        keys = Keys(config.prefix)
        self._group_key, self._members_key = keys.group(*place), keys.members(*place)
        self._fence_key = keys.fence(config.job_id)
        self._obeys = 0
        self._store_rests_until = 0.0
        self._published = GroupReport()
        saved = self._saved()
        self._membership = MembershipCoordinator(
            config.members, hang_seconds=hang_seconds, settle_seconds=min(SETTLE_SECONDS, hang_seconds), saved=saved
        )
        self._coordinator = Coordinator(self._membership, self._keep, token)

    async def run(self, host: str, port: int) -> str:
        """Serve until nobody needs it any more; return why."""
        await self._coordinator.listen(host, port)
        polls = [asyncio.create_task(self._follow_members()), asyncio.create_task(self._until_fenced())]
        alone_since = time.monotonic()
        try:
            while True:
                await self._coordinator.tick()
                self._publish()
                now = time.monotonic()
                if self._coordinator.connected:
                    alone_since = now
                if self._membership.finished and now - alone_since > FAREWELL_SECONDS:
                    return "the training has ended"
                if now - alone_since > IDLE_SECONDS:
                    return f"no learner has been connected for {IDLE_SECONDS:g} s"
                if polls[1].done():
                    return "a newer attempt of the job exists"
        finally:
            for each in polls:
                each.cancel()

    def report(self) -> GroupReport:
        """Return what the platform reads."""
        membership, status = self._membership, self._membership.status()
        return GroupReport(
            state="lost" if membership.lost else str(status["state"]),
            generation=int(status["generation"]),
            learners=_numbers(status["members"]),
            waiting=_numbers(status["waiting"]),
            excluded=_numbers(membership.excluded),
            obeys=self._obeys,
            pauses=dict(membership.pauses),
        )

    def _publish(self) -> None:
        if self.report() == self._published:
            return
        try:
            self._keep(self._membership.saved())
        except OSError:  # the next round tries again
            return

    def _keep(self, state: Message) -> None:
        report = self.report()
        if time.monotonic() < self._store_rests_until:
            raise OSError("the object store did not answer a moment ago")
        try:
            self._store.put_bytes(self._group_key, report.to_json(state))
        except StorageError as exc:
            self._store_rests_until = time.monotonic() + RETRY_SECONDS
            raise OSError(str(exc)) from exc
        if report.generation != self._published.generation or report.state != self._published.state:
            print(f"generation {report.generation}: learners {list(report.learners)}, {report.state}", flush=True)
        self._published = report

    def _saved(self) -> Message | None:
        """Return what a coordinator before this one has kept, once the store answers."""
        while True:
            try:
                text = self._store.get_bytes(self._group_key, REPORT_LIMIT_BYTES)
                return None if text is None else saved_in(text)
            except StorageError as exc:
                print(f"waiting for the object store: {exc}", file=sys.stderr, flush=True)
            except (ValueError, KeyError, TypeError) as exc:
                raise PodError(f"{self._group_key} is unreadable ({type(exc).__name__})") from exc
            time.sleep(RETRY_SECONDS)

    async def _follow_members(self) -> None:
        while True:
            try:
                text = await asyncio.to_thread(self._store.get_bytes, self._members_key, SIGNAL_LIMIT_BYTES)
                members = None if text is None else Members.from_json(text)
            except StorageError as exc:
                print(f"the members cannot be read now: {exc}", flush=True)
                members = None
            except (ValueError, KeyError, TypeError):  # half of it; the platform writes it whole
                members = None
            if members is not None and members.generation > self._obeys:
                self._obeys = members.generation
                self._coordinator.send(self._membership.lead_to(members.learners))
            await asyncio.sleep(POLL_SECONDS)

    async def _until_fenced(self) -> None:
        """Return when a newer attempt of the role exists."""
        while True:
            await asyncio.sleep(FENCE_SECONDS)
            try:
                text = await asyncio.to_thread(self._store.get_bytes, self._fence_key, SIGNAL_LIMIT_BYTES)
                if text is not None and int(json.loads(text).get(self._config.role, 0)) > self._config.attempt:
                    return
            except (StorageError, ValueError, TypeError, AttributeError):
                continue


def _numbers(names: list[str]) -> tuple[int, ...]:
    found = (learner_of(name) for name in names)
    return tuple(sorted({number for number in found if number is not None}))


def _listening(address: str) -> tuple[str, int]:
    """Return host and port to listen on: where the learners look for the coordinator, or everywhere in this pod if that
    name does not resolve here."""
    host, _, port = address.rpartition(":")
    try:
        return str(socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][4][0]), int(port)
    except OSError:
        return "0.0.0.0", int(port)  # whoever connects needs the job's token


def main() -> int:
    """Run the coordinator; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(ExitCode.DONE)))
    try:
        config, credentials = read_config(), read_credentials()
        store = open_store(config.bucket, credentials.s3, attempts=1, read_seconds=STORE_SECONDS)
        hang_seconds = float(os.environ[contract.ELASTIC_HANG_ENV])
        job = JobCoordinator(config, store, credentials.endpoint_token, hang_seconds)
        host, port = _listening(os.environ[contract.ELASTIC_ENV])
    except (PodError, StorageError, KeyError, ValueError) as exc:
        print(f"updraft-coordinator: {exc}", file=sys.stderr, flush=True)
        return int(ExitCode.CONFIGURATION)
    print(f"listening on {host}:{port}", flush=True)
    print(f"ends: {asyncio.run(job.run(host, port))}", flush=True)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
