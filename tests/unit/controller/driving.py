"""Drives a role as its trigger does, with everything outside of it in memory: `GangTrigger`'s own steps, no waiting.

A story says what the learners of each attempt do and what people ask for. Both only depend on what is there, so that a
second look, by a successor or by a twin, sees the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from ledger_helpers import grants
from unit.operators.airflow_fakes import Platform
from unit.operators.platform_fakes import SimulatedKill, api_error, role_of, store_checkpoint, store_done

from updraft.allocation import Plan, Reclaim, Resized
from updraft.controller import queueing
from updraft.controller.attempts import EndSignal
from updraft.exceptions import IllegalTransitionError, UpdraftError
from updraft.kubernetes.pod_status import pod_facts
from updraft.lifecycle import State
from updraft.recovery.ends import EndKind
from updraft.recovery.policy import PlannedRelaunch
from updraft.triggers.gang import GangTrigger
from updraft_learner.backoff import Backoff
from updraft_learner.contract import STAGING_FAILED

TAKEN_BACK = "tenant b takes back what is lent from its quota"
CHOSEN = "resized for a test"
STEPS_LIMIT = 400
FAR = datetime.max.replace(tzinfo=UTC)
USED_UP = (
    "exceeded quota: small, requested: requests.memory=384Mi, used: requests.memory=1Gi, limited: requests.memory=1Gi"
)

Learners = Callable[[Platform, int], str | EndSignal]  # what the pods of an attempt show, and how the watching ends


@dataclass
class Story:
    """What happens to a job beside what its controller does. `asks`: (when, kind, changes of the manifest)."""

    learners: Mapping[int, Learners]
    asks: tuple[tuple[str, str, Mapping[str, Any] | None], ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    quota: frozenset[int] = frozenset()  # attempts whose second learner finds it used up
    reclaims: frozenset[str] = frozenset()  # when the planner asks for the job's room
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # when the planner chooses learners and a batch
    back_off: bool = False  # whether a back-off is waited for; otherwise it is over at once
    state: State = State.COMPLETED

    def refusal(self, verb: str, name: str) -> Exception | None:
        """What the cluster answers to who makes an object."""
        if verb != "create pod" or not any(name.endswith(f"-t{number}-1") for number in self.quota):
            return None
        return api_error(403, f'pods "{name}" is forbidden: {USED_UP}')

    def people(self, platform: Platform, job_id: str, when: str) -> None:
        """Each asks once in the job's life, and has an answer before the next one asks."""
        book = platform.ledger
        if when in self.reclaims and book.queue.leaving(job_id) is None:
            book.queue.plan(lambda *_: Plan(reclaimed=(Reclaim(job_id, "other", TAKEN_BACK),)))
        if when in self.sizes and book.queue.leaving(job_id) is None:
            learners, batch = self.sizes[when]
            book.queue.plan(lambda *_: Plan(resized=(Resized(job_id, learners, batch, 2.0, CHOSEN),)))
        asked = sum(1 for _ in book.requests.of_job(job_id))
        if asked >= len(self.asks) or book.jobs.get(job_id).ended:
            return
        at, kind, changes = self.asks[asked]
        if at != when or any(r.answered_at is None and r.kind == kind for r in book.requests.of_job(job_id)):
            return
        manifest = book.jobs.get(job_id).manifest
        revision = None if changes is None else {"manifest": {**manifest, **changes}, "changes": dict(changes)}
        book.requests.make(job_id, kind, "bob", revision=revision)  # type: ignore[arg-type]


