"""Change the learners of an attempt while the others train: resizes, lost learners, and the coordinator's pod.

The ledger's membership is the truth. What the coordinator says of the group (`updraft_learner.elastic.report`) tells
who trains. `plan_members` decides, and is pure; `InPlaceGroup` carries out what it decides, and may do so twice.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from updraft.controller import pods
from updraft.controller.idempotency import addition, straggler_replaced
from updraft.controller.records import manifest_of, memory_limit_mib
from updraft.exceptions import QuotaError, RefusedError, StaleAttemptError
from updraft.kubernetes import gang
from updraft.lifecycle import State
from updraft.lifecycle.membership import Membership
from updraft.recovery.ends import GONE_SECONDS, MISSING_SECONDS
from updraft.recovery.failure_class import FailureClass
from updraft.recovery.matching import failure_of
from updraft.wording import counted
from updraft_learner.contract import COORDINATOR_LEARNER
from updraft_learner.elastic.report import GroupReport, Members

if TYPE_CHECKING:
    from datetime import datetime

    from kubernetes.client import CoreV1Api

    from updraft.kubernetes.objects import Launch
    from updraft.ledger import Attempt, Job
    from updraft.lifecycle.idempotency import IdempotencyKey
    from updraft.recovery.facts import PodFacts
    from updraft.services import Services

log = logging.getLogger(__name__)

# A learner that fails like this would fail again: the attempt ends, as that of every job.
OWN_FAULT = frozenset({FailureClass.PROGRAM, FailureClass.CONFIGURATION, FailureClass.DATA, FailureClass.DEADLINE})
LEAVE_SECONDS = 30.0  # for a learner's program to end, once it has left the group
REMOVE_SECONDS = 5  # grace period of a pod that is removed because its learner is lost, or does not leave
REPLACE_SECONDS = 600.0  # within which an attempt gets at most three times its size as new learners
MOST_STRAGGLERS = 3  # that are replaced in one attempt: their successors may be as slow
JOIN_SECONDS = 300.0  # for a newcomer to be ready once its program runs


@dataclass(frozen=True)
class GroupFacts:
    """What one look at an attempt shows.

    Args:
        membership: The attempt's members.
        group: What the coordinator says.
        lost: Learners that are lost, with the reason.
        leaving: Learners whose pods the cluster removes, and one that keeps the others waiting, with the reason.
        failed: Learners that have not joined, and will not, as others in their place would not; with the reason.
        target: The size that the planner has decided, with its reason; None: no other one.
        may_add: Whether learners may be added now.
    """

    membership: Membership
    group: GroupReport
    lost: Mapping[int, str]
    leaving: Mapping[int, str]
    failed: Mapping[int, str]
    target: tuple[int, str] | None = None
    may_add: bool = True


def newcomers(membership: Membership, group: GroupReport) -> tuple[int, ...]:
    """Return the members that have not joined the group yet."""
    return tuple(n for n in membership.joined_later if n not in group.learners and n not in group.excluded)


def plan_members(facts: GroupFacts) -> tuple[Membership, str]:
    """Return the members that the attempt should have, and why. The present ones if nothing is to change, or nobody
    who has the state of the training would be left."""
    membership, group = facts.membership, facts.group
    ended = group.state == "finished"
    out = {n: why for n, why in {**facts.leaving, **facts.lost, **facts.failed}.items() if n in membership.learners}
    if ended:  # it needs nobody more
        out |= dict.fromkeys(newcomers(membership, group), "the training has ended")
    stay = [n for n in membership.learners if n in group.learners and n not in out]
    if not stay or not group.began or group.state == "lost":
        return membership, ""
    left = [n for n in membership.learners if n not in out]
    if ended or not facts.may_add or any(n in out for n in facts.failed):
        desired = len(left)
    else:
        desired = membership.desired if facts.target is None else facts.target[0]
    surplus = len(left) - desired
    if surplus > 0:  # those leave first who have not joined, and then the newest
        out |= dict.fromkeys(sorted(left, key=lambda n: (n in group.learners, -n))[:surplus], "")
    changed = membership.resized(desired, sorted(out))
    if changed.learners == membership.learners:
        return membership, ""
    whys = [why if why.startswith(f"learner {n}") else f"learner {n}: {why}" for n, why in sorted(out.items()) if why]
    if facts.target is not None and not ended and changed.size != membership.size:
        whys.append(facts.target[1])
    return changed, "; ".join(whys) or f"from {membership.size} to {changed.size} learners"


def is_settled(membership: Membership, group: GroupReport) -> bool:
    """Return whether the group is what the membership asks for."""
    return (
        group.state in ("training", "finished")
        and group.obeys >= membership.generation
        and set(group.learners) == set(membership.learners)
    )


class InPlaceGroup:
    """The learners of one attempt, followed by one trigger. A successor takes all from the ledger, the store and the
    cluster again. Use it in one thread at a time."""

    def __init__(self, services: Services, job: Job, launch: Launch) -> None:
        self._services, self._job, self._launch = services, job, launch
        self._clock = services.timing.clock
        self._manifest = manifest_of(job)
        self._memory = f"{memory_limit_mib(services.settings, self._manifest, launch.role)} MiB"
        self._written = 0  # the newest generation that the coordinator was told
        self._since: dict[tuple[str, int], float] = {}  # since when something holds of a learner
        self._coordinators = 1  # the highest number of a coordinator's pod
        self._refused: int | None = None  # the size that the planner has decided and the cluster has no room for
        self._avoided: set[str] = set()  # nodes of stragglers, and of learners that the others did not reach
        self._unsettled = False  # whether the ledger has yet to be told that a change is complete
        self.settled = False  # whether the last look has found that a change is complete
        self.group = GroupReport()
        self.membership = launch.membership

    @property
    def began(self) -> bool:
        """Return whether the program has used `updraft_learner.elastic`: only then learners can join and leave."""
        return self.group.began

    @property
    def changing(self) -> bool:
        """Return whether learners join or leave just now."""
        return self.began and (self._unsettled or not is_settled(self.membership, self.group))

    @property
    def established(self) -> tuple[int, ...]:
        """Return the members whose failure may end the attempt: not those that are still to join."""
        coming = newcomers(self.membership, self.group)
        return tuple(n for n in self.membership.learners if n not in coming)

    def look(
        self,
        core: CoreV1Api,
        found: Sequence[PodFacts],
        known: Sequence[PodFacts],
        tails: Mapping[int, Sequence[str]],
        *,
        stopping: bool,
        straggler: tuple[int, str] | None = None,
    ) -> Membership:
        """Look once, and do what is to be done; return the attempt's members.

        Args:
            found: All pods of the launch, also the coordinator's and those of earlier members.
            known: The same, with deleted ones as they were last seen.
            tails: The last lines of each learner's log.
            stopping: Whether the programs were asked to save and leave: then nobody is replaced.
            straggler: A learner that keeps the others waiting, and why that is known.

        Raises:
            UpdraftError: the ledger, the store or the cluster does not answer, or a StaleAttemptError.
        """
        attempt = self._services.ledger.attempts.current(self._launch.job_id, self._launch.role)
        if attempt is None or attempt.number != self._launch.attempt or attempt.ended_at is not None:
            raise StaleAttemptError(f"attempt {self._launch.attempt} of {self._launch.job_id} is not the open one")
        self.membership, self.settled = attempt.membership, False
        self.group = self._report()
        if not stopping:
            self._coordinate(core, attempt, found, known)
        if self.began and not stopping:
            before = self.membership
            attempt = self._change(attempt, self._facts(known, tails, straggler))
            if straggler is not None and straggler[0] in before.missing(self.membership.learners):
                self._services.ledger.idempotency.record(
                    self._job.id, self._straggler_key(straggler[0]), self._services.ledger.now()
                )
                self._avoid_nodes(known, straggler[0])
            self._tell()
            self._add(core, attempt, found)
            self._settle(found)
        self._remove(core, found)
        return self.membership

    def _report(self) -> GroupReport:
        from updraft.storage.groups import read_group

        found = read_group(*self._place(), store=self._services.store)
        return GroupReport() if found is None else found

    def _place(self) -> tuple[str, str, str, int]:
        launch = self._launch
        return launch.tenant, launch.job_id, launch.role, launch.attempt

    def _facts(
        self, known: Sequence[PodFacts], tails: Mapping[int, Sequence[str]], straggler: tuple[int, str] | None
    ) -> GroupFacts:
        membership, group = self.membership, self.group
        pods_of = {pod.learner: pod for pod in known}
        coming = newcomers(membership, group)
        lost, leaving, failed = {}, {}, {}
        for n in membership.learners:
            pod, joins = pods_of.get(n), n in coming
            why, for_good = self._failure(n, pod, tails.get(n, ()), joins=joins)
            if n in group.excluded and not why:
                # Its pod says soon how it ended, if it did.
                gone_on = self._lasts("excluded", n, GONE_SECONDS)
                if gone_on:  # it runs: its node, or the way to it, may be the reason
                    why = "it kept the others waiting, or they lost the connection to it"
                    self._avoid_nodes(known, n)
            if joins and why and for_good:
                failed[n] = why
            elif why and not for_good:
                lost[n] = why
            elif pod is not None and not pod.ended and (pod.deleting or pod.disruption):
                leaving[n] = f"its pod leaves the node ({pod.disruption or 'deleted'})"
        target = self._services.ledger.queue.target(self._launch.job_id)
        if target is not None and target[0] == self._refused:
            target = None
        may_add = self._may_add()
        busy = lost or leaving or failed or target or not is_settled(membership, group)
        if straggler is not None and may_add and not busy and self._replaced() < MOST_STRAGGLERS:
            leaving[straggler[0]] = straggler[1]
        return GroupFacts(membership, group, lost, leaving, failed, target, may_add)

    def _failure(self, learner: int, pod: PodFacts | None, tail: Sequence[str], *, joins: bool) -> tuple[str, bool]:
        """Return why a member does not train any more, or will not; and whether another one in its place would not
        either."""
        if pod is None:
            patience = MISSING_SECONDS if joins else GONE_SECONDS
            return ("its pod is gone", False) if self._lasts("gone", learner, patience) else ("", False)
        self._since.pop(("gone", learner), None)
        if (failure := failure_of(pod, tail, self._memory, self._manifest.failures)) is not None:
            return failure.reason, failure.cause in OWN_FAULT
        if not joins:
            return "", False
        settings = self._services.settings
        if not pod.runs and self._lasts("starting", learner, settings.deploy_timeout_seconds):
            return pod.unscheduled or pod.blocked or "it did not start in time", True
        if pod.runs and learner not in self.group.waiting and self._lasts("joining", learner, JOIN_SECONDS):
            return f"its program was not ready to join within {JOIN_SECONDS:g} s", True
        return "", False

    def _lasts(self, what: str, learner: int, seconds: float) -> bool:
        now = self._clock()
        return now - self._since.setdefault((what, learner), now) >= seconds

    def _replaced(self) -> int:
        """Return how many stragglers this attempt has replaced."""
        records = self._services.ledger.idempotency
        return sum(records.get(self._job.id, self._straggler_key(n)) is not None for n in self.membership.ever)

    def _straggler_key(self, learner: int) -> IdempotencyKey[datetime]:
        return straggler_replaced(self._launch.role, self._launch.attempt, learner)

    def _may_add(self) -> bool:
        """Return whether learners may be added: not if many were within a short time, which all were lost."""
        records, launch, now = self._services.ledger.idempotency, self._launch, self._services.ledger.now()
        most = 3 * self.membership.desired
        added = [
            records.get(launch.job_id, addition(launch.role, launch.attempt, n)) for n in self.membership.ever[-most:]
        ]
        recent = [at for at in added if at is not None and (now - at).total_seconds() < REPLACE_SECONDS]
        return len(recent) < most

    def _change(self, attempt: Attempt, facts: GroupFacts) -> Attempt:
        changed, why = plan_members(facts)
        if facts.failed and facts.target is not None:
            self._refused = facts.target[0]
        if changed.learners == self.membership.learners:
            return attempt
        book, launch = self._services.ledger, self._launch
        attempt = book.attempts.change_members(launch.job_id, launch.role, launch.attempt, changed)
        self.membership = attempt.membership
        self._since = {key: at for key, at in self._since.items() if key[1] in changed.learners}
        staying = len(set(self.group.learners) & set(changed.learners))
        told = f"{why}; {counted(staying)} train{'s' * (staying == 1)} on" if facts.group.state != "finished" else why
        evidence = {"generation": changed.generation, "learners": list(changed.learners), "why": why}
        if facts.group.state != "finished":
            book.jobs.move(launch.job_id, State.RESIZING, told, evidence)
            self._unsettled = True
        log.info("Generation %d of the members: learners %s: %s", changed.generation, list(changed.learners), why)
        return attempt

    def _tell(self) -> None:
        """Tell the coordinator who shall train."""
        from updraft.storage.groups import write_members

        membership = self.membership
        if self._written >= membership.generation or self.group.obeys >= membership.generation:
            return
        write_members(*self._place(), Members(membership.generation, membership.learners), store=self._services.store)
        self._written = membership.generation

    def _avoid_nodes(self, known: Sequence[PodFacts], learner: int) -> None:
        """Let newcomers prefer other nodes than this learner's."""
        self._avoided |= {pod.node for pod in known if pod.learner == learner and pod.node}

    def _add(self, core: CoreV1Api, attempt: Attempt, found: Sequence[PodFacts]) -> None:
        coming = newcomers(self.membership, self.group)
        if not coming or self.group.state == "finished":
            return
        try:
            pods.add_learners(self._services, core, self._job, attempt, coming, avoid_nodes=self._avoided)
        except (QuotaError, RefusedError) as exc:
            # Learners that leave have their part of the quota until their pods have ended.
            if isinstance(exc, QuotaError) and any(self._leaves(pod) for pod in found):
                return
            self._give_up(attempt, coming, str(exc))

    def _leaves(self, pod: PodFacts) -> bool:
        return pod.learner not in (COORDINATOR_LEARNER, *self.membership.learners) and not pod.ended

    def _give_up(self, attempt: Attempt, coming: Collection[int], why: str) -> None:
        """Go on without learners for which the cluster has no room."""
        target = self._services.ledger.queue.target(self._launch.job_id)
        self._change(attempt, GroupFacts(self.membership, self.group, {}, {}, dict.fromkeys(coming, why), target))
        self._tell()

    def _settle(self, found: Sequence[PodFacts]) -> None:
        """Show that the group is what it should be, once nobody who left has its room any more."""
        if not is_settled(self.membership, self.group):
            return
        book, launch, group = self._services.ledger, self._launch, self.group
        job = book.jobs.get(launch.job_id)
        target = book.queue.target(launch.job_id)
        self._unsettled = job.state is State.RESIZING or target is not None
        if not self._unsettled or any(self._leaves(pod) for pod in found):
            return
        pause = group.pauses.get(group.generation)
        size = self.membership.size
        stood = "" if pause is None else f"; the others stood still for {1000 * pause:.0f} ms"
        told = f"{size} of {size} learners run{stood}"
        if target is not None and size < target[0]:
            told += f"; {target[0]} could not be reached now, and the platform chooses again"
        evidence = {"generation": self.membership.generation, "pause_seconds": pause}
        book.queue.settle_in_place(launch.job_id, size, told, evidence, pause=pause)
        self._refused, self._unsettled, self.settled = None, False, True
        log.info("%s", told)

    def _coordinate(
        self, core: CoreV1Api, attempt: Attempt, found: Sequence[PodFacts], known: Sequence[PodFacts]
    ) -> None:
        """Keep one coordinator running."""
        mine = [pod for pod in known if pod.learner == COORDINATOR_LEARNER]
        prefix = self._launch.coordinator_host
        numbers = [int(pod.name.removeprefix(prefix)) for pod in mine if pod.name.removeprefix(prefix).isdigit()]
        self._coordinators = max([self._coordinators, *numbers])
        alive = any(
            pod.learner == COORDINATOR_LEARNER and not pod.ended and not pod.deleting and not pod.lost for pod in found
        )
        if alive or self.group.state == "finished":
            self._since.pop(("coordinator", COORDINATOR_LEARNER), None)
            return
        # What was just made may not be seen yet.
        if not self._lasts("coordinator", COORDINATOR_LEARNER, GONE_SECONDS if mine else MISSING_SECONDS):
            return
        self._since.pop(("coordinator", COORDINATOR_LEARNER), None)
        for pod in found:
            if pod.learner == COORDINATOR_LEARNER:  # on a node that does not answer: its name must lead to the new one
                gang.remove(core, self._launch, pod.name, grace_seconds=0)
        log.info("The coordinator is gone; the learners train on, and another one is started")
        try:
            pods.replace_coordinator(self._services, core, self._job, attempt, self._coordinators + 1)
        except (QuotaError, RefusedError) as exc:
            log.warning("Another coordinator cannot be started now: %s", exc)
            return
        self._coordinators += 1

    def _remove(self, core: CoreV1Api, found: Sequence[PodFacts]) -> None:
        """Remove the pods of learners that left, or are lost, and do not end by themselves."""
        wait = self._services.settings.halt_wait_seconds
        for pod in found:
            n = pod.learner
            if n == COORDINATOR_LEARNER or n in self.membership.learners or pod.ended or pod.deleting:
                continue
            at_once = n in self.group.excluded
            patience = 0.0 if at_once else wait if n in self.group.learners else LEAVE_SECONDS
            if not pod.runs and n not in self.group.learners and pod.main.state != "terminated":
                patience = 0.0  # it had not begun
            if pod.main.state == "terminated":  # its sidecar stores what it left
                patience = self._services.settings.store_grace_seconds
            if self._lasts("left", n, patience):
                log.info("Learner %d does not belong any more and has not ended by itself; its pod is removed", n)
                gang.remove(core, self._launch, pod.name, grace_seconds=REMOVE_SECONDS)
