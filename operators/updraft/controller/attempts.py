"""Begin and end an attempt: choose the checkpoint it resumes from, judge its outcome, and decide what follows.

An attempt is judged from the current pods, markers and logs, whatever woke the caller. The outcome and the decision are
recorded together before any pod is removed: without the pods, the attempt could not be judged again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from updraft.checkpoints import learner_of
from updraft.controller import pods as guarded
from updraft.controller import queueing
from updraft.controller.records import launch_of, learners_of, manifest_of, memory_limit_mib
from updraft.exceptions import StaleAttemptError
from updraft.kubernetes import gang, quota
from updraft.kubernetes.objects import Launch
from updraft.lifecycle import State
from updraft.lifecycle.workflow import BEFORE_ROLES, PREPARE_ROLE, TRAIN_ROLE, compares
from updraft.recovery.ends import MEANINGS, EndKind
from updraft.recovery.facts import PodFacts, with_last_seen
from updraft.recovery.outcome import MORE_TO_TRAIN, Action, FailureClass, Outcome, evidence, judge, with_checkpoint
from updraft.recovery.policy import (
    NO_QUOTA,
    NO_ROOM,
    QUOTA_TOO_SMALL,
    RECLAIMED,
    RESIZED,
    Budgets,
    Loss,
    PlannedRelaunch,
    Relaunch,
    Stop,
    decide,
    releases_grant,
)
from updraft.recovery.resume import ResumeCandidate, ResumePlan, Tried, plan_resume
from updraft_learner.checkpoint import DEFAULT_EVERY_SECONDS

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from updraft.ledger import Attempt, Job, Shift
    from updraft.manifest import Manifest
    from updraft.services import Services
    from updraft_learner.contract import LearnerStatus

log = logging.getLogger(__name__)

PEER_STOP_SECONDS = 10  # learners that lost a peer cannot continue: they only have to stop
MORE_TO_PREPARE = "judge a part of the data, or raise UPDRAFT_VALIDATION_MEMORY_BYTES"
MORE_TO_COMPARE = "write fewer rows to predictions.parquet, or raise UPDRAFT_VALIDATION_MEMORY_BYTES"


@dataclass(frozen=True)
class EndSignal:
    """The reason why a trigger stopped watching an attempt, and the facts that cannot be read again."""

    kind: EndKind
    reason: str
    tails: Mapping[int, Sequence[str]] = field(default_factory=dict)
    pods: Sequence[PodFacts] = ()  # each pod's last seen status; used for pods that no longer exist


def begin(services: Services, job: Job, role: str, after: Attempt | None) -> Attempt:
    """Return the role's next attempt, once for all callers, with its resume plan. Raises RefusedError for a job that is
    over."""
    plan = resume_plan(services, job, role) if after is not None else None
    number = None if after is None else after.number
    sized = services.ledger.queue.size(job.id) if role == TRAIN_ROLE else None
    learners, batch = sized or (learners_of(manifest_of(job), role), None)
    attempt = services.ledger.attempts.ensure(job.id, role, after=number, resume=plan, learners=learners, batch=batch)
    if attempt.resume:
        log.info("Attempt %d of %s. Resume plan: %s", attempt.number, role, attempt.resume.reason)
    return attempt


def resume_plan(services: Services, job: Job, role: str) -> ResumePlan | None:
    """Decide from which checkpoint the next attempt of the training resumes; None for other roles, which start
    again."""
    if role != TRAIN_ROLE:
        return None
    book = services.ledger
    earlier = [a for a in book.attempts.of_job(job.id) if a.role == role]
    checkpoints = book.checkpoints.of_job(job.id)
    # If each learner stores its own checkpoint, the lowest learner's is planned; `for_learner` finds the others'.
    first: dict[tuple[int, int], int] = {}
    for c in checkpoints:
        first[c.step, c.attempt] = min(learner_of(c.name), first.get((c.step, c.attempt), learner_of(c.name)))
    standing_for_all = [c for c in checkpoints if learner_of(c.name) == first[c.step, c.attempt]]
    stored = [ResumeCandidate(c.name, c.step, c.attempt, c.created_at) for c in standing_for_all]
    tried = [
        Tried(
            attempt=a.number,
            resumed_from=a.resume.checkpoint if a.resume else None,
            stored_new=any(c.attempt == a.number for c in checkpoints),
            cause=FailureClass(str(a.outcome)),
        )
        for a in earlier
        if a.ended_at is not None and a.outcome in set(FailureClass)
    ]
    last_steps = [a.last_step for a in earlier if a.last_step is not None]
    older = bool(earlier and earlier[-1].relaunch and earlier[-1].relaunch.older_checkpoint)
    return plan_resume(stored, tried, last_step=max(last_steps, default=None), older=older)


def conclude(
    services: Services, core: CoreV1Api, job_id: str, role: str, number: int, seen: EndSignal
) -> Attempt | None:
    """Judge the attempt, record its outcome and what follows, and stop its remaining pods.

    Returns None if nothing has ended: the learners run and have to be watched further.
    """
    book = services.ledger
    job = book.jobs.get(job_id)
    manifest = manifest_of(job)
    attempt = book.attempts.current(job_id, role)
    if attempt is None or attempt.number != number:
        return attempt  # another controller has continued
    launch = launch_of(services.settings, job, attempt)
    if attempt.ended_at is None:
        outcome = _outcome(services, core, job, manifest, launch, seen)
        if outcome is None:
            return None
        if outcome.cause is FailureClass.PREEMPTED and book.requests.pending(job_id, "halt") is not None:
            outcome = replace(
                outcome, cause=FailureClass.HALTED, label=MEANINGS[EndKind.HALTED].label, action=Action.STOP
            )
        elif outcome.cause is FailureClass.PREEMPTED and (asked := book.queue.leaving(job_id)) is not None:
            label = RESIZED if book.queue.resizes(job_id) else RECLAIMED
            outcome = replace(outcome, reason=asked, label=label, action=Action.RELAUNCH)
        note_steps(services, launch, _statuses(services, launch))
        try:
            attempt = _close(services, job, manifest, launch, attempt, outcome)
        except StaleAttemptError as exc:  # another controller closed it and has continued
            log.info("%s", exc)
            return book.attempts.current(job_id, role)
    stop(services, core, job, attempt)
    return attempt


def stop(services: Services, core: CoreV1Api, job: Job, attempt: Attempt, *, wait: bool = False) -> None:
    """Remove what an attempt that has ended left running. Twice is harmless.

    The caller need not wait: the launch of the next attempt removes what is still there by force.
    """
    done = attempt.outcome == FailureClass.DONE
    grace = 0 if done else PEER_STOP_SECONDS if attempt.relaunch else services.settings.stop_grace_seconds
    guarded.free(services, core, launch_of(services.settings, job, attempt), grace_seconds=grace, wait=wait)


def _close(
    services: Services, job: Job, manifest: Manifest, launch: Launch, attempt: Attempt, outcome: Outcome
) -> Attempt:
    from updraft.ledger import AttemptClosure
    from updraft.storage import objects as stored

    book = services.ledger
    following = _following(services, job, manifest, launch, outcome)
    relaunch = None
    if isinstance(following, Relaunch):
        relaunch = PlannedRelaunch.of(following, book.now())
    elif not outcome.ok and following is not None:
        outcome = replace(
            outcome, reason=f"{outcome.reason} ({following.reason})" if following.reason else outcome.reason
        )
    checkpoints = (
        stored.new_checkpoints(job.tenant, job.id, launch.attempt, store=services.store)
        if launch.role == TRAIN_ROLE
        else []
    )
    _quarantine(services, job, attempt, outcome)
    closure = AttemptClosure(
        outcome.cause.value,
        outcome.reason,
        outcome.evidence,
        label=outcome.label or None,
        relaunch=relaunch,
        checkpoints=checkpoints,
        shift=None if relaunch is None else _shift(launch, outcome, relaunch),
        releases_grant=relaunch is not None and releases_grant(outcome.label),
    )
    return book.attempts.close(job.id, launch.role, launch.attempt, closure)


def _quarantine(services: Services, job: Job, attempt: Attempt, outcome: Outcome) -> None:
    """Set a checkpoint that could not be restored aside, so that it is not tried again."""
    from updraft.storage import objects as stored

    name = attempt.resume.checkpoint if attempt.resume else None
    if name is None or outcome.action is not Action.OLDER_CHECKPOINT or outcome.label != "checkpoint.damaged":
        return
    services.ledger.checkpoints.quarantine(job.id, name, outcome.reason)
    stored.quarantine_checkpoint(job.tenant, job.id, name, outcome.reason, store=services.store)


def _shift(launch: Launch, outcome: Outcome, relaunch: PlannedRelaunch) -> Shift:
    """Return the state RECOVERING, or QUEUED again, with the attempt's number and cause, for users and for MLflow."""
    from updraft.ledger import Shift

    number, label = launch.attempt, outcome.label or None
    became = {
        NO_QUOTA: "was refused",
        NO_ROOM: "found no room",
        RECLAIMED: "gave its room back",
        RESIZED: "was stopped",
    }.get(outcome.label, "was lost")
    return Shift(
        f"attempt {number} of {launch.role} {became}: {outcome.reason}; {relaunch.reason}",
        {"attempt": number, "cause": outcome.cause.value, "label": label},
        {"updraft.attempt": str(number + 1), "updraft.last_loss": f"{label}: {outcome.reason}"},
    )