class Driver:
    """The processes that drive a job's roles: triggers one after the other, or beside each other."""

    def __init__(self, platform: Platform, story: Story) -> None:
        self.platform, self.story = platform, story
        self.errors: list[BaseException] = []
        self.watched: list[int] = []
        self.kills = 0

    def touched(self, job_id: str, what: str) -> None:
        """The trigger tells the ledger that it guards the job: people act."""
        self.story.people(self.platform, job_id, what)

    def in_queue(self, job_id: str) -> None:
        """A job waits: people act, then the planner."""
        self.story.people(self.platform, job_id, "in the queue")
        queueing.plan(self.platform.services, self.platform.cluster._plain(self.platform.cluster.list_node())["items"])

    def watch(self, job_id: str, attempt: Any) -> EndSignal:
        """One look at an attempt until something ends."""
        self.watched.append(attempt.number)
        platform, learners = self.platform, self.story.learners
        self.story.people(platform, job_id, f"attempt {attempt.number}")
        mine = [pod for pod in platform.cluster.pods.values() if role_of(pod)[1] == attempt.number]
        if not mine:
            return EndSignal(EndKind.MISSING, "the pods are gone")
        kind = learners.get(attempt.number, succeed)(platform, attempt.number)
        with suppress(IllegalTransitionError):
            platform.services.ledger.jobs.move(job_id, State.PROCESSING, f"attempt {attempt.number} runs")
        return kind if isinstance(kind, EndSignal) else EndSignal(EndKind(kind), kind)

    def drive(self, job_id: str, role: str) -> dict[str, Any]:
        """Triggers one after the other: a dead one's successor goes on."""
        while True:
            self.platform.blade.new_process()
            try:
                return asyncio.run(self.steps(job_id, role))
            except SimulatedKill:
                self.kills += 1

    async def steps(self, job_id: str, role: str) -> dict[str, Any]:
        """One trigger's life."""
        made = Driven(self, job_id, role)
        watch: Any = SimpleNamespace(subscribe=lambda key: None, unsubscribe=lambda *_: None)
        for _ in range(STEPS_LIMIT):
            try:
                event = await made._step(watch)
            except UpdraftError as exc:
                self.errors.append(exc)
                continue
            if event is not None:
                return event
        raise AssertionError(f"the role does not end: {self.errors[-3:]}")


class Driven(GangTrigger):
    """A trigger that finds its world with a driver, and waits for nothing."""

    def __init__(self, driver: Driver, job_id: str, role: str) -> None:
        super().__init__(conn_id="c", namespace="updraft-default", job_id=job_id, role=role)
        self._driver = driver
        services = driver.platform.services
        timing = replace(services.timing, tick_seconds=0.001, retry=Backoff(0.001, 0.001))
        self.make_services = lambda: replace(services, timing=timing)

    def _now(self) -> datetime:
        return super()._now() if self._driver.story.back_off else FAR

    def _touch(self, what: str) -> None:
        self._driver.touched(self.job_id, what)

    def _tell(self) -> None:
        """Telling MLflow goes on beside the driving, at moments of its own; here each call has its number."""

    def _poller(self) -> Any:
        return Poller(self._driver)

    def _queue(self) -> Any:
        return Queue(self._driver)

    async def _watch_attempt(self, watch: Any, job: Any, launch: Any, attempt: Any) -> EndSignal:
        return await asyncio.to_thread(self._driver.watch, job.id, attempt)


@dataclass
class Poller:
    """People act when it is asked, and then there is something to look at."""

    driver: Driver

    @contextmanager
    def guarding(self, job_id: str, what: str) -> Iterator[None]:
        yield

    async def asked(self, job_id: str) -> bool:
        await asyncio.to_thread(self.driver.story.people, self.driver.platform, job_id, "halted")
        return True


@dataclass
class Queue:
    """The planner's, without its process: it plans each time that the job has waited."""

    driver: Driver

    @contextmanager
    def waiting(self, job_id: str, what: str) -> Iterator[Place]:
        yield Place(self.driver, job_id)

    @contextmanager
    def planned(self) -> Iterator[None]:
        yield


@dataclass
class Place:
    driver: Driver
    job_id: str

    async def look_again(self, to: object, *, at_first_plan: bool) -> None:
        await asyncio.to_thread(self.driver.in_queue, self.job_id)


