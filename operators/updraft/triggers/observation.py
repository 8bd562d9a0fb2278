"""Watches the learners of one attempt until something ends, and says what; keeps their logs and the job's state.

It decides nothing about success: the attempt is judged afterwards from evidence read afresh. Used by
`updraft.triggers.gang`, in the triggerer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from updraft.exceptions import IllegalTransitionError, UpdraftError
from updraft.guardian import pods, requests
from updraft.guardian.attempts import Seen
from updraft.guardian.attention import Attention
from updraft.guardian.records import ledger, manifest_of
from updraft.kubernetes.watch import PodWatch, launch_key
from updraft.lifecycle import State
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.recovery.facts import PodFacts, stage_of, with_last_seen
from updraft.settings import settings
from updraft.triggers.desk import desk
from updraft.triggers.followers import Followers
from updraft_learner.contract import ExitCode

if TYPE_CHECKING:
    from updraft.kubernetes.objects import Launch
    from updraft.ledger import Attempt, Job

TICK_SECONDS = 2.0  # requests and deadlines are looked at this often
MISSING_SECONDS = 20.0  # a pod that the watch has never shown for this long is not coming
GONE_SECONDS = 2.0  # one that it has shown, and shows no more
BLOCKED_SECONDS = 30.0  # an image that cannot be pulled for this long will not come by itself
LATE_SECONDS = 10.0  # past the time for starting, the moment between two containers is no standstill
EVIDENCE_PODS = 16  # of a larger gang, the first ones stand for all
ORDER = (State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.STORING)
WORDS = {EVALUATE_ROLE: "evaluating", EXPORT_ROLE: "exporting"}


class Observation:
    """Of one attempt by one trigger. `run` once; times are this process's own."""

    def __init__(self, watch: PodWatch, job: Job, launch: Launch, attempt: Attempt, log: Any) -> None:
        self._watch, self._job, self._launch, self._attempt, self._log = watch, job, launch, attempt, log
        self._followers = Followers(launch, log)
        self._attention = Attention(job, launch)
        self._members = launch.membership
        self._since: dict[str, float] = {}
        self._shown: tuple[State, str] | None = None

    async def run(self) -> Seen:
        launch = self._launch
        try:
            what = f"{launch.role}: watching attempt {launch.attempt}"
            with desk().guarding(launch.job_id, what):
                kind, reason, last = await self._watch_pods()
            await self._followers.finish()
        finally:
            await self._followers.stop()
        return Seen(kind, reason, self._followers.tails, last)

    async def _watch_pods(self) -> tuple[str, str, tuple[PodFacts, ...]]:
        """What ended, why, and every pod as it was last seen."""
        key = launch_key(self._launch)
        woken = self._watch.subscribe(key)
        try:
            kind, reason = await self._something_ends(woken)
            return kind, reason, tuple(self._watch.last_seen(key))
        finally:
            self._watch.unsubscribe(key, woken)

    async def _something_ends(self, woken: asyncio.Event) -> tuple[str, str]:
        watch, launch, attempt = self._watch, self._launch, self._attempt
        key = launch_key(launch)
        seen: set[int] = set()
        started = looked = time.monotonic()
        waited = 0.0  # for room or for an environment to be built, which is not the program's time
        built = 0.0  # of it, for environments
        limit = await asyncio.to_thread(self._runtime_left_seconds)
        grace = await asyncio.to_thread(pods.grace_seconds, attempt)
        late = settings().deploy_timeout_seconds - await asyncio.to_thread(pods.deployed_seconds, attempt)
        while True:
            found = watch.pods(key)
            now = time.monotonic()
            before = looked
            waited += now - looked if any(p.unscheduled or p.building for p in found) else 0.0
            looked = now
            if watch.synced.is_set():
                self._followers.follow(watch, found)
                await self._show(found)
                seen |= {pod.learner for pod in found}
                found = [pod for pod in found if pod.learner in self._members.learners]
                known = [p for p in with_last_seen(found, watch.last_seen(key)) if p.learner in self._members.learners]
                missing = self._members.missing(pod.learner for pod in known)
                if not missing and all(p.ended for p in known):
                    return "ended", "all pods have ended"
                # One learner's end with an error ends the attempt; its sidecar may still be storing.
                failed = [p for p in known if p.main.exit_code not in (None, 0) or p.phase == "Failed"]
                if "halt" in self._since:  # whoever has saved and left waits for its peers
                    failed = [p for p in failed if p.main.exit_code != ExitCode.PREEMPTED]
                storing = self._lasts("failed", failed, grace)
                if failed and (all(p.ended for p in failed) or storing):
                    said = ": ".join(part for part in (failed[0].reason, failed[0].message) if part)
                    return "failed", f"learner {failed[0].learner}: {said or 'failed'}"
                lost = next((p for p in found if p.lost), None)
                if self._lasts("lost", lost, _patience_seconds(lost, grace) if lost else 0) and lost:
                    return "failed", f"learner {lost.learner}: its node does not tell how its program ends"
                patience = GONE_SECONDS if seen.issuperset(self._members.learners) else MISSING_SECONDS
                if self._lasts("missing", missing, patience):
                    return "missing", f"{len(missing)} of {self._members.size} pods are gone"
                blocked = next((p for p in found if p.blocked), None)
                if self._lasts("blocked", blocked, BLOCKED_SECONDS) and blocked:
                    return "blocked", f"learner {blocked.learner}: {blocked.blocked}"
                if self._lasts("mounting", any(p.mounting for p in found), BLOCKED_SECONDS):
                    self._since.pop("mounting")  # looked at again after as long a time
                    if await watch.lacks_secret(launch.base_name):
                        return "no secret", f"secret {launch.base_name} was deleted before its learners began"
                not_running = any(p.main.state in ("absent", "waiting") for p in found)
                building = any(p.building for p in found)  # bounded by the node
                built += now - before if building else 0.0
                waits = not_running and not building and now - started - built > late
                if self._lasts("late", waits, LATE_SECONDS):
                    return "late", self._shown[1] if self._shown else "the learners did not start in time"
            else:  # what is said of pods from here on is news, and has to last anew
                for what in ("failed", "lost", "missing", "blocked", "mounting", "late"):
                    self._lasts(what, False, 0)
            if limit is not None and now - started - waited > limit:
                return "deadline", "budget.max_runtime is used up"
            if (asked := await self._asked()) is not None:
                return asked
            await self._look_at_members()
            if (stuck := await self._attention.look(found, self._followers.lines)) is not None:
                return stuck
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), TICK_SECONDS)
            woken.clear()

    def _lasts(self, what: str, holds: object, seconds: float) -> bool:
        """Whether it has been so for longer than that, by this process's monotonic clock."""
        now = time.monotonic()
        if not holds:
            self._since.pop(what, None)
            return False
        return now - self._since.setdefault(what, now) > seconds

    async def _asked(self) -> tuple[str, str] | None:
        """A person's wish. A halt first asks the programs to save and leave, and waits a bounded time for them."""
        try:
            if not await desk().asked(self._launch.job_id):
                self._lasts("halt", False, 0)
                return None
            job, halt = await asyncio.to_thread(requests.wanted, self._launch.job_id)
            if job.cancel_requested_by is not None:
                return "cancelled", f"cancelled by {job.cancel_requested_by}"
            if halt is None:
                self._lasts("halt", False, 0)
                return None
            if not self._lasts("halt", True, settings().halt_wait_seconds):
                await asyncio.to_thread(requests.ask_to_stop, job, self._attempt)
                return None
            return "halted", f"halted by {halt.by}; its programs did not leave on request and were stopped"
        except UpdraftError as exc:  # the learners do not need the ledger or the store; asked again
            self._log.warning("What people ask of the job is not known: %s", exc)
            return None

    async def _look_at_members(self) -> None:
        """Take over a newer generation of the attempt's members."""
        launch = self._launch
        try:
            if await desk().generation(launch.job_id, launch.role) <= self._members.generation:
                return
            attempt = await asyncio.to_thread(ledger().current_attempt, launch.job_id, launch.role)
        except UpdraftError as exc:  # looked at again
            self._log.warning("The members of the attempt are not known: %s", exc)
            return
        if attempt is None or attempt.number != launch.attempt or attempt.membership == self._members:
            return
        self._members = attempt.membership
        for what in ("failed", "lost", "missing", "blocked", "mounting", "late"):
            self._lasts(what, False, 0)  # it was said of other members
        self._log.info("Generation %d: learners %s", self._members.generation, list(self._members.learners))

    def _runtime_left_seconds(self) -> float | None:
        launch = self._launch
        limit = manifest_of(self._job).budget.max_runtime
        return None if limit is None else limit.total_seconds() - ledger().runtime_seconds(launch.job_id, launch.role)

    async def _show(self, found: Sequence[PodFacts]) -> None:
        """Bring the job's state forward to what the pods show; never backward within one attempt."""
        launch, shown = self._launch, self._shown
        state, reason = stage_of(found, self._members)
        if launch.role == PREPARE_ROLE:
            state, reason = _preparing(state, reason)
        elif launch.role != TRAIN_ROLE:
            state, reason = State.STORING, f"{WORDS[launch.role]}: {reason}"
        if launch.attempt > 1 and state is not State.STORING:
            reason = f"attempt {launch.attempt}: {reason}"
        if shown is not None and ((state, reason) == shown or ORDER.index(state) < ORDER.index(shown[0])):
            return
        try:
            evidence = {"pods": [pod.evidence() for pod in found[:EVIDENCE_PODS]]}
            await asyncio.to_thread(self._move, state, reason, evidence, first_look=shown is None)
        except UpdraftError as exc:  # said again at the next look
            self._log.warning("%s could not be recorded: %s", state.value, exc)
            return
        self._log.info("%s: %s", state.value, reason)
        self._shown = (state, reason)

    def _move(self, state: State, reason: str, evidence: dict[str, Any], *, first_look: bool) -> None:
        book = ledger()
        known = book.job(self._launch.job_id).state
        if first_look and known in ORDER and ORDER.index(state) < ORDER.index(known):
            return  # a successor of a dead trigger begins to look at an earlier moment than the ledger's
        with suppress(IllegalTransitionError):
            book.move(self._launch.job_id, state, reason, evidence)


def _preparing(state: State, reason: str) -> tuple[State, str]:
    """Of the pod that prepares code and data: to people all of its work is DOWNLOADING."""
    if state in (State.PROCESSING, State.STORING):
        return State.DOWNLOADING, "code and data are being prepared"
    return state, f"preparing code and data: {reason}"


def _patience_seconds(pod: PodFacts, grace_seconds: int) -> float:
    """How long a pod that is being removed may take: one whose node was given up cannot tell its end, one that was
    asked to leave a living node, by the cluster or a person, may save and store for its whole grace period."""
    given_up = "TaintManager" in str(pod.disruption)
    return settings().node_lost_seconds if given_up else grace_seconds + LATE_SECONDS
