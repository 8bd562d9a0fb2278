"""Every process of the tree is killed once, what lives shortly first, and a verdict that comes late is a failure."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faults import every, parts
from faults.every import LATE_SECONDS, Killed, kill_every
from faults.lab import Lab

TREE = {"node 0 python": ["node"], "node 2 sh": ["program"], "s3 0 rclone": ["store"], "supervisor 0 python": ["init"]}


@dataclass
class Platform:
    """Its jobs take ten seconds by a clock of its own; a kill of `slow` makes them take two minutes more."""

    slow: str = ""
    now: float = 1_000.0
    kills: list[str] = field(default_factory=list)
    started: int = 0
    ends_at: dict[str, float] = field(default_factory=dict)
    home: Any = None
    witness: Any = "witness"

    @property
    def client(self) -> Any:
        return SimpleNamespace(submit=self.submit)

    def submit(self, _manifest: object, *, job_id: str) -> None:
        self.ends_at[job_id] = self.now + 10

    def job(self, job_id: str) -> Any:
        ended = self.now >= self.ends_at[job_id]
        return SimpleNamespace(state="COMPLETED" if ended else "PROCESSING", ended=ended, reason="")

    def kill(self, process: str, number: signal.Signals) -> bool:
        assert number is signal.SIGKILL
        self.kills.append(process)
        if process == self.slow:
            newest = list(self.ends_at)[-1]
            self.ends_at[newest] += 120
        return True

    def start(self, _home: object) -> None:
        self.started += 1

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[Platform], list[Killed]]:
    def run(platform: Platform) -> list[Killed]:
        clock = SimpleNamespace(time=lambda: platform.now, monotonic=lambda: platform.now, sleep=platform.sleep)
        monkeypatch.setattr(every, "time", clock)
        monkeypatch.setattr(every, "start", platform.start)
        monkeypatch.setattr(parts, "tree", lambda _home: TREE)
        monkeypatch.setattr(parts, "send", platform.kill)
        monkeypatch.setattr(parts, "services", lambda _home: ())
        return list(kill_every(cast(Lab, platform), seed=1, until=None))

    return run


def test_every_place_is_killed_once_and_what_lives_shortly_first(kill: Callable[[Platform], list[Killed]]) -> None:
    platform = Platform()
    killed = kill(platform)
    assert sorted(platform.kills) == sorted(member for members in TREE.values() for member in members)
    assert platform.kills[0] == "program"
    assert {each.place for each in killed} == set(TREE)
    assert all(each.ok for each in killed)
    assert platform.started == 1  # the supervisor alone has nobody who starts it


def test_a_verdict_that_comes_more_than_a_minute_late_is_a_failure(kill: Callable[[Platform], list[Killed]]) -> None:
    late = [each for each in kill(Platform(slow="store")) if not each.ok]
    assert [each.place for each in late] == ["s3 0 rclone"]
    assert late[0].late_seconds == pytest.approx(120, abs=1)
    assert late[0].text().startswith("FAILED s3 0 rclone killed")


@pytest.mark.parametrize(
    ("state", "late", "ok"), [("COMPLETED", LATE_SECONDS, True), ("FAILED", 0, False), ("PROCESSING", 300, False)]
)
def test_a_false_verdict_and_none_are_failures(state: str, late: float, ok: bool) -> None:
    assert Killed("node 0 python", "cnn", 3.0, state, 30.0, late).ok is ok