def _following(
    services: Services, job: Job, manifest: Manifest, launch: Launch, outcome: Outcome
) -> Relaunch | Stop | None:
    if outcome.ok or outcome.cause in (FailureClass.HALTED, FailureClass.CANCELLED, FailureClass.DEADLINE):
        return None
    if services.ledger.jobs.get(job.id).cancel_requested_by is not None:
        return None
    earlier = [
        a for a in services.ledger.attempts.of_job(job.id) if a.role == launch.role and a.number < launch.attempt
    ]
    ended = [a for a in earlier if a.outcome in set(FailureClass)]
    now = services.ledger.now()
    losses = [
        Loss(a.number, FailureClass(str(a.outcome)), a.label or "", age_seconds=_age_seconds(a, now))
        for a in ended
        if a.relaunch is not None
    ]
    losses += [Loss(0, FailureClass.PREEMPTED, "", node, _age_seconds(a, now)) for node, a in _avoided(ended).items()]
    budget = manifest.budget
    budgets = Budgets(
        infra_attempts=5 if budget.infra_attempts is None else budget.infra_attempts,
        app_attempts=0 if budget.app_attempts is None else budget.app_attempts,
    )
    preempted = sum(a.outcome == FailureClass.PREEMPTED and a.label not in (RECLAIMED, RESIZED) for a in ended)
    room = outcome.label != NO_ROOM or _room_may_come(services, job, launch.role, ended)
    return decide(outcome, losses, budgets, preempted_before=preempted, room_may_come=room)


