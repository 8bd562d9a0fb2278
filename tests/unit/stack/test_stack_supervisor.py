"""The supervisor with real, small processes: a server that listens, and programs that end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from updraft.stack import control, processes, records
from updraft.stack.layout import MARK_VARIABLE, PART_VARIABLE, Home
from updraft.stack.parts import Part, Probe, Stamp
from updraft.stack.records import PartFailure, PartState
from updraft.stack.supervisor import StartFailedError, Supervisor, hold_lock
from updraft.stack.watchdog import WatchTiming, Watchdog

SERVER = """
import http.server, os, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer.allow_reuse_address = True
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
server.serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def part(home: Home, name: str, argv: list[str], *, port: int | None = None, **more: object) -> Part:
    environment = {**os.environ, MARK_VARIABLE: str(home.root), PART_VARIABLE: name, "UPDRAFT_HOME": str(home.root)}
    return Part(
        name=name,
        title=name.title(),
        argv=(sys.executable, *argv),
        cwd=home.root,
        log=home.log_of(name),
        environment=environment,
        port=port,
        port_name=name if port else None,
        probe=Probe(f"http://127.0.0.1:{port}/") if port else None,
        stop_within_seconds=5.0,
        **more,  # type: ignore[arg-type]
    )


def server(home: Home, name: str, *, child: bool = False, **more: object) -> Part:
    port = free_port()
    return part(home, name, ["-c", SERVER, str(port), *(["child"] if child else [])], port=port, **more)


