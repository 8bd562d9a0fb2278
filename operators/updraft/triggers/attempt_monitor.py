"""Watch the learners of one attempt until a detector or a request ends it; store their logs, and update the job's
state.

It does not decide about success: the attempt is judged afterwards, from evidence that is read again. Used by
`updraft.triggers.gang`, in the triggerer's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from updraft.controller import notices, pods, user_requests
from updraft.controller.attempts import EndSignal
from updraft.controller.in_place import InPlaceGroup
from updraft.controller.progress_monitor import ProgressMonitor
from updraft.controller.records import manifest_of
from updraft.exceptions import IllegalTransitionError, StaleAttemptError, UpdraftError
from updraft.kubernetes.watch import LaunchKey, PodWatch, launch_key
from updraft.lifecycle import State
from updraft.lifecycle.workflow import (
    BEFORE_ROLES,
    EXPORT_ROLE,
    TRAIN_ROLE,
    compares,
    evaluates_champion,
    runs_own_program,
)
from updraft.recovery.ends import EndKind, GangView, look
from updraft.recovery.facts import PodFacts, stage_of, with_last_seen
from updraft.triggers.followers import Followers
from updraft.triggers.request_poller import request_poller
from updraft_learner.contract import COORDINATOR_LEARNER

if TYPE_CHECKING:
    from updraft.kubernetes.objects import Launch
    from updraft.ledger import Attempt, Job
    from updraft.lifecycle.membership import Membership
    from updraft.services import Services

BEGIN_SECONDS = 120.0  # for a program to call updraft_learner.elastic.init, before it is resized by a restart
EVIDENCE_PODS = 16  # of a larger gang, only the first ones are recorded
ORDER = (State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.STORING)


class AttemptMonitor:
    """Watches one attempt for one trigger. Call `run` once. Times are this process's own.

    Args:
        core: The synchronous client of the cluster, for attempts whose learners join and leave.
        call: Runs a function that may wait long for the cluster in a thread.
    """

    def __init__(
        self,
        services: Services,
        watch: PodWatch,
        job: Job,
        launch: Launch,
        attempt: Attempt,
        log: Any,
        *,
        core: Any = None,
        call: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._services = services
        self._core, self._call = core, call
        self._in_place = InPlaceGroup(services, job, launch) if launch.in_place else None
        self._clock = services.timing.clock
        self._watch, self._job, self._launch, self._attempt, self._log = watch, job, launch, attempt, log
        self._followers = Followers(launch, services.open_store, log, timing=services.timing)
        self._attention = ProgressMonitor(services, job, launch)
        self._members = launch.membership
        self._since: dict[str, float] = {}  # since when each detector's finding holds
        self._halting_since: float | None = None
        self._not_begun_since: float | None = None
        self._measured = True  # whether the speed of the members is measured
        self._shown: tuple[State, str] | None = None

    async def run(self) -> EndSignal:
        launch = self._launch
        try:
            what = f"{launch.role}: watching attempt {launch.attempt}"
            with request_poller(self._services).guarding(launch.job_id, what):
                kind, reason, last = await self._watch_pods()
            await self._followers.finish()
        finally:
            await self._followers.stop()
        return EndSignal(kind, reason, self._followers.tails, last)

    async def _watch_pods(self) -> tuple[EndKind, str, tuple[PodFacts, ...]]:
        """Return what ended, why, and every pod as it was last seen."""
        key = launch_key(self._launch)
        woken = self._watch.subscribe(key)
        try:
            kind, reason = await self._something_ends(woken)
            return kind, reason, tuple(self._watch.last_seen(key))
        finally:
            self._watch.unsubscribe(key, woken)

    async def _something_ends(self, woken: asyncio.Event) -> tuple[EndKind, str]:
        watch, launch, attempt = self._watch, self._launch, self._attempt
        key = launch_key(launch)
        seen: set[int] = set()
        started = looked = self._clock()
        waited = 0.0  # for room or for the build of an environment, which is not the program's time
        built = 0.0  # the part of `waited` for environments
        limit = await asyncio.to_thread(self._runtime_left_seconds)
        grace = await asyncio.to_thread(pods.grace_seconds, self._services, attempt)
        late = self._services.settings.deploy_timeout_seconds - await asyncio.to_thread(
            pods.deployed_seconds, self._services, attempt
        )
        while True:
            found = watch.pods(key)
            now = self._clock()
            before = looked
            waited += now - looked if any(p.unscheduled or p.building for p in found) else 0.0
            looked = now
            if watch.synced.is_set():
                self._followers.follow(watch, [pod for pod in found if pod.learner != COORDINATOR_LEARNER])
                certain = self._in_place is None or await self._change_members(self._in_place, key, found)
                await self._show(found)
                seen |= {pod.learner for pod in found}
                members = self._members.learners if self._in_place is None else self._in_place.established
                found = [pod for pod in found if pod.learner in members]
                known = [p for p in with_last_seen(found, watch.last_seen(key)) if p.learner in members]
                present = {pod.learner for pod in known}
                not_running = any(p.main.state in ("absent", "waiting") for p in found)
                building = any(p.building for p in found)  # the local node limits the time of a build
                built += now - before if building else 0.0
                view = GangView(
                    found,
                    known,
                    tuple(n for n in members if n not in present),
                    len(members),
                    all_seen=seen.issuperset(members),
                    halting=self._halting_since is not None,
                    grace_seconds=grace,
                    node_lost_seconds=self._services.settings.node_lost_seconds,
                    start_overdue=not_running and not building and now - started - built > late,
                    shown=self._shown[1] if self._shown else "",
                    secret=launch.base_name,
                )
                if certain and (end := await self._detect(view)) is not None:
                    return end
            else:  # later findings come from new facts, and have to last from their start again
                self._since = {}
            if limit is not None and now - started - waited > limit:
                return EndKind.DEADLINE, "budget.max_runtime is used up"
            if (asked := await self._asked()) is not None:
                return asked
            if self._in_place is None:
                await self._look_at_members()
            if (stuck := await self._attention.look(found, self._followers.lines)) is not None:
                return stuck
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), self._services.timing.tick_seconds)
            woken.clear()

    async def _change_members(self, group: InPlaceGroup, key: LaunchKey, found: Sequence[PodFacts]) -> bool:
        """Let learners join and leave. Returns False if that is not known now: then nothing may be concluded from a
        learner that has ended."""
        known = with_last_seen(found, self._watch.last_seen(key))
        stopping = self._halting_since is not None
        try:
            look = partial(group.look, stopping=stopping, straggler=self._attention.straggler)
            members = await self._call(look, self._core, found, known, self._followers.tails)
        except StaleAttemptError:  # another controller has ended the attempt: what the pods show is the end
            return True
        except UpdraftError as exc:  # the next look tries again
            self._log.warning("The learners that join or leave are not known: %s", exc)
            return False
        if members != self._members:
            self._log.info("Generation %d: learners %s", members.generation, list(members.learners))
            self._since = {}  # the findings were about other members
        if members != self._members or group.changing:
            self._measured = False
            self._attention.regroup(None)
        elif not self._measured:
            self._measured = True
            self._attention.regroup(members)
        if group.settled:  # and shown
            self._shown = self._stage(found, members)
        self._members = members
        return True

    async def _detect(self, view: GangView) -> tuple[EndKind, str] | None:
        """Return the first detector whose finding has lasted for its patience."""
        ends, self._since = look(view, self._since, self._clock())
        for detector, reason in ends:
            if detector.kind is EndKind.NO_SECRET and not await self._watch.lacks_secret(self._launch.base_name):
                self._since.pop(detector.name)  # check again after the same time
                continue
            return detector.kind, reason
        return None

    async def _asked(self) -> tuple[EndKind, str] | None:
        """Return a cancel, a halt, or the planner's wish for the job's room as the end of the attempt. The last two
        first ask the programs to save and exit, and wait a bounded time for them."""
        try:
            if not await request_poller(self._services).asked(self._launch.job_id):
                self._halting_since = None
                return None
            job, reason, kind = await asyncio.to_thread(
                user_requests.asked_to_leave, self._services, self._launch.job_id
            )
            if job.cancel_requested_by is not None:
                return EndKind.CANCELLED, f"cancelled by {job.cancel_requested_by}"
            if reason is None:
                self._halting_since = None
                return None
            if self._in_place is not None and kind is EndKind.RECLAIMED and await self._resizes_in_place():
                self._halting_since = None
                return None
            if runs_own_program(self._launch.role):  # it begins again
                return kind, f"{reason}; this step begins again when the job goes on"
            now = self._clock()
            if self._halting_since is None:
                self._halting_since = now
            if now - self._halting_since <= self._services.settings.halt_wait_seconds:
                await asyncio.to_thread(user_requests.ask_to_stop, self._services, job, self._attempt)
                return None
            return kind, f"{reason}; its programs did not leave on request and were stopped"
        except UpdraftError as exc:  # the learners need neither the ledger nor the store; the next look asks again
            self._log.warning("What people ask of the job is not known: %s", exc)
            return None

    async def _resizes_in_place(self) -> bool:
        """Return whether the planner wants another size, and the learners can get it while they train. A program that
        does not use `updraft_learner.elastic` is resized by a restart, after some time to begin."""
        assert self._in_place is not None
        if await asyncio.to_thread(self._services.ledger.queue.target, self._launch.job_id) is None:
            return False
        if self._in_place.began:
            return True
        now = self._clock()
        self._not_begun_since = self._not_begun_since or now
        if now - self._not_begun_since < BEGIN_SECONDS:
            return True
        note = (
            "its program has not begun to train with updraft_learner.elastic, so it cannot be resized in place; it is "
            "resized by a restart"
        )
        await asyncio.to_thread(self._services.ledger.jobs.note, self._launch.job_id, note, {})
        return False

    async def _look_at_members(self) -> None:
        """Take over a newer generation of the attempt's members."""
        launch = self._launch
        try:
            if await request_poller(self._services).generation(launch.job_id, launch.role) <= self._members.generation:
                return
            attempt = await asyncio.to_thread(self._services.ledger.attempts.current, launch.job_id, launch.role)
        except UpdraftError as exc:  # the next look asks again
            self._log.warning("The members of the attempt are not known: %s", exc)
            return
        if attempt is None or attempt.number != launch.attempt or attempt.membership == self._members:
            return
        self._members = attempt.membership
        self._since = {}  # the findings were about other members
        self._log.info("Generation %d: learners %s", self._members.generation, list(self._members.learners))

    def _runtime_left_seconds(self) -> float | None:
        launch = self._launch
        limit = manifest_of(self._job).budget.max_runtime
        return (
            None
            if limit is None
            else limit.total_seconds() - self._services.ledger.attempts.runtime_seconds(launch.job_id, launch.role)
        )

    async def _show(self, found: Sequence[PodFacts]) -> None:
        """Bring the job's state forward to what the pods show; never backward within one attempt."""
        shown = self._shown
        if self._in_place is not None and self._in_place.changing:
            return  # the job is RESIZING until the group is what it should be
        found = [pod for pod in found if pod.learner != COORDINATOR_LEARNER]
        state, reason = self._stage(found, self._members)
        if shown is not None and ((state, reason) == shown or ORDER.index(state) < ORDER.index(shown[0])):
            return
        try:
            evidence = {"pods": [pod.evidence() for pod in found[:EVIDENCE_PODS]]}
            await asyncio.to_thread(self._move, state, reason, evidence, first_look=shown is None)
        except UpdraftError as exc:  # the next look tries again
            self._log.warning("%s could not be recorded: %s", state.value, exc)
            return
        self._log.info("%s: %s", state.value, reason)
        self._shown = (state, reason)

    def _stage(self, found: Sequence[PodFacts], members: Membership) -> tuple[State, str]:
        """Return what the pods of these members show."""
        launch = self._launch
        state, reason = stage_of(found, members)
        if launch.role in BEFORE_ROLES:
            state, reason = _preparing(state, reason)
        elif launch.role != TRAIN_ROLE:
            state, reason = State.STORING, f"{_work_of(launch.role)}: {reason}"
        if launch.attempt > 1 and state is not State.STORING:
            reason = f"attempt {launch.attempt}: {reason}"
        return state, reason

    def _move(self, state: State, reason: str, evidence: dict[str, Any], *, first_look: bool) -> None:
        book = self._services.ledger
        job = book.jobs.get(self._launch.job_id)
        if first_look and job.state in ORDER and ORDER.index(state) < ORDER.index(job.state):
            return  # after a trigger died, its successor first sees an earlier state than the ledger has
        with suppress(IllegalTransitionError):
            book.jobs.move(self._launch.job_id, state, reason, evidence)
        if state is State.PROCESSING and self._launch.role == TRAIN_ROLE:
            notices.tell(self._services, job, "started", reason)


def _work_of(role: str) -> str:
    """Return what a role after the training does, for people."""
    if evaluates_champion(role):
        return f"evaluating the champion, version {role.partition('-')[2]}"
    if compares(role):
        return "comparing with the champion"
    return "exporting" if role == EXPORT_ROLE else "evaluating"


def _preparing(state: State, reason: str) -> tuple[State, str]:
    """Return state and reason of the pod that prepares code and data: users see all of its work as DOWNLOADING."""
    if state in (State.PROCESSING, State.STORING):
        return State.DOWNLOADING, "code and data are being prepared"
    return state, f"preparing code and data: {reason}"
