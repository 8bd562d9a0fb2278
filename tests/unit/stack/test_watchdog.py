"""When a part is given up: decisions on a clock of the test, and real processes that are stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from updraft.stack import watchdog
from updraft.stack.config import choose_config, generate_secrets
from updraft.stack.layout import Home
from updraft.stack.parts import Part, Probe, build_parts
from updraft.stack.probes import NoAnswerError
from updraft.stack.processes import Identity, identify
from updraft.stack.watchdog import Watchdog, WorkDone, measure, patience_seconds

HEALTH = "http://127.0.0.1:8080/api/v2/monitor/health"
S3 = "http://127.0.0.1:9000"
IDENTITY = Identity(1, 0.0)
STILL = WorkDone(0.0, 0.0)


def part(name: str, url: str, component: str | None = None, *, runs_tasks: bool = False) -> Part:
    probe = Probe(url, component=component)
    return Part(name, name, (), Path("/"), Path("/log"), {}, probe=probe, runs_tasks=runs_tasks)


API = part("api", HEALTH)
SCHEDULER = part("scheduler", HEALTH, "scheduler", runs_tasks=True)
TRIGGERER = part("triggerer", HEALTH, "triggerer")
STORE = part("s3", S3)


class World:
    """Parts that answer, hang and work, as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.silent: dict[str, str] = {}  # address: why
        self.code: int | None = None
        self.beats = {"scheduler": 1000.0, "triggerer": 1000.0}
        self.database = True
        self.cpu_share = 0.0
        self.stopped = False
        self.stuck: str | None = None
        self.dog = Watchdog(
            queue=lambda processes: self.stuck,
            ask=self.ask,
            measure=lambda _part, _identity: WorkDone(self.now, self.now * self.cpu_share, self.stopped),
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
            threads=False,
        )

    def ask(self, probe: Probe, timeout_seconds: float) -> bytes:
        if (why := self.silent.get(probe.url)) is not None:
            self.now += timeout_seconds if self.code is None else 0.0
            raise NoAnswerError(why, self.code)
        beats = {
            n: datetime.fromtimestamp(at, UTC).isoformat() if self.database else None for n, at in self.beats.items()
        }
        return json.dumps({n: {f"latest_{n}_heartbeat": at} for n, at in beats.items()}).encode()

    def run(self, seconds: float, *urls: str) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += watchdog.PAUSE_SECONDS
            for url in urls:
                self.dog.look_at(url)


@pytest.fixture
def world() -> World:
    return World()


def test_a_part_that_does_not_answer_is_given_up_after_two_looks(world: World) -> None:
    world.dog.watch(STORE, IDENTITY)
    world.run(60, S3)
    assert world.dog.given_up("s3") is None

    world.silent[S3] = "it does not answer (timed out)"
    world.run(1, S3)
    assert world.dog.given_up("s3") is None
    world.run(1, S3)
    assert world.dog.given_up("s3") == "it was killed: no answer for 26 s (it does not answer (timed out))"


def test_one_answer_in_between_is_enough(world: World) -> None:
    world.dog.watch(STORE, IDENTITY)
    for _ in range(10):
        world.silent[S3] = "it does not answer"
        world.run(1, S3)
        world.silent.clear()
        world.run(1, S3)
    assert world.dog.given_up("s3") is None


def test_a_part_that_works_has_more_time(world: World) -> None:
    world.dog.watch(STORE, IDENTITY)
    world.silent[S3], world.cpu_share = "it does not answer", 0.05
    world.run(100, S3)
    assert world.dog.given_up("s3") is None
    world.run(40, S3)
    assert world.dog.given_up("s3") is not None


def test_a_part_that_answers_with_errors_has_more_time(world: World) -> None:
    world.dog.watch(STORE, IDENTITY)
    world.silent[S3], world.code = "it answers 503", 503
    world.run(100, S3)
    assert world.dog.given_up("s3") is None
    world.run(40, S3)
    assert (world.dog.given_up("s3") or "").startswith("it was killed: errors for 1")


@pytest.mark.parametrize(
    ("before", "now", "beats", "answers", "seconds"),
    [
        (STILL, WorkDone(20.0, 0.1), False, False, watchdog.HUNG_SECONDS),
        (STILL, WorkDone(20.0, 0.5), False, False, watchdog.AT_WORK_SECONDS),
        (STILL, WorkDone(20.0, 0.1, on_disk=True), False, False, watchdog.AT_WORK_SECONDS),
        (STILL, WorkDone(20.0, 0.1), False, True, watchdog.AT_WORK_SECONDS),
        (STILL, WorkDone(20.0, 5.0, stopped=True), False, False, watchdog.HUNG_SECONDS),
        (STILL, WorkDone(20.0, 5.0, stopped=True), True, False, watchdog.STOPPED_SECONDS),
        (STILL, WorkDone(20.0, 0.1), True, False, watchdog.HUNG_SECONDS),
        (STILL, STILL, False, False, watchdog.AT_WORK_SECONDS),
    ],
    ids=["hangs", "works", "disk", "errors", "stopped", "stopped, late beat", "late beat", "nothing known yet"],
)
def test_how_long_a_part_may_fail(before: WorkDone, now: WorkDone, beats: bool, answers: bool, seconds: float) -> None:
    assert patience_seconds(before, now, beats=beats, answers=answers) == seconds