def _room_may_come(services: Services, job: Job, role: str, ended: Sequence[Attempt]) -> bool:
    """Return whether the role has had room in the cluster before, or other jobs hold some that they will give back, or
    a pool can get nodes for it."""
    from updraft.allocation import holds_one
    from updraft.kubernetes.capacity import capacity_of

    if any(attempt.label not in (NO_ROOM, NO_QUOTA, MEANINGS[EndKind.LATE].label) for attempt in ended):
        return True
    if any(row.granted_at is not None and row.request.job_id != job.id for row in services.ledger.queue.listing()):
        return True
    request = queueing.place_of(job, role=role)
    return any(holds_one(node, request) for node in capacity_of((), services.settings).nodes)


def _age_seconds(attempt: Attempt, now: datetime) -> float:
    return (now - attempt.ended_at).total_seconds() if attempt.ended_at else 0.0


def _avoided(ended: Sequence[Attempt]) -> dict[str, Attempt]:
    """Return the nodes that are avoided, each with the attempt since whose end it is: later ones only repeat it."""
    found: dict[str, Attempt] = {}
    before: Sequence[str] = ()
    for attempt in ended:
        nodes = attempt.relaunch.avoid_nodes if attempt.relaunch else ()
        found |= {node: attempt for node in nodes if node not in before}
        before = nodes
    return found


def _outcome(
    services: Services, core: CoreV1Api, job: Job, manifest: Manifest, launch: Launch, seen: EndSignal
) -> Outcome | None:
    from updraft.storage import objects as stored

    pods = with_last_seen(gang.observe(core, launch), seen.pods)
    place = (launch.tenant, launch.job_id, launch.role, launch.attempt)
    markers = {n: stored.read_done(*place, n, store=services.store) for n in launch.membership.learners}
    outcome = judge(
        pods,
        membership=launch.membership,
        # A member that joined later may not have a pod yet: it counts as lost only if the watch reported it missing.
        awaited=() if seen.kind is EndKind.MISSING else launch.membership.joined_later,
        markers=markers,
        tails=seen.tails,
        memory=f"{memory_limit_mib(services.settings, manifest, launch.role)} MiB",
        rules=() if launch.role in BEFORE_ROLES or compares(launch.role) else manifest.failures,
        more_memory=_more_memory(launch.role),
    )
    meaning = MEANINGS.get(seen.kind)
    if seen.kind is EndKind.HALTED and services.ledger.requests.pending(job.id, "halt") is None:
        meaning = None  # the user withdrew the halt: judge only what the learners show
    if seen.kind is EndKind.RECLAIMED and services.ledger.queue.leaving(job.id) is None:
        meaning = None
    if outcome is None and meaning is None:
        return None
    if meaning is not None and (outcome is None or not (outcome.ok or outcome.cause is FailureClass.PROGRAM)):
        if meaning.catalogue_first and outcome is not None and outcome.label:
            return outcome
        facts = outcome.evidence if outcome else evidence(pods, markers)
        if seen.kind is EndKind.QUOTA and (never := _why_never(services, job, launch, seen.reason)) is not None:
            return Outcome(FailureClass.CONFIGURATION, f"{seen.reason} ({never})", facts, QUOTA_TOO_SMALL)
        no_room = seen.kind is EndKind.LATE and any(pod.unscheduled for pod in pods)
        return Outcome(meaning.cause, seen.reason, facts, NO_ROOM if no_room else meaning.label, meaning.action)
    assert outcome is not None
    if outcome.ok and launch.role == TRAIN_ROLE and manifest.checkpoints is not None:
        every = manifest.checkpoints.every
        every_seconds = DEFAULT_EVERY_SECONDS if every is None else every.total_seconds()
        final = stored.latest_checkpoint(launch.tenant, launch.job_id, store=services.store)
        if final is None and manifest.checkpoints.adopt is not None:
            return outcome  # nobody asked the program to save at an interval; the sidecar warns that nothing matched
        return with_checkpoint(outcome, final, _ran_seconds(services, job.id, launch), every_seconds)
    return outcome