WHO: ContextVar[str] = ContextVar("who", default="")


class Twins:
    """Two triggers of one role: the first is stopped after its n-th call, the second one goes on. The first wakes up
    while the second watches a later attempt, or when all is over."""

    def __init__(self, platform: Platform, driver: Driver, *, stop_after: int, wakes_at_end: bool) -> None:
        self.log: list[str] = []
        self._platform, self._driver = platform, driver
        self._stop_after, self._wakes_at_end = stop_after, wakes_at_end
        self._stopped, self._wake = threading.Event(), threading.Event()
        self._first: threading.Thread | None = None
        self._attempt = 0  # that the first one was at when it was stopped
        self._real_around, self._real_watch = platform.blade.around, driver.watch
        platform.blade.around = self._around  # type: ignore[method-assign]
        driver.watch = self._watch  # type: ignore[method-assign]

    def drive(self, job_id: str, role: str) -> dict[str, Any]:
        """The second one's event; the first one may still be stopped."""
        if self._first is None:
            self._first = threading.Thread(target=self._run, args=("first", job_id, role), daemon=True)
            self._first.start()
            assert self._stopped.wait(60)
        return self._run("second", job_id, role)

    def wake(self) -> None:
        """Everything is over, and the first one ends as well."""
        self._wake.set()
        if self._first is not None:
            self._first.join(60)
            assert not self._first.is_alive(), f"still runs: {self._driver.errors[-3:]}"

    def _run(self, who: str, job_id: str, role: str) -> dict[str, Any]:
        token = WHO.set(who)
        try:
            return asyncio.run(self._driver.steps(job_id, role))
        finally:
            WHO.reset(token)
            if who == "first":
                self._stopped.set()

    def _around(self, name: str, call: Callable[[], Any]) -> Any:
        result = self._real_around(name, call)
        if WHO.get() == "first" and not self._stopped.is_set():
            self.log.append(name)
            if len(self.log) == self._stop_after:
                newest = self._platform.ledger.attempts.current(self._platform.job.id, "train")
                self._attempt = newest.number if newest else 0
                self._stopped.set()
                assert self._wake.wait(60)
        return result

    def _watch(self, job_id: str, attempt: Any) -> EndSignal:
        if WHO.get() == "second" and not self._wakes_at_end and attempt.number > self._attempt and self._first:
            self._wake.set()
            self._first.join(60)  # it ends what it wants to end; then the second one looks
        return self._real_watch(job_id, attempt)


def _each(platform: Platform, attempt: int) -> list[tuple[str, int]]:
    """Names and learners of the attempt's pods."""
    found = [(name, role_of(pod)) for name, pod in platform.cluster.pods.items()]
    return sorted((name, learner) for name, (_, number, learner) in found if number == attempt)


def succeed(platform: Platform, attempt: int) -> str:
    for name, learner in _each(platform, attempt):
        platform.cluster.set_status(name, exit_code=0)
        if learner == 1:
            store_checkpoint(platform.store, platform.job.id, f"end-{attempt}", 10 * attempt, {"acc": 0.5})
            _of(platform, f"end-{attempt}", attempt)
        store_done(platform.store, platform.job.id, "train", attempt, learner)
    return "ended"


def saves(*names: str, then: Learners) -> Learners:
    """The attempt stores checkpoints, whose step is the number at their end, before it ends."""

    def learners(platform: Platform, attempt: int) -> str:
        for name in names:
            store_checkpoint(platform.store, platform.job.id, name, int(name.rpartition("-")[2]), {"acc": 0.1})
            _of(platform, name, attempt)
        return then(platform, attempt)

    return learners


def exits(code: int, *, peers: int | None = None) -> Learners:
    """Learner 2 ends with this code; its peer runs on, or ends with another one."""

    def learners(platform: Platform, attempt: int) -> str:
        for name, learner in _each(platform, attempt):
            platform.cluster.set_status(name, exit_code=code if learner == 2 else peers)
        return "failed" if peers is None else "ended"

    return learners


