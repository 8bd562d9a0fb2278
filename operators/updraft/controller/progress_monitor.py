"""Watch the progress of a running attempt: read its sidecars' statuses, report findings, and ask for stack dumps.

`updraft.recovery.progress` judges. The job's trigger calls this every few seconds, in its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from updraft.controller.analyses import analysis_of
from updraft.controller.attempts import note_steps
from updraft.controller.records import manifest_of
from updraft.exceptions import UpdraftError
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.recovery.ends import EndKind
from updraft.recovery.progress import ProgressFinding, ProgressHistory, ProgressLimits, ProgressReport, observe
from updraft.recovery.stragglers import Pace, StragglerHistory, compare

if TYPE_CHECKING:
    from updraft.kubernetes.objects import Launch
    from updraft.ledger import Job
    from updraft.lifecycle.membership import Membership
    from updraft.recovery.facts import PodFacts
    from updraft.services import Services
    from updraft_learner.contract import LearnerStatus

log = logging.getLogger(__name__)
LEAST_STEPS, LEAST_SECONDS = 10, 5.0  # over which the time of a step is measured


class ProgressMonitor:
    """The progress history of one attempt, kept by one trigger. The trigger's successor starts with an empty
    history."""

    def __init__(self, services: Services, job: Job, launch: Launch) -> None:
        self._services = services
        self._clock = services.timing.clock
        manifest = manifest_of(job)
        budget = manifest.budget
        self._elastic = manifest.elastic is not None
        self._members: Membership | None = launch.membership  # None: they change just now
        self._began: tuple[float, int] | None = None  # the time of the first status with a step, and that step
        self._scaling: dict[str, Any] = {}  # what the program has reported last
        self._paces = StragglerHistory()
        self.straggler: tuple[int, str] | None = None  # an elastic training's slowest learner, if it is far too slow
        self._launch = launch
        limit = budget.no_progress.total_seconds() if budget.no_progress else None
        self._limits = ProgressLimits(limit, budget.on_no_progress)
        self._watch = ProgressHistory()
        self._read: dict[int, tuple[float, float]] = {}  # learner -> its status' own time, and when it was first read
        self._next = self._clock() + services.timing.progress_looks.turn_seconds()
        self._dumps = 0

    def regroup(self, members: Membership | None) -> None:
        """Measure the speed of these members from now on; None: of nobody, because they change just now."""
        self._members, self._began = members, None
        self._paces, self.straggler = StragglerHistory(), None

    async def look(self, pods: Sequence[PodFacts], lines: Mapping[int, int]) -> tuple[EndKind, str] | None:
        """Return why the attempt is to be ended (STALLED or GIVEN_UP), if it is."""
        if self._clock() < self._next or self._launch.role != TRAIN_ROLE:
            return None
        self._next = self._clock() + self._services.timing.progress_looks.turn_seconds()
        running = [pod.learner for pod in pods if pod.runs]
        try:
            return await asyncio.to_thread(self._look, running, dict(lines))
        except UpdraftError as exc:  # the store or the ledger does not answer: conclude nothing
            log.warning("Progress is not known: %s", exc)
            return None

    def _look(self, running: Sequence[int], lines: Mapping[int, int]) -> tuple[EndKind, str] | None:
        from updraft.storage import objects as stored

        launch = self._launch
        end: tuple[EndKind, str] | None = None
        statuses: list[LearnerStatus] = []
        read: list[int] = []
        for learner in running:
            status = stored.read_status(
                launch.tenant, launch.job_id, launch.role, launch.attempt, learner, store=self._services.store
            )
            if status is None:
                continue
            read.append(learner)
            # Drop the large parts: whole statuses of all learners would need much memory.
            statuses.append(replace(status, last_metrics={}, checkpoints=(), quarantined=(), warnings=()))
            seen = self._seen(learner, status, lines.get(learner, 0))
            self._watch, finding = observe(self._watch, seen, self._clock(), self._limits)
            if finding is not None:
                self._tell(finding)
                if finding.act:
                    restart = self._limits.on_no_progress == "restart"
                    end = (EndKind.STALLED if restart else EndKind.GIVEN_UP, finding.reason)
        note_steps(self._services, launch, statuses)
        if self._elastic:
            self._note_analysis(statuses)
            self._note_speed(statuses)
            self._compare(dict(zip(read, statuses, strict=True)))
        return end

    def _note_analysis(self, statuses: Sequence[LearnerStatus]) -> None:
        """Record what the program reports of its own scaling, when it has changed."""
        found = next((status.scaling for status in statuses if status.scaling), None)
        if not found or found == self._scaling:
            return
        self._scaling = found
        launch = self._launch
        size = (self._members or launch.membership).size
        self._services.ledger.queue.note_analysis(launch.job_id, size, analysis_of(found))

    def _note_speed(self, statuses: Sequence[LearnerStatus]) -> None:
        """Record how long a step of an elastic job takes with the present learners, since the first look at its
        steps."""
        from updraft.allocation.scalability import Report

        members = self._members
        found = [(status.t, made) for status in statuses if "last" in (made := steps_of(status))]
        if not found or members is None:
            return
        now = found[0][0], found[0][1]["last"]
        began = self._began = self._began or now
        seconds, steps = now[0] - began[0], now[1] - began[1]
        if steps < LEAST_STEPS or seconds < LEAST_SECONDS:
            return
        launch = self._launch
        each = seconds / steps
        first = datetime.fromtimestamp(began[0] - each * max(0, began[1] - found[0][1]["first"]), UTC)
        report = Report(members.size, launch.batch, each)
        queue = self._services.ledger.queue
        queue.note_speed(launch.job_id, launch.attempt, report, steps, first, generation=members.generation)

    def _compare(self, statuses: Mapping[int, LearnerStatus]) -> None:
        """Look for a learner that keeps the others waiting."""
        paces = {
            n: Pace(float(status.training["work"]), float(status.training["seconds"]))
            for n, status in statuses.items()
            if status.training.keys() >= {"work", "seconds"}
        }
        if self._members is not None and set(paces) == set(self._members.learners):
            self._paces, self.straggler = compare(self._paces, paces, self._clock())

    def _seen(self, learner: int, status: LearnerStatus, log_lines: int) -> ProgressReport:
        known = self._read.get(learner)
        if known is None or known[0] != status.t:
            known = self._read[learner] = (status.t, self._clock())
        step = status.steps.get("last", status.progress.get("step"))
        losses = [float(value) for name, value in status.last_metrics.items() if "loss" in name.lower()]
        loss = losses[0] if losses else None
        return ProgressReport(
            learner=learner,
            step=step,
            phase=status.phase,
            nan=any(math.isnan(value) for value in losses),
            at_seconds=known[1],
            log_lines=log_lines,
            loss=loss,
        )

    def _tell(self, finding: ProgressFinding) -> None:
        """Write a finding to the task's log and the job's history. A stalled program is asked for its stacks before it
        is ended."""
        from updraft.storage import signals

        launch = self._launch
        log.warning("Progress: %s", finding.reason)
        facts = {"attempt": launch.attempt, "finding": finding.kind, "learner": finding.learner}
        self._services.ledger.jobs.note(launch.job_id, finding.reason, facts)
        if finding.kind in ("stalled", "straggler"):
            self._dumps += 1
            place = (launch.tenant, launch.job_id, launch.role, launch.attempt, finding.learner)
            signals.request_dump(*place, self._dumps, store=self._services.store)


def steps_of(status: LearnerStatus) -> dict[str, int]:
    """Return the first and last step of this attempt, as an elastic training reports them itself, else as its program
    does; empty if neither does."""
    done = status.training
    if "step" in done:
        return {"first": int(done.get("first", done["step"])), "last": int(done["step"])}
    return status.steps
