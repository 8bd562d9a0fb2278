"""One run: some jobs, one fault or several at their moments, and what is true afterwards. Called by `lanes`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.stack import BenchmarkError

from faults import parts
from faults.aftermath import job_record, settle
from faults.bundle import keep
from faults.checks import Violation
from faults.facts import JobFacts
from faults.jobs import PROGRAM, manifest, much_code
from faults.kinds.base import Subject, TooLateError, wait_for
from faults.lab import Lab, is_over, state_of
from faults.moments import come_to, leave
from faults.outcomes import Outcome, Provenance, RunRecord, ViolationRecord
from faults.plan import Planned
from faults.scenario import Scenario, Strike, draw
from updraft.exceptions import UnavailableError, UpdraftError

LIMIT_SECONDS = 240.0  # from the last fault's end to the end of all jobs; then a job is lost
PATIENCE_SECONDS = 180.0  # for a job to come to the moment of its fault
LOOK_SECONDS = 1.0


def perform(lab: Lab, planned: Planned, provenance: Provenance, bundles: Path) -> RunRecord:
    """Do it, and say what became of it."""
    began, at = time.monotonic(), datetime.now(UTC)
    scenario = draw(lab, planned)
    _play(lab, scenario)
    facts, violations = _aftermath(lab, scenario)
    outcome = outcome_of(scenario, violations)
    first = min((s.injected_at for s in scenario.strikes if s.injected_at is not None), default=time.time())
    bundle = keep(lab, scenario.planned, facts, violations, bundles) if outcome == "failed" else None
    return RunRecord(
        kind=planned.kind,
        seed=planned.seed,
        scale=lab.scale,
        outcome=outcome,
        **provenance.fields(),
        at=at.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        moments={s.kind.name: s.too_late or s.text() for s in scenario.strikes},
        healed_seconds={s.kind.name: round(s.healed_at - first, 1) for s in scenario.strikes if s.healed_at},
        jobs=tuple(
            job_record(
                subject,
                each,
                scenario.struck_at(subject) if planned.packed else first,
                scenario.submitted_at.get(subject.id),
                scenario.hit.get(subject.id, ""),
            )
            for subject, each in zip(scenario.subjects, facts, strict=True)
        ),
        violations=tuple(ViolationRecord(kind=v.kind, job=v.job, text=v.text[:600]) for v in violations),
        notes={s.kind.name: s.scene.notes for s in scenario.strikes if s.scene.notes},
        strikes=tuple(strike.record() for strike in scenario.strikes),
        aim=planned.aim,
        program=planned.program,
        bundle=None if bundle is None else bundle.name,
    )


def outcome_of(scenario: Scenario, violations: Sequence[Violation]) -> Outcome:
    """Return what a run proves: nothing if a fault came too late, unless others came in a packed run."""
    if violations:
        return "failed"
    too_late = [strike.too_late is not None for strike in scenario.strikes]
    return "void" if (all(too_late) if scenario.planned.packed else any(too_late)) else "passed"


def _play(lab: Lab, scenario: Scenario) -> None:
    """Submit the jobs and let the faults come; returns when all faults are over."""
    fleet = zip(scenario.offsets, scenario.subjects, strict=True)
    threads = [
        threading.Thread(target=_submit, args=(lab, scenario, subject, offset), name=subject.id, daemon=True)
        for offset, subject in fleet
    ]
    threads += [
        threading.Thread(target=_strike, args=(lab, scenario, strike), name=strike.kind.name, daemon=True)
        for strike in scenario.strikes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _submit(lab: Lab, scenario: Scenario, subject: Subject, offset: float) -> None:
    """Submit as people do: with the same id again until it is accepted."""
    gate = scenario.gates.get(subject.id)
    if gate is not None:
        gate.wait()
    time.sleep(offset)
    deadline = time.monotonic() + LIMIT_SECONDS * max(1.0, lab.scale)
    code = much_code(lab.home.root) if subject.shape.much_code else PROGRAM
    wanted = manifest(subject.shape, subject.id, lab.witness, code)
    while time.monotonic() < deadline:
        try:
            lab.client.submit(wanted, job_id=subject.id)
            break
        except UnavailableError:
            time.sleep(2.0)
    scenario.submitted_at[subject.id] = time.time()
    for strike in scenario.strikes:
        if strike.scene.target == subject:
            strike.scene.accepted.set()


def _strike(lab: Lab, scenario: Scenario, strike: Strike) -> None:
    try:
        _carry_out(lab, scenario, strike)
    finally:
        strike.begun.set()
        strike.over.set()


def _note_hits(lab: Lab, scenario: Scenario, strike: Strike) -> None:
    """Note what the fault is about to meet: the target first, for some states are short."""
    strike.hit = state_of(lab, strike.scene.target.id)
    with scenario.noted:
        if scenario.planned.packed:
            met = [s for s in scenario.met_by(strike) if s.id in scenario.submitted_at]
            for subject in met:
                scenario.hit.setdefault(subject.id, state_of(lab, subject.id))
        elif not scenario.hit:
            scenario.hit.update({subject.id: state_of(lab, subject.id) for subject in scenario.subjects})


def _carry_out(lab: Lab, scenario: Scenario, strike: Strike) -> None:
    scene, aim = strike.scene, strike.planned.aim
    patience_seconds = PATIENCE_SECONDS * (2 if scenario.planned.packed else 1)  # several outages delay its jobs
    if strike.after is not None:
        strike.after.wait()
    if scenario.planned.packed:
        scene.accepted.wait()
    try:
        come_to(scene, aim, patience_seconds)
        if strike.moment is not None:
            wait_for(scene, strike.moment, patience_seconds * max(1.0, lab.scale))
        else:
            time.sleep(strike.delay_seconds)
        _note_hits(lab, scenario, strike)
        strike.injected_at = time.time()
        strike.kind.inject(scene)
        strike.begun.set()
        if strike.kind.lasts:
            time.sleep(scene.outage_seconds)
    except TooLateError as exc:
        strike.too_late = str(exc)
        with suppress(BenchmarkError, UpdraftError):
            leave(scene, aim)
        return
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = f"{strike.kind.name}: {exc}"
    try:
        if strike.injected_at is not None and (scene.held is not None or strike.problem is None):
            strike.kind.heal(scene)
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = strike.problem or f"{strike.kind.name}: {exc}"
    try:
        leave(scene, aim)
    except (BenchmarkError, UpdraftError) as exc:
        strike.problem = strike.problem or f"after {strike.kind.name}: {exc}"
    strike.healed_at = time.time()


def _aftermath(lab: Lab, scenario: Scenario) -> tuple[list[JobFacts], list[Violation]]:
    """Wait for the platform and the jobs, then look at everything."""
    violations = [Violation("unmet", "", strike.problem) for strike in scenario.strikes if strike.problem]
    deadline = time.monotonic() + LIMIT_SECONDS * max(1.0, lab.scale)
    for name in parts.services(lab.home):
        try:
            parts.wait_serves(lab.home, name, since=0.0, seconds=max(1.0, deadline - time.monotonic()))
        except BenchmarkError as exc:
            violations.append(Violation("unmet", "", str(exc)))
    while time.monotonic() < deadline and not all(is_over(lab, subject.id) for subject in scenario.subjects):
        time.sleep(LOOK_SECONDS)
    for subject in scenario.subjects:
        with suppress(UpdraftError):
            if (job := lab.job(subject.id)) is not None and job.ended_at is not None:
                scenario.ended_at[subject.id] = job.ended_at.timestamp()
    with suppress(UpdraftError):  # the witnesses below say so too
        release(lab, scenario.strikes)
    facts, found = settle(lab, scenario.subjects, scenario.rule)
    violations += found
    violations += [
        item for strike in scenario.strikes for item in _promises(strike.scene.target.id, strike.scene.notes)
    ]
    return facts, violations


def release(lab: Lab, strikes: Sequence[Strike]) -> None:
    """Let go of processes that nothing but their node can end, once their jobs are over.

    A pod that was given up while its node was lost is ended by the node when it is found, with the pod's whole grace
    period, as by a kubelet: SIGTERM, and SIGKILL a quarter of an hour later. A program that is stopped hears the first
    only when it goes on.
    """
    if lab.ending_pods():
        for strike in strikes:
            if strike.injected_at is not None:
                strike.kind.release(strike.scene)


def _promises(job_id: str, notes: dict[str, Any]) -> list[Violation]:
    """Return what a halted job must not hold."""
    halted = notes.get("while_halted")
    if halted is None:
        return []
    found = []
    if halted["processes"]:
        found.append(Violation("orphan", job_id, f"{halted['processes']} processes ran while it was halted"))
    if halted["granted"]:
        found.append(Violation("orphan", job_id, "its grant was held while it was halted"))
    if halted["mlflow"] not in (None, "KILLED"):
        found.append(Violation("disagreement", job_id, f"MLflow said {halted['mlflow']} while it was halted"))
    return found
