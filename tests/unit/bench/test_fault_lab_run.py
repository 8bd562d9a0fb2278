"""What a run does around its faults: processes are really stopped and killed, a failed run leaves what explains it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from benchmarks.stack import BenchmarkError
from faults import parts, run
from faults.bundle import keep
from faults.checks import Violation
from faults.facts import JobFacts, LogFacts, collect
from faults.jobs import Shape
from faults.kinds import KINDS
from faults.kinds.base import Moment, Rule, Scene, Subject, TooLateError, wait_for
from faults.lab import Lab
from faults.moments import allowing
from faults.plan import Planned, PlannedStrike

from updraft.exceptions import UnavailableError
from updraft.stack import processes, records
from updraft.stack.layout import Home
from updraft.stack.records import Phase, SupervisorRecord


def await_statuses(family: list[psutil.Process], *, stopped_ones: int) -> None:
    """A signal takes effect when its process is scheduled."""
    deadline = time.monotonic() + 20
    while sum(process.status() == psutil.STATUS_STOPPED for process in family) != stopped_ones:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_part_is_stopped_with_all_its_processes_and_goes_on(home: Home, part: subprocess.Popen[bytes]) -> None:
    stopped = parts.stop(home, "s3")
    assert stopped[0].pid == part.pid
    assert len(stopped) == 2
    await_statuses(stopped, stopped_ones=2)
    parts.go_on(stopped)
    await_statuses(stopped, stopped_ones=0)


def test_waking_a_part_that_was_killed_meanwhile_does_no_harm(home: Home, part: subprocess.Popen[bytes]) -> None:
    stopped = parts.stop(home, "s3")
    for process in stopped:
        process.kill()
    part.wait(timeout=10)
    parts.go_on(stopped)


def test_a_part_that_is_away_has_its_supervisor_stopped_too(home: Home, part: subprocess.Popen[bytes]) -> None:
    supervisor, identity = processes.spawn(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
        environment={"PATH": "/usr/bin:/bin"},
        cwd=home.root,
        log=home.root / "other",
    )
    record = SupervisorRecord(identity.pid, identity.create_time, Phase.RUNNING, time.time())
    records.write_supervisor(home, record)
    try:
        with pytest.raises(BenchmarkError, match="mlflow does not run"):
            parts.take_away(home, "mlflow")
        await_statuses([psutil.Process(supervisor.pid)], stopped_ones=0)

        stopped = parts.take_away(home, "s3")
        assert [stopped[0].pid, stopped[-1].pid] == [part.pid, supervisor.pid]
        await_statuses(stopped, stopped_ones=3)
        parts.go_on(stopped)
        await_statuses(stopped, stopped_ones=0)
    finally:
        supervisor.kill()
        supervisor.wait(timeout=10)


def test_without_a_supervisor_nothing_is_taken_away(home: Home, part: subprocess.Popen[bytes]) -> None:
    with pytest.raises(BenchmarkError, match="no supervisor runs"):
        parts.take_away(home, "s3")


def test_a_part_that_is_slow_stands_still_in_between_and_runs_again_afterwards(
    home: Home, part: subprocess.Popen[bytes]
) -> None:
    family = parts.members(home, "s3")
    over = threading.Event()
    thread = threading.Thread(target=parts.slow_down, args=(home, "s3", 0.01, 0.5, over))
    thread.start()
    try:
        await_statuses(family, stopped_ones=2)
        await_statuses(family, stopped_ones=0)
        await_statuses(family, stopped_ones=2)
    finally:
        over.set()
        thread.join(timeout=20)
    await_statuses(family, stopped_ones=0)


def test_a_killed_part_is_dead_and_its_children_are_left_to_the_supervisor(
    home: Home, part: subprocess.Popen[bytes]
) -> None:
    _, other = parts.members(home, "s3")
    parts.kill(home, "s3")
    assert part.wait(timeout=10) == -9
    assert other.is_running()
    with pytest.raises(BenchmarkError, match="s3 does not run"):
        parts.kill(home, "s3")
    with pytest.raises(BenchmarkError, match=r"s3 did not serve again within 0 s; log: .*s3\.log"):
        parts.wait_serves(home, "s3", since=0.0, seconds=0.0)


class FakeLab:
    """A job whose states are told one after the other, and whose other witnesses are away."""

    def __init__(self, root: Path, *states: str) -> None:
        self.home = Home(root / "home", root)
        self.witness = root / "witness"
        self._states = list(states)
        self.ledger = SimpleNamespace(jobs=SimpleNamespace(transitions=lambda _job: []))

    def job(self, job_id: str) -> Any:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if state == "away":
            raise UnavailableError("the ledger is away")
        return None if state == "" else SimpleNamespace(id=job_id, state=state, ended=state == "COMPLETED")

    def stored(self, job_id: str) -> Path:
        return self.home.s3 / job_id

    def processes(self, _job_id: str) -> list[Any]:
        return []

    def airflow_run(self, _job_id: str) -> Any:
        raise UnavailableError("Airflow is away")

    def objects(self, resource: str, _job_id: str) -> list[Any]:
        return [{"metadata": {"name": f"one-of-{resource}"}}]


def scene(lab: FakeLab) -> Scene:
    subject = Subject("j", Shape())
    return Scene(cast(Lab, lab), (subject,), subject, Random(1))


def test_a_moment_is_awaited_over_a_ledger_that_is_away(tmp_path: Path) -> None:
    wait_for(scene(FakeLab(tmp_path, "", "away", "PENDING", "QUEUED", "DOWNLOADING")), Moment(state="DEPLOYING"), 20)
    with pytest.raises(TooLateError, match="j ended COMPLETED before step 5"):
        wait_for(scene(FakeLab(tmp_path, "PROCESSING", "COMPLETED")), Moment(step=5), 20)
    with pytest.raises(TooLateError, match="j did not come to step 5 within 0 s"):
        wait_for(scene(FakeLab(tmp_path, "QUEUED")), Moment(step=5), 0)


def test_facts_are_read_from_the_store_and_the_cluster_though_the_rest_is_away(tmp_path: Path) -> None:
    lab = FakeLab(tmp_path, "away")
    logs = lab.stored("j") / "attempts" / "train-2" / "learner-1" / "logs"
    logs.mkdir(parents=True)
    lines = [
        {"n": n, "line": text} for n, text in ((1, "begins"), (2, "step 1 ab"), (3, "step 2 cd"), (5, "step 4 ef"))
    ]
    (logs / "000000000001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (logs / "000000000002.jsonl").write_text(json.dumps({"n": 2, "line": "step 1 ab"}) + "\n" + '{"n": 2, "line": "x"}')
    results = lab.stored("j") / "results" / "learner-1"
    results.mkdir(parents=True)
    (results / "result.json").write_text('{"steps": 2}')
    found = collect(cast(Lab, lab), Subject("j", Shape()))
    assert found == JobFacts(
        id="j",
        state=None,
        pods=("one-of-pods",),
        secrets=("one-of-secrets", "one-of-services"),
        result={"steps": 2},
        logs=(LogFacts(attempt=2, learner=1, steps=(1, 2, 4), twice=1, gaps=1),),
        unread=("ledger: the ledger is away", "airflow: Airflow is away"),
    )


def test_a_failed_run_leaves_what_explains_it(tmp_path: Path) -> None:
    lab = FakeLab(tmp_path, "PROCESSING")
    lab.home.logs.mkdir(parents=True)
    (lab.home.logs / "s3.log").write_text("early\n" + "x" * (3 << 20) + "late")
    (lab.witness / "j").mkdir(parents=True)
    (lab.witness / "j" / "train-1-1-7.jsonl").write_text("{}")
    facts = JobFacts(id="j", state="PROCESSING", reason="runs")
    place = keep(
        cast(Lab, lab), Planned(("s3_kill",), 7), [facts], [Violation("lost", "j", "is PROCESSING")], tmp_path / "kept"
    )
    assert place.name.startswith("s3_kill-7-")
    assert (place / "violations.txt").read_text() == "lost: j: is PROCESSING\n"
    assert (place / "parts" / "s3.log").read_text().endswith("late")
    assert (place / "parts" / "s3.log").stat().st_size == 2 << 20
    assert json.loads((place / "j" / "facts.json").read_text())["reason"] == "runs"
    assert (place / "j" / "witness" / "train-1-1-7.jsonl").exists()


def test_a_fault_while_a_task_runs_waits_for_the_task_and_one_while_pending_for_the_submission(tmp_path: Path) -> None:
    lab = FakeLab(tmp_path, "STORING")
    running = [set[str](), {"evaluate"}, {"export_model"}]
    lab.running_tasks = lambda _job: running.pop(0)  # type: ignore[attr-defined]
    wait_for(scene(lab), Moment(task="export_model"), 20)
    assert not running
    waiting = scene(FakeLab(tmp_path, ""))
    with pytest.raises(TooLateError, match="did not come to"):
        wait_for(waiting, Moment(state="PENDING"), 0)
    waiting.accepted.set()
    wait_for(waiting, Moment(state="PENDING"), 20)


def test_a_state_that_comes_and_goes_is_met_only_while_it_lasts(tmp_path: Path) -> None:
    wait_for(scene(FakeLab(tmp_path, "PROCESSING", "RECOVERING", "PROCESSING")), Moment(state="RECOVERING"), 20)
    with pytest.raises(TooLateError, match="j ended COMPLETED before"):
        wait_for(scene(FakeLab(tmp_path, "PROCESSING", "STORING", "COMPLETED")), Moment(state="HALTED"), 20)


def test_a_moment_that_has_to_be_exact_is_not_met_by_a_later_state(tmp_path: Path) -> None:
    states = ("DEPLOYING", "PROCESSING", "STORING", "COMPLETED")
    wait_for(scene(FakeLab(tmp_path, *states)), Moment(state="DOWNLOADING"), 20)
    with pytest.raises(TooLateError, match="j ended COMPLETED before"):
        wait_for(scene(FakeLab(tmp_path, *states)), Moment(state="DOWNLOADING", exact=True), 20)


def test_the_moment_allows_what_it_brings_with_it() -> None:
    shape, strict = Shape(program="cnn"), Rule(untouched=True)
    recovering = [PlannedStrike("s3_kill", "RECOVERING", "cnn")]
    assert allowing(strict, recovering, shape) == Rule(untouched=False)
    cancelled = Rule(only=frozenset({"CANCELLED"}))
    early, late = ([PlannedStrike("cancel", aim, "cnn")] for aim in ("PROCESSING", "task:promote"))
    assert allowing(cancelled, early, shape).ends(shape) == {"CANCELLED"}
    assert allowing(cancelled, late, shape).ends(shape) == {"CANCELLED", "COMPLETED"}
    wrong = Shape(program="cnn", bad_data=True)
    assert allowing(cancelled, early, wrong).ends(wrong) == {"CANCELLED", "FAILED"}


@pytest.mark.parametrize("ending", [True, False])
def test_a_frozen_program_hears_its_node_only_where_nothing_else_can_end_it(tmp_path: Path, ending: bool) -> None:
    """Where the platform can end it, a program that stays is the platform's failure, and is not helped."""
    program = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        lab = FakeLab(tmp_path, "COMPLETED")
        lab.ending_pods = lambda: frozenset({"j-t1-0"} if ending else ())  # type: ignore[attr-defined]
        frozen = scene(lab)
        frozen.held = psutil.Process(program.pid)
        program.send_signal(signal.SIGSTOP)
        await_statuses([frozen.held], stopped_ones=1)
        program.terminate()
        strike = SimpleNamespace(injected_at=1.0, kind=KINDS["learner_freeze"], scene=frozen)
        run.release(cast(Lab, lab), [cast(Any, strike)])
        if ending:
            assert program.wait(timeout=20) == -signal.SIGTERM
        else:
            await_statuses([frozen.held], stopped_ones=1)
    finally:
        program.kill()
        program.wait(timeout=10)
