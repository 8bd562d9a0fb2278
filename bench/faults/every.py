"""Kills every process of the platform, one after the other, during jobs of the whole life cycle. Called by `cli`.

The process tree is walked anew for each job, so the processes of tasks and learners are met too. Each job has to end
with its true verdict at most `LATE_SECONDS` after the time that such a job takes when nothing is killed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import psutil
from benchmarks.stack import BenchmarkError

from faults import parts
from faults.jobs import LIFE_STEPS, LIVES, Program, as_life, draw_shape, manifest
from faults.lab import Lab, is_over, start
from updraft.exceptions import UnavailableError
from updraft.stack import records

LATE_SECONDS = 60.0
LOST_SECONDS = 300.0  # more than that, and the job is lost
LOOK_SECONDS = 0.2
LATEST = 0.9  # of a job's usual time: until then the kill comes


@dataclass(frozen=True)
class Killed:
    """What became of the job that ran as a process was killed."""

    place: str  # service, generation and program
    program: Program
    at_seconds: float  # after the job's submission
    state: str
    seconds: float  # from the job's submission to its verdict
    late_seconds: float  # more than when nothing is killed

    @property
    def ok(self) -> bool:
        return self.state == "COMPLETED" and self.late_seconds <= LATE_SECONDS

    def text(self) -> str:
        met = f"{self.place} killed {self.at_seconds:.0f} s into a job ({self.program})"
        return f"{'passed' if self.ok else 'FAILED'} {met}: {self.state}, {self.late_seconds:+.0f} s"


def kill_every(lab: Lab, seed: int, *, until: float | None) -> Iterator[Killed]:
    """One kill per place in the process tree, in an order drawn by the seed, until each was killed or time is over.

    `until`: monotonic seconds. Raises BenchmarkError when a job does not end though nothing was killed.
    """
    rng = Random(f"every:{seed}")
    usual = {program: _usual_seconds(lab, rng, program) for program in LIVES}
    done: set[str] = set()
    number = 0
    while until is None or time.monotonic() < until:
        number += 1
        program = rng.choice(LIVES)
        job_id = f"every-{seed}-{number}"
        submitted = _submit(lab, rng, program, job_id)
        wait_seconds = rng.uniform(0, LATEST * usual[program])
        time.sleep(max(0.0, submitted + wait_seconds - time.time()))
        place, process = _next(lab, rng, done)
        if place is None or process is None:
            return
        at = time.time()
        if not parts.send(process, signal.SIGKILL):
            continue  # it ended by itself just now: another look
        done.add(place)
        if place.partition(" ")[0] == records.SUPERVISOR:
            start(lab.home)  # as its user does it
        ended = _wait(lab, job_id)
        job = lab.job(job_id)
        seconds = ended - submitted
        state = "not recorded" if job is None else str(job.state)
        yield Killed(place, program, round(at - submitted, 1), state, round(seconds, 1), seconds - usual[program])
        for name in parts.services(lab.home):
            parts.wait_serves(lab.home, name, since=0.0)


def _next(lab: Lab, rng: Random, done: set[str]) -> tuple[str | None, psutil.Process | None]:
    """A place that was not killed yet: what lives shortly first, for it may not be there the next time."""
    tree = parts.tree(lab.home)
    left = sorted(place for place in tree if place not in done)
    if not left:
        return None, None
    short = [place for place in left if place.split()[1] != "0"]
    place = rng.choice(short or left)
    return place, rng.choice(tree[place])


def _usual_seconds(lab: Lab, rng: Random, program: Program) -> float:
    job_id = f"calm-{program}-{rng.randrange(10**6)}"
    submitted = _submit(lab, rng, program, job_id)
    ended = _wait(lab, job_id)
    job = lab.job(job_id)
    if job is None or job.state != "COMPLETED":
        raise BenchmarkError(f"{job_id} did not complete though nothing was killed: {job and job.reason}")
    return ended - submitted


def _submit(lab: Lab, rng: Random, program: Program, job_id: str) -> float:
    """Returns when it was accepted, as unix seconds; asked again while parts are away."""
    shape = as_life(rng, draw_shape(rng, steps=LIFE_STEPS, may_fail=False), program, may_fail=False)
    deadline = time.monotonic() + LOST_SECONDS
    while True:
        try:
            lab.client.submit(manifest(shape, job_id, lab.witness), job_id=job_id)
        except UnavailableError as exc:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{job_id} was not accepted: {exc}") from exc
            time.sleep(LOOK_SECONDS)
        else:
            return time.time()


def _wait(lab: Lab, job_id: str) -> float:
    """Unix seconds at which the job's verdict was seen, or at which it was given up."""
    deadline = time.monotonic() + LOST_SECONDS
    while not is_over(lab, job_id) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return time.time()
