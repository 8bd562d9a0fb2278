"""Every process of the tree is killed once, what lives shortly first, and a verdict that comes late is a failure."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faults import pace
from faults.checks import Violation
from faults.every import Sweep, SweepTools, rule_of
from faults.facts import JobFacts
from faults.jobs import LIVES
from faults.kinds.base import Rule
from faults.lab import Lab
from faults.outcomes import EVERY, Provenance, RunRecord, killed_places
from faults.pace import Timeline, expected_end, late_seconds
from faults.places import PlatformProcess

from updraft.exceptions import NotFoundError

LASTING = ("s3 0 rclone", "supervisor 0 updraft.stack.supervisor", "node 0 updraft_localnode")
SHORT = ("airflow-scheduler 2 task train", "node 2 train/sidecar", "node 2 evaluate/main dash")
USUAL_SECONDS = 60.0
CODE = Provenance("0123456789ab", "c", changed=False, position=7)


@dataclass
class Platform:
    """Its jobs take a minute by a clock of its own; a kill of `slow` makes them take two minutes more."""

    slow: str = ""
    wrong: str = ""  # a kill of it makes the checks find something
    now: float = 1_000.0
    kills: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    begins_at: dict[str, float] = field(default_factory=dict)
    ends_at: dict[str, float] = field(default_factory=dict)
    stalls: dict[str, float] = field(default_factory=dict)
    home: Any = None
    scale: float = 1.0
    witness: Path = Path("/nowhere")

    @property
    def client(self) -> Any:
        return SimpleNamespace(submit=self.submit)

    def submit(self, _manifest: object, *, job_id: str) -> None:
        self.begins_at[job_id] = self.now
        self.ends_at[job_id] = self.now + USUAL_SECONDS

    def job(self, job_id: str) -> Any:
        if job_id not in self.ends_at:
            raise NotFoundError(job_id)
        ended = self.now >= self.ends_at[job_id]
        at = SimpleNamespace(timestamp=lambda: self.ends_at[job_id])
        state = "COMPLETED" if ended else "PROCESSING"
        return SimpleNamespace(state=state, ended=ended, reason="", ended_at=at)

    def task_ends(self, job_id: str) -> dict[str, float]:
        """A mark each second, the last one at the end."""
        end, stalled = self.ends_at[job_id], self.stalls.get(job_id)
        first = range(int(USUAL_SECONDS))
        marks = {f"mark {n}": self.begins_at[job_id] + n for n in first}
        if stalled is not None:
            marks = {name: at if at <= stalled else at + 120 for name, at in marks.items()}
        return {name: at for name, at in marks.items() if at <= min(self.now, end)}

    def living(self) -> list[str]:
        return [job for job, end in self.ends_at.items() if end > self.now]

    def tree(self, _home: object) -> dict[str, list[PlatformProcess]]:
        found = {key: [self.process(key, "")] for key in LASTING}
        for job in self.living():
            if 10 < self.now - self.begins_at[job] < 40:
                for key in SHORT:
                    task = key.rpartition(" ")[2] if " task " in key else ""
                    found.setdefault(key, []).append(self.process(key, job, task))
        return found

    def process(self, key: str, job: str, task: str = "") -> PlatformProcess:
        return PlatformProcess(key, cast(Any, SimpleNamespace(pid=7, key=key, job=job)), job, task)

    def kill(self, process: Any, number: signal.Signals) -> bool:
        assert number is signal.SIGKILL
        self.kills.append(process.key)
        self.moments.append(self.now)
        if process.key == self.slow:
            for job in [process.job] if process.job else self.living():
                self.ends_at[job] += 120
                self.stalls[job] = self.now
        return True

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def serves(self, _lab: object, _service: str, _pid: int, _since: float) -> float:
        self.now += 5
        return self.now

    def settle(self, _lab: object, subjects: Any, _rule: object) -> Any:
        facts = [JobFacts(id=s.id, state="COMPLETED", ended_at=self.ends_at[s.id]) for s in subjects]
        wrong = self.wrong in self.kills and self.now < 5_000
        return facts, [Violation("false_verdict", subjects[0].id, "ended FAILED")] if wrong else []


Sweeps = Callable[..., list[RunRecord]]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweeps:
    def run(platform: Platform, **how: Any) -> list[RunRecord]:
        tools = SweepTools(
            tree=platform.tree,
            send=platform.kill,
            wait_for_services=platform.serves,
            judge=platform.settle,
            keep_bundle=lambda *_: tmp_path / "kept",
            now=lambda: platform.now,
            monotonic=lambda: platform.now,
            sleep=platform.sleep,
        )
        until = how.pop("until", None)
        made = Sweep(1, tools=tools, **how)
        found = list(made.on(cast(Lab, platform), CODE, tmp_path, until=until))
        assert made.over is (until is None)
        return found

    return run


def test_every_place_is_killed_once_and_what_lives_shortly_first(sweep: Sweeps) -> None:
    platform = Platform()
    found = sweep(platform)
    assert sorted(platform.kills) == sorted((*LASTING, *SHORT))
    assert {record.place for record in found} == set(platform.kills)
    assert all(record.outcome == "passed" for record in found)
    seen = [key for key, at in zip(platform.kills, platform.moments, strict=True) if key in SHORT]
    assert len(seen) == len(SHORT)


def test_several_processes_are_killed_during_the_same_jobs(sweep: Sweeps) -> None:
    platform = Platform()
    sweep(platform)
    waves = [jobs for jobs in platform.begins_at if "every" in jobs]
    assert len(waves) / len(LIVES) < len(platform.kills)


def test_the_sweep_ends_only_when_a_whole_wave_shows_nothing_new(sweep: Sweeps) -> None:
    platform = Platform()
    sweep(platform, spared={*LASTING, *SHORT})
    assert platform.kills == []
    assert {job for job in platform.begins_at if job.startswith("every-1-")} == {f"every-1-4-{p}" for p in LIVES}


def test_a_verdict_that_comes_more_than_a_minute_late_is_a_failure(sweep: Sweeps) -> None:
    found = sweep(Platform(slow="s3 0 rclone"))
    (failed,) = [record for record in found if record.outcome == "failed"]
    assert failed.place == "s3 0 rclone"
    assert {violation.kind for violation in failed.violations} == {"late"}
    assert failed.notes[EVERY]["late_seconds"] == pytest.approx(120, abs=2)
    assert failed.bundle == "kept"


def test_what_the_checks_find_is_charged_to_the_kills_that_met_the_job(sweep: Sweeps) -> None:
    found = sweep(Platform(wrong="node 0 updraft_localnode"))
    failed = [record for record in found if record.outcome == "failed"]
    assert "node 0 updraft_localnode" in {record.place for record in failed}
    assert all("ended FAILED" in record.violations[0].text for record in failed)


def test_a_record_has_the_place_what_it_met_and_what_kills_it_again(sweep: Sweeps) -> None:
    record = next(r for r in sweep(Platform()) if r.place == "node 2 train/sidecar")
    assert record.kind == EVERY
    assert record.notes[EVERY]["place"] == record.place
    assert record.notes[EVERY]["serves_after_seconds"] == 5
    assert len(record.jobs) == 1  # the container's own
    assert record.jobs[0].hit == "PROCESSING"
    assert record.command == "make faults SEED=1 AGAIN=1 ARGS=\"--every --place 'node 2 train/sidecar'\""
    assert killed_places([record], "c") == {record.place}
    assert killed_places([record], "other") == set()


def test_a_service_meets_all_jobs_that_are_under_way(sweep: Sweeps) -> None:
    found = sweep(Platform())
    assert all(len(r.jobs) > 1 for r in found if r.place in LASTING)


def test_what_was_killed_already_is_spared_and_one_place_can_be_chosen(sweep: Sweeps) -> None:
    platform = Platform()
    sweep(platform, spared=set(SHORT))
    assert sorted(platform.kills) == sorted(LASTING)
    alone = Platform()
    sweep(alone, chosen=["s3 0 rclone"])
    assert alone.kills == ["s3 0 rclone"]


def test_no_kill_comes_after_the_time_is_over(sweep: Sweeps) -> None:
    platform = Platform()
    sweep(platform, until=1_000.0 + 4 * USUAL_SECONDS)
    assert 0 < len(platform.kills) < len((*LASTING, *SHORT))


def test_a_container_may_lose_its_tail_and_a_service_costs_no_learner() -> None:
    def rule(key: str, job: str = "") -> Rule:
        return rule_of(PlatformProcess(key, cast(Any, None), job))

    assert rule("node 1 train/main shim", "j") == Rule(tail_may_be_lost=True)
    assert rule("node 0 updraft_localnode") == Rule(untouched=True)
    assert rule("airflow-scheduler 2 task train", "j") == Rule(untouched=True)
    assert rule("s3 0 rclone") == Rule(untouched=True, store_away=True)


def test_a_job_that_an_earlier_kill_delayed_is_not_late_for_a_later_one() -> None:
    usual = Timeline(100, {"admit": 10, "step 1": 40, "step 60": 60})
    own = Timeline(195, {"admit": 12, "step 1": 80, "step 60": 100})
    assert expected_end(usual, own, 5) == 105  # nothing was made yet
    assert expected_end(usual, own, 50) == 140  # only `admit`, though steps should have been made
    assert late_seconds(usual, own, [20, 90, 150]) == pytest.approx([40, 40, 5])
    assert late_seconds(usual, own, []) == []


def test_what_is_usual_is_the_median_of_the_marks_that_all_have() -> None:
    made = pace.median([Timeline(9, {"a": 1, "b": 5}), Timeline(11, {"a": 3}), Timeline(30, {"a": 2})])
    assert made == Timeline(11, {"a": 2})