def test_an_api_server_that_hangs_is_given_up_and_the_daemons_are_not(world: World) -> None:
    for each in (API, SCHEDULER, TRIGGERER):
        world.dog.watch(each, IDENTITY)
    world.silent[HEALTH] = "it does not answer"
    world.run(300, HEALTH)
    assert world.dog.given_up("api") is not None
    assert [world.dog.given_up(name) for name in ("scheduler", "triggerer")] == [None, None]

    world.dog.forget("api")  # as it is started again
    world.silent.clear()
    world.run(1, HEALTH)
    assert world.dog.given_up("scheduler") is None  # its heartbeat is old, but this is the first that is known of it


def test_a_daemon_whose_heartbeat_is_late_is_given_up_and_the_others_are_not(world: World) -> None:
    for each in (API, SCHEDULER, TRIGGERER):
        world.dog.watch(each, IDENTITY)
    began = world.now
    world.stopped = True
    while world.dog.given_up("triggerer") is None:
        world.beats["scheduler"] = world.now
        world.run(1, HEALTH)
        assert world.now < began + 120
    assert 50 <= world.now - began <= 60
    assert world.dog.given_up("triggerer") == "it was killed: its last heartbeat was 56 s ago, its process is stopped"
    assert [world.dog.given_up(name) for name in ("api", "scheduler")] == [None, None]


def test_heartbeats_that_look_old_for_a_moment_do_not_count(world: World) -> None:
    """The machine slept, or its clock was set."""
    world.dog.watch(SCHEDULER, IDENTITY)
    world.stopped = True
    world.now += 3600
    world.run(5, HEALTH)
    world.beats["scheduler"] = world.now
    world.run(5, HEALTH)
    assert world.dog.given_up("scheduler") is None


def test_without_airflows_database_nothing_is_known_of_daemons(world: World) -> None:
    world.dog.watch(SCHEDULER, IDENTITY)
    world.database, world.stopped = False, True
    world.run(300, HEALTH)
    assert world.dog.given_up("scheduler") is None


def test_after_one_was_killed_the_others_have_their_time_again(world: World) -> None:
    for each in (SCHEDULER, TRIGGERER):
        world.dog.watch(each, IDENTITY)
    world.run(300, HEALTH)
    assert None not in (world.dog.given_up("scheduler"), world.dog.given_up("triggerer"))
    world.dog.forget("scheduler")
    world.dog.begin_anew()
    assert world.dog.given_up("triggerer") is None
    assert world.dog.given_up("scheduler") is None


def test_a_scheduler_that_starts_nothing_is_given_up_after_two_looks_in_a_row(world: World) -> None:
    world.dog.watch(SCHEDULER, IDENTITY)
    world.stuck = "1 task is queued"
    world.dog.look_at_queue()
    world.stuck = None
    world.dog.look_at_queue()
    world.stuck = "1 task is queued"
    world.dog.look_at_queue()
    assert world.dog.given_up("scheduler") is None
    world.dog.look_at_queue()
    assert world.dog.given_up("scheduler") == "it was killed: 1 task is queued"


def test_a_restart_that_does_not_help_is_repeated_more_and_more_seldom(world: World) -> None:
    world.stuck = "1 task is queued"
    looks = []
    for _ in range(4):
        world.dog.watch(SCHEDULER, IDENTITY)
        looks.append(0)
        while world.dog.given_up("scheduler") is None:
            world.dog.look_at_queue()
            looks[-1] += 1
        world.dog.forget("scheduler")
    assert looks == [2, 4, 8, 16]


def test_a_failure_of_an_earlier_process_does_not_count(world: World) -> None:
    world.dog.watch(STORE, IDENTITY)
    world.silent[S3] = "it does not answer"
    world.run(1, S3)
    world.dog.forget("s3")
    world.dog.watch(STORE, IDENTITY)
    world.run(1, S3)
    assert world.dog.given_up("s3") is None


def test_the_scheduler_alone_runs_tasks(tmp_path: Path) -> None:
    parts = build_parts(Home(tmp_path, tmp_path), choose_config({}), generate_secrets(), {})
    assert [p.name for p in parts if p.runs_tasks] == ["airflow-scheduler"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A leader that sleeps, with a child that computes."""
    program = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'while True: pass']); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    leader = identify(process.pid)
    assert leader is not None
    yield process
    watchdog.processes.end_session(leader, grace_seconds=0)
    process.wait()


def test_what_a_part_has_done_is_that_of_its_session_and_a_schedulers_its_own(child: subprocess.Popen[bytes]) -> None:
    leader = identify(child.pid)
    assert leader is not None
    deadline = time.monotonic() + 30
    alone = measure(SCHEDULER, leader).cpu_seconds
    while measure(STORE, leader).cpu_seconds < alone + 0.3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert measure(SCHEDULER, leader).cpu_seconds < alone + 0.3
    assert not measure(STORE, leader).stopped

    child.send_signal(signal.SIGSTOP)
    while not (work := measure(SCHEDULER, leader)).stopped:
        assert time.monotonic() < deadline
    assert replace(work, at=0.0, cpu_seconds=0.0) == WorkDone(0.0, 0.0, stopped=True)