def _more_memory(role: str) -> str:
    """Return what a user can do if the role's program needs more memory than it may have."""
    if compares(role):
        return MORE_TO_COMPARE
    return MORE_TO_PREPARE if role == PREPARE_ROLE else MORE_TO_TRAIN


def _ran_seconds(services: Services, job_id: str, launch: Launch) -> float:
    """Return how long the attempt's programs ran, as the ledger saw it: 0 if they were over before they were seen to
    run."""
    book = services.ledger
    attempt = book.attempts.current(job_id, launch.role)
    steps = [step for step in book.jobs.transitions(job_id) if attempt is not None and step.at >= attempt.started_at]
    began = next((step.at for step in steps if step.to_state is State.PROCESSING), None)
    if began is None:
        return 0.0
    over = next((step.at for step in steps if step.to_state is State.STORING and step.at >= began), book.now())
    return (over - began).total_seconds()


def _why_never(services: Services, job: Job, launch: Launch, words: str) -> str | None:
    """Return why no waiting helps a launch that a quota refused: the limit itself is below it. None for a job that was
    let through before: it has work to lose."""
    others = [
        a for a in services.ledger.attempts.of_job(job.id) if a.role == launch.role and a.number != launch.attempt
    ]
    if _may_be_smaller(job, launch.role, launch.membership.size) or any(a.label != NO_QUOTA for a in others):
        return None
    if (never := quota.never_fits(words, launch.membership.size)) is None:
        return None
    return f"{never}; ask for fewer or smaller learners, or have the quota raised and submit the job again"


def never_fits(services: Services, job_id: str, refused: Attempt) -> str | None:
    """Return the same of a job that has work to lose, once it was revised: of the revision nothing was ever let
    through. None where it was, for a limit that was lowered is waited for; and for a job that a user has put into the
    queue again since."""
    book = services.ledger
    job = book.jobs.get(job_id)
    if refused.revision != job.revision or book.queue.holds(job_id):
        return None
    of_role = [a for a in book.attempts.of_job(job_id) if a.role == refused.role and a.revision == refused.revision]
    others = [a for a in of_role if a.number != refused.number]
    if _may_be_smaller(job, refused.role, refused.membership.size) or any(a.label != NO_QUOTA for a in others):
        return None
    if (never := quota.never_fits(str(refused.reason), refused.membership.size)) is None:
        return None
    return f"{never}; resume it with fewer or smaller learners, or have the quota raised first"


def _may_be_smaller(job: Job, role: str, learners: int) -> bool:
    """Return whether the planner chose the size of these learners, and may choose a smaller one."""
    elastic = manifest_of(job).elastic if role == TRAIN_ROLE else None
    return elastic is not None and learners > elastic.min_learners


def _statuses(services: Services, launch: Launch) -> list[LearnerStatus]:
    from updraft.storage import objects as stored

    place = (launch.tenant, launch.job_id, launch.role, launch.attempt)
    return [status for n in launch.membership.ever if (status := stored.read_status(*place, n, store=services.store))]


def note_steps(services: Services, launch: Launch, statuses: Iterable[LearnerStatus]) -> None:
    """Record the first and last step that the attempt's learners reported."""
    seen = [status.steps for status in statuses]
    firsts = [steps["first"] for steps in seen if "first" in steps]
    lasts = [steps["last"] for steps in seen if "last" in steps]
    if firsts and lasts:
        try:
            services.ledger.attempts.note_steps(launch.job_id, launch.role, launch.attempt, min(firsts), max(lasts))
        except StaleAttemptError as exc:
            log.warning("%s", exc)