def step_until(supervisor: Supervisor, true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        supervisor.step()
        time.sleep(0.01)


def state(home: Home, name: str) -> PartState | None:
    record = records.read_part(home, name)
    return None if record is None else record.state


def pid(home: Home, name: str) -> int:
    record = records.read_part(home, name)
    assert record is not None
    assert record.pid is not None
    return record.pid


def lives(number: int) -> bool:
    """A zombie does not: who reaps an orphan, and when, is the system's business."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def nothing_is_left(home: Home) -> Iterator[None]:
    yield
    left = processes.marked(home)
    processes.kill(left)
    assert left == []


def test_parts_start_in_order_and_stop(home: Home) -> None:
    log = home.root / "order"
    first = part(home, "first", ["-c", f"open({str(log)!r}, 'a').write('first ')"])
    second = part(home, "second", ["-c", f"open({str(log)!r}, 'a').write('second')"], after=("first",))
    service = server(home, "service", after=("second",))
    supervisor = Supervisor(home, (first, second, service))

    step_until(supervisor, lambda: state(home, "service") is PartState.READY)
    assert (state(home, "first"), state(home, "second")) == (PartState.DONE, PartState.DONE)
    assert log.read_text() == "first second"
    running = pid(home, "service")

    supervisor.stop_parts()

    assert not lives(running)
    assert state(home, "service") is PartState.STOPPED


def test_a_part_that_dies_is_started_again_on_its_port_and_its_children_are_ended(home: Home) -> None:
    service = server(home, "service", child=True)
    supervisor = Supervisor(home, (service,))
    step_until(supervisor, lambda: state(home, "service") is PartState.READY)
    first = pid(home, "service")
    orphan = int(service.log.read_text().split()[1])

    psutil.Process(first).kill()
    step_until(supervisor, lambda: state(home, "service") is PartState.BACKOFF)
    assert not lives(orphan)
    step_until(supervisor, lambda: state(home, "service") is PartState.READY)

    record = records.read_part(home, "service")
    assert record is not None
    assert record.pid != first
    assert (record.port, record.restarts, record.last_exit) == (service.port, 1, "it ended with signal SIGKILL")
    supervisor.stop_parts()


def test_a_part_that_is_stopped_is_killed_and_started_again(home: Home) -> None:
    service = server(home, "service", child=True)
    watchdog = Watchdog(timing=WatchTiming(pause_seconds=0.1, answer_seconds=1.0, hung_seconds=3.0))
    supervisor = Supervisor(home, (service,), watchdog=watchdog)
    step_until(supervisor, lambda: state(home, "service") is PartState.READY)
    first = pid(home, "service")
    orphan = int(service.log.read_text().split()[1])

    psutil.Process(first).suspend()
    step_until(supervisor, lambda: state(home, "service") is PartState.BACKOFF)
    assert not lives(first)
    assert not lives(orphan)
    step_until(supervisor, lambda: state(home, "service") is PartState.READY)

    record = records.read_part(home, "service")
    assert record is not None
    assert (record.port, record.restarts) == (service.port, 1)
    assert re.fullmatch(
        r"it was killed: no answer for \d+ s \(.* does not answer \(timed out\)\), its process is stopped",
        record.last_exit or "",
    )
    supervisor.stop_parts()


def test_a_start_that_fails_says_which_part_why_and_where_its_log_is(home: Home) -> None:
    broken = part(home, "broken", ["-c", "import sys; print('no such table'); sys.exit(7)"])
    supervisor = Supervisor(home, (server(home, "other"), broken))

    with pytest.raises(StartFailedError) as caught:
        step_until(supervisor, lambda: False)

    assert caught.value.failure == PartFailure("broken", "it ended with exit code 7", str(broken.log), "no such table")
    assert "broken did not start: it ended with exit code 7" in str(caught.value)
    supervisor.stop_parts()


def test_a_part_that_is_killed_while_the_stack_starts_is_started_again(home: Home) -> None:
    service = server(home, "service")
    task = part(home, "task", ["-c", "import time; time.sleep(600)"])
    supervisor = Supervisor(home, (service, task))
    for name in ("service", "task"):
        supervisor.step()
        psutil.Process(pid(home, name)).kill()
        step_until(supervisor, lambda name=name: state(home, name) is PartState.BACKOFF)  # type: ignore[misc]
    step_until(supervisor, lambda: state(home, "service") is PartState.READY)
    step_until(supervisor, lambda: state(home, "task") is PartState.STARTING)
    supervisor.stop_parts()


def test_a_service_that_ends_at_each_start_is_given_up_after_a_few_attempts(home: Home) -> None:
    tries = home.root / "tries"
    program = f"import sys; open({str(tries)!r}, 'a').write('.'); sys.exit(7)"
    broken = part(home, "broken", ["-c", program], port=free_port())
    supervisor = Supervisor(home, (broken,), clock=lambda: 20 * time.monotonic())

    with pytest.raises(StartFailedError, match="broken did not start: it ended with exit code 7"):
        step_until(supervisor, lambda: False)

    assert tries.read_text() == "..."
    supervisor.stop_parts()


def test_a_program_that_is_not_there_is_a_failed_start(home: Home) -> None:
    missing = part(home, "missing", [])
    missing = Part(**{**vars(missing), "argv": ("/nowhere/program",)})

    with pytest.raises(StartFailedError, match="/nowhere/program cannot be run"):
        step_until(Supervisor(home, (missing,)), lambda: False)


def test_a_part_that_never_answers_fails_with_the_last_answer(home: Home) -> None:
    silent = part(home, "silent", ["-c", "import time; time.sleep(600)"], port=free_port(), ready_within_seconds=0.5)
    asked: list[float] = []

    def probe(_part: Part, since: float) -> str:
        asked.append(since)
        return "it answers 503"

    supervisor = Supervisor(home, (silent,), probe=probe, clock=lambda: float(len(asked)))

    with pytest.raises(StartFailedError, match=r"it was not ready after 0 s \(it answers 503\)"):
        step_until(supervisor, lambda: False)
    supervisor.stop_parts()


def test_the_next_supervisor_takes_over_what_a_killed_one_left(home: Home) -> None:
    service, other = server(home, "service"), server(home, "other")
    killed = Supervisor(home, (service, other))
    step_until(killed, lambda: state(home, "service") is state(home, "other") is PartState.READY)
    before = pid(home, "service")
    # From here on the first one does nothing any more. One of its parts dies unseen.
    psutil.Process(pid(home, "other")).kill()
    killed._watched["other"].child.wait()  # type: ignore[union-attr]

    successor = Supervisor(home, (service, other))
    successor._take_over()
    step_until(successor, lambda: state(home, "service") is state(home, "other") is PartState.READY)

    assert pid(home, "service") == before
    successor.stop_parts()


def test_a_part_whose_configuration_changed_is_not_taken_over(home: Home) -> None:
    old = server(home, "service")
    killed = Supervisor(home, (old,))
    step_until(killed, lambda: state(home, "service") is PartState.READY)
    before = pid(home, "service")

    new = server(home, "service")
    successor = Supervisor(home, (new,))
    successor._take_over()
    step_until(successor, lambda: state(home, "service") is PartState.READY)

    assert not processes.Identity(before, 0).alive()
    assert pid(home, "service") != before
    successor.stop_parts()


def test_a_part_without_a_record_is_ended_before_another_is_started(home: Home) -> None:
    service = server(home, "service")
    child, _ = processes.spawn(service.argv, environment=service.environment, cwd=home.root, log=service.log)
    deadline = time.monotonic() + 20
    while not processes.marked(home):  # between fork and exec it still has its parent's environment
        assert time.monotonic() < deadline
        time.sleep(0.01)

    supervisor = Supervisor(home, (service,))
    supervisor._take_over()

    assert child.wait(timeout=20) != 0
    supervisor.stop_parts()


def test_a_taken_port_is_named_with_its_owner_and_the_way_out(home: Home) -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        supervisor = Supervisor(home, (part(home, "airflow", ["-c", ""], port=port),))

        with pytest.raises(StartFailedError) as caught:
            supervisor._check_ports()

    assert f"its port {port} is taken by" in str(caught.value)
    assert f"(pid {os.getpid()})" in str(caught.value)
    assert "`updraft up --port-airflow N`" in str(caught.value)


def test_a_task_with_a_current_stamp_is_left_out(home: Home) -> None:
    product = home.root / "tables.db"
    product.touch()
    stamp = Stamp(home.root / "stamp", "3.3.2", (product,))
    stamp.file.write_text("3.3.2")
    task = part(home, "migrate", ["-c", "raise SystemExit(1)"], stamp=stamp)

    step_until(Supervisor(home, (task,)), lambda: state(home, "migrate") is PartState.DONE)


def test_a_task_is_done_again_when_its_stamp_is_old(home: Home) -> None:
    product = home.root / "tables.db"
    stamp = Stamp(home.root / "stamp", "3.3.3", (product,))
    stamp.file.write_text("3.3.2")
    task = part(home, "migrate", ["-c", f"open({str(product)!r}, 'w')"], stamp=stamp)

    step_until(Supervisor(home, (task,)), lambda: state(home, "migrate") is PartState.DONE)

    assert stamp.current()


def test_tables_whose_making_was_killed_are_made_anew(home: Home) -> None:
    product = home.root / "tables.db"
    product.write_text("half")
    (home.root / "tables.db-wal").write_text("more")
    stamp = Stamp(home.root / "stamp", "3.3.3", (product,))
    task = part(home, "migrate", ["-c", f"open({str(product)!r}, 'x').write('whole')"], stamp=stamp)

    step_until(Supervisor(home, (task,)), lambda: state(home, "migrate") is PartState.DONE)

    assert (product.read_text(), stamp.current()) == ("whole", True)
    assert sorted(path.name for path in home.root.glob("*tables*")) == [
        "tables.db",
        "unfinished-tables.db",
        "unfinished-tables.db-wal",
    ]


def test_tables_that_a_service_makes_are_finished_when_it_is_ready_and_not_before(home: Home) -> None:
    product = home.root / "tables.db"
    stamp = Stamp(home.root / "stamp", "3.3.3", (product,), made_by="web")
    task = part(home, "migrate", ["-c", "raise SystemExit(1)"], stamp=stamp)
    web = server(home, "web", after=("migrate",))
    supervisor = Supervisor(home, (task, web))
    step_until(supervisor, lambda: state(home, "web") is PartState.STARTING)
    product.write_text("half")
    assert not stamp.file.exists()

    step_until(supervisor, lambda: state(home, "web") is PartState.READY)

    assert stamp.current()
    assert stamp.set_unfinished_aside() == []
    supervisor.stop_parts()


def test_only_one_supervisor_holds_a_home(home: Home) -> None:
    lock = hold_lock(home)
    assert lock is not None
    assert hold_lock(home) is None
    lock.close()
    again = hold_lock(home)
    assert again is not None
    again.close()


def test_down_ends_whatever_carries_the_mark_of_the_home_and_nothing_else(home: Home, tmp_path: Path) -> None:
    sleeping = ("-c", "import time; time.sleep(600)")
    stray = part(home, "stray", [*sleeping])
    mine, _ = processes.spawn(stray.argv, environment=stray.environment, cwd=home.root, log=stray.log)
    neighbour = Home(root=tmp_path / "neighbour", repository=home.repository)
    neighbour.root.mkdir()
    other = part(neighbour, "stray", [*sleeping])
    theirs, _ = processes.spawn(other.argv, environment=other.environment, cwd=neighbour.root, log=other.log)
    try:
        control.down(home, say=lambda text: None)

        assert mine.wait(timeout=5) != 0
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_down_of_a_home_without_anything_is_harmless(home: Home) -> None:
    assert control.down(home, say=lambda text: None) == 0


def test_down_ends_the_containers_that_a_dead_local_node_left(home: Home) -> None:
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    threading.Thread(target=program.wait, daemon=True).start()  # nobody else takes note of its end
    identity = processes.identify(program.pid)
    assert identity is not None
    attempt = home.node / "pods" / "pod" / "c" / "base" / "0"
    attempt.mkdir(parents=True)
    (attempt / "process").write_text(json.dumps({"main": [identity.pid, identity.create_time]}))

    try:
        assert control.down(home, say=lambda text: None) == 1

        assert program.wait(timeout=5) == -signal.SIGKILL
    finally:
        program.kill()


def test_down_ends_parts_whose_supervisor_was_killed(home: Home) -> None:
    control.initialise(home)
    service = server(home, "mlflow", child=True)  # in the place of a part that the home has
    killed = Supervisor(home, (service,))
    step_until(killed, lambda: state(home, "mlflow") is PartState.READY)
    # The supervisor of this test is the test itself; one that was killed leaves a record of a process that is gone.
    record = records.read_supervisor(home)
    if record is not None:
        records.write_supervisor(home, replace(record, create_time=record.create_time - 1))

    control.down(home, say=lambda text: None)

    assert processes.marked(home) == []
    assert list(home.run.glob("*.json")) == []