def bad_checkpoint(platform: Platform, attempt: int) -> str:
    """Staging finds the checkpoint damaged (66)."""
    for name, _ in _each(platform, attempt):
        said = f"{STAGING_FAILED}model.pt does not match its digest"
        damaged = {"terminated": {"exitCode": 66, "message": said}}
        status = {"phase": "Failed", "containerStatuses": [{"name": "base", "state": damaged}]}
        platform.cluster.pods[name]["status"] = status
    return "failed"


def runs_on(kind: str) -> Learners:
    """The learners live; the watching ends for another reason."""

    def learners(platform: Platform, attempt: int) -> str:
        for name, _ in _each(platform, attempt):
            platform.cluster.set_status(name)
        return kind

    return learners


def finds_no_room(platform: Platform, attempt: int) -> str:
    """Learner 2 waits for a place until the controller's patience is over."""
    pending = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient cpu."}
    for name, learner in _each(platform, attempt):
        if learner == 2:
            platform.cluster.pods[name]["status"] = {"phase": "Pending", "conditions": [pending]}
        else:
            platform.cluster.set_status(name)
    return "late"


def preempted(platform: Platform, attempt: int) -> EndSignal:
    """A pod of higher priority takes the place: the cluster removes the learners, and by the time that anybody looks
    they are gone, as a node keeps no pod that has ended and is to be deleted."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    gone = []
    for name, _ in _each(platform, attempt):
        platform.cluster.set_status(name, exit_code=143, conditions=[condition])
        gone.append(pod_facts(platform.cluster.pods.pop(name)))
    return EndSignal(EndKind.MISSING, "the pods are gone", pods=gone)


def _of(platform: Platform, name: str, attempt: int) -> None:
    """Which attempt stored the checkpoint."""
    import json

    from updraft_learner.contract import Keys

    key = Keys("default").checkpoint_marker(platform.job.id, name)
    marker = json.loads(platform.store.get_bytes(key) or b"{}")
    platform.store.put_bytes(key, json.dumps({**marker, "attempt": attempt}).encode())


def facts(platform: Platform) -> dict[str, Any]:
    """What a kill could have doubled, lost or told otherwise; times are left out."""
    job, book, mlflow = platform.job, platform.ledger, platform.mlflow
    fence = platform.store.get_bytes(f"default/jobs/{job.id}/fence.json")
    return {
        "verdict": job.verdict,
        "tasks": dict(platform.states),
        "transitions": [(t.from_state, t.to_state, t.reason) for t in book.jobs.transitions(job.id)],
        "attempts": [
            (a.role, a.number, a.outcome, a.reason, a.label, a.resume, _timeless(a.relaunch), a.revision, a.evidence)
            for a in book.attempts.of_job(job.id)
        ],
        "requests": [(r.kind, r.answer) for r in book.requests.of_job(job.id)],
        "revisions": [(r.number, r.manifest, r.by) for r in book.jobs.revisions(job.id)],
        "checkpoints": [
            (c.name, c.attempt, c.delete_reason, c.quarantine_reason)
            for c in book.checkpoints.of_job(job.id, with_deleted=True, with_quarantined=True)
        ],
        "stored": sorted(item.key for item in platform.store.list("") if "/checkpoints/" in item.key),
        "told": [(r.info.status, r.data.tags) for r in mlflow.runs.values()],
        "endings": mlflow.endings,
        "granted": grants(book),
        "created": sorted(platform.cluster.created),
        "left": platform.cluster.left,
        "fence": fence,
        "waiting": book.outbox.undelivered(job.id),
    }


def _timeless(relaunch: PlannedRelaunch | None) -> PlannedRelaunch | None:
    return None if relaunch is None else replace(relaunch, not_before=datetime.min)
