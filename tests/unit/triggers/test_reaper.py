"""The reaper: what it asks, of whom, what it concludes from it, and what it does about it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from outside import Instead, Outside
from unit.operators.platform_fakes import FakeCluster
from unit.triggers.conftest import MANIFEST
from unit.triggers.trigger_helpers import JOB, events

from updraft.exceptions import RefusedError, UnavailableError
from updraft.kubernetes.pod_status import pod_facts
from updraft.kubernetes.watch import LaunchKey
from updraft.ledger import Ledger, NewJob
from updraft.lifecycle import State, Verdict
from updraft.operators.reaper import ReaperOperator
from updraft.recovery.facts import PodFacts
from updraft.recovery.reaping import CALM_SECONDS, Run
from updraft.settings import settings
from updraft.triggers.reaper import ASK_AFTER_SECONDS, FORGET_SECONDS, ReaperTrigger

OTHER = "digits-2"
Look = Callable[[], dict[str, Any]]
Quiet = Callable[[float], dict[str, Any]]
NOT_FOUND = {"status_code": 404, "message": "Server returned error", "detail": {"detail": {"reason": "not_found"}}}


class Airflow:
    """The triggerer's end of Airflow's messages: it has only those answers that a triggerer's supervisor gives."""

    def __init__(self) -> None:
        from airflow.jobs.triggerer_job_runner import ToTriggerSupervisor
        from pydantic import TypeAdapter

        self._known: TypeAdapter[Any] = TypeAdapter(ToTriggerSupervisor)
        self.runs: dict[str, Any] = {JOB: "running"}
        self.tasks: dict[str, str | None] = {}
        self.asked: list[str] = []
        self.held: threading.Event | None = None  # no answer before it is set

    def send(self, msg: Any) -> Any:
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import (
            DagRunStateResult,
            ErrorResponse,
            GetDagRunState,
            TaskStatesResult,
        )

        self._known.validate_python(msg.model_dump())  # any other is never answered
        self.asked.append(type(msg).__name__)
        if self.held is not None:
            self.held.wait(20)
        if not isinstance(msg, GetDagRunState):
            return TaskStatesResult(task_states={run: dict(self.tasks) for run in msg.run_ids})
        answer = self.runs.get(msg.run_id, NOT_FOUND)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, dict):
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=answer))
        return DagRunStateResult(state=answer)


class Watch:
    """A live PodWatch without pods but those that a test sets."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.synced.set()
        self.found: dict[LaunchKey, list[PodFacts]] = {}

    def launches(self) -> dict[LaunchKey, list[PodFacts]]:
        return self.found


class Time:
    def __init__(self) -> None:
        self.now = 5_000.0
        self.look_seconds = 0.0

    def __call__(self) -> float:
        self.now += self.look_seconds
        return self.now


@pytest.fixture
def clock(outside: Outside) -> Time:
    made = Time()
    outside.timing = replace(outside.timing, clock=made, reaper_seconds=0.001)
    return made


@pytest.fixture
def conn_id(request: pytest.FixtureRequest) -> str:
    """A connection of the test's own: what was seen of its cluster outlives a trigger."""
    return str(request.node.nodeid)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    from airflow.sdk.execution_time import task_runner

    made = Airflow()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


@pytest.fixture
def watch(outside: Outside) -> Watch:
    outside.watch = Watch()
    return outside.watch


@pytest.fixture
def look(conn_id: str) -> Look:
    """Returns what a trigger of its own finds at one look."""

    def found() -> dict[str, Any]:
        watch: Any = Watch()
        return asyncio.run(ReaperTrigger(conn_id=conn_id)._look({"default": watch}))

    return found


@pytest.fixture
def quiet(look: Look, clock: Time) -> Quiet:
    """Returns what is found after so many seconds of looking each quarter of a minute."""

    def found(seconds: float) -> dict[str, Any]:
        last = look()
        for _ in range(int(seconds // 15) + 1):
            clock.now += 15
            last = look()
        return last

    return found


class TestWhatAirflowSays:
    @pytest.mark.parametrize(
        ("answer", "run"),
        [
            ("running", Run.RUNNING),
            ("failed", Run.FAILED),
            ("success", Run.SUCCESS),
            ("queued", Run.QUEUED),
            (NOT_FOUND, Run.GONE),
            # None of these says that the run is gone, whatever words are in it.
            ({"status_code": 404, "message": "no such path", "detail": {"detail": "Not Found"}}, Run.UNKNOWN),
            ({"status_code": 500, "message": "http://api/dag-runs/d/digits-404/state not_found"}, Run.UNKNOWN),
            ({"status_code": None, "message": "connection refused"}, Run.UNKNOWN),
            (ConnectionError("404 not_found"), Run.UNKNOWN),
        ],
    )
    def test_only_a_clear_answer_is_one(
        self, ledger: Ledger, airflow: Airflow, clock: Time, answer: Any, run: Run, conn_id: str
    ) -> None:
        airflow.runs[JOB] = answer
        airflow.tasks = {"train": "deferred"}
        said = asyncio.run(ReaperTrigger(conn_id=conn_id)._ask_airflow(ledger.jobs.get(JOB)))
        assert said == (run, {"train": "deferred"} if run not in (Run.GONE, Run.UNKNOWN) else {})

    def test_an_answer_that_does_not_come_is_none(
        self, ledger: Ledger, outside: Outside, airflow: Airflow, conn_id: str
    ) -> None:
        held = airflow.held = threading.Event()
        outside.timing = replace(outside.timing, airflow_answer_seconds=0.05)

        async def ask() -> Any:
            try:
                return await ReaperTrigger(conn_id=conn_id)._ask_airflow(ledger.jobs.get(JOB))
            finally:
                held.set()

        assert asyncio.run(ask()) == (Run.UNKNOWN, {})


class TestCalm:
    def test_a_job_that_is_touched_is_not_asked_about(
        self, ledger: Ledger, airflow: Airflow, clock: Time, look: Look
    ) -> None:
        look()
        clock.now += ASK_AFTER_SECONDS - 1
        look()
        assert airflow.asked == []

    def test_a_job_whose_run_is_gone_is_given_up_after_a_calm_time(
        self, ledger: Ledger, airflow: Airflow, clock: Time, quiet: Quiet
    ) -> None:
        airflow.runs.clear()
        assert quiet(CALM_SECONDS - 30)["reap"] == {}
        found = quiet(30)["reap"]
        assert list(found) == [JOB]
        assert found[JOB]["end"] is True
        assert found[JOB]["reason"].startswith(
            "its Airflow run does not exist any more, and no task or trigger has touched"
        )

    def test_a_job_whose_run_lives_is_left_alone_for_ever(
        self, ledger: Ledger, airflow: Airflow, clock: Time, quiet: Quiet
    ) -> None:
        assert quiet(4000)["reap"] == {}

    def test_thirty_minutes_without_an_answer_reap_nothing(
        self, ledger: Ledger, airflow: Airflow, clock: Time, quiet: Quiet
    ) -> None:
        airflow.runs[JOB] = {"status_code": 503, "message": "down", "detail": {}}
        assert quiet(1800)["reap"] == {}

    def test_finding_one_thing_does_not_begin_the_calm_of_others_anew(
        self, ledger: Ledger, airflow: Airflow, clock: Time, watch: Watch, conn_id: str
    ) -> None:
        """The trigger ends with each find, and a new one is made."""
        airflow.runs.clear()
        ledger.jobs.record(NewJob(OTHER, "default", "digits", "train_model", OTHER, {"name": "digits"}, "ada"))
        ledger.jobs.finish(OTHER, Verdict(State.FAILED, "it failed"))
        cluster = FakeCluster()
        cluster.pods["p"] = {"metadata": {"name": "p", "labels": {}}}
        cluster.set_status("p")
        watch.found = {(OTHER, "train", "1"): [pod_facts(cluster.pods["p"])]}
        clock.look_seconds = 15
        reaped: list[dict[str, Any]] = []
        while len(reaped) < 20 and not any(JOB in found for found in reaped):
            found = asyncio.run(asyncio.wait_for(events(ReaperTrigger(conn_id=conn_id)), 20))
            reaped.append(found[0]["reap"])
            assert reaped[-1][OTHER]["pods"] == ["p"]
        assert reaped[-1][JOB]["end"] is True

    def test_a_gap_in_the_watching_is_no_calm(
        self, ledger: Ledger, airflow: Airflow, clock: Time, look: Look, quiet: Quiet
    ) -> None:
        airflow.runs.clear()
        quiet(CALM_SECONDS - 30)
        clock.now += FORGET_SECONDS + 1
        assert look()["reap"] == {}
        assert quiet(CALM_SECONDS)["reap"][JOB]["end"] is True

    def test_one_jobs_bad_answer_keeps_nobody_from_being_reaped(
        self, ledger: Ledger, airflow: Airflow, clock: Time, quiet: Quiet
    ) -> None:
        ledger.jobs.record(NewJob(OTHER, "default", "digits", "train_model", OTHER, {"name": "digits"}, "ada"))
        airflow.runs[JOB] = RuntimeError("cannot be decoded")
        assert list(quiet(CALM_SECONDS)["reap"]) == [OTHER]


class TestMessages:
    def test_a_message_is_left_to_its_own_job_first(
        self, ledger: Ledger, airflow: Airflow, clock: Time, look: Look
    ) -> None:
        ledger.jobs.finish(JOB, Verdict(State.FAILED, "it failed"))
        assert look()["untold"] == []
        clock.now += 31
        assert look()["untold"] == [JOB]

    def test_mlflow_that_is_away_is_asked_less_and_less_often(
        self, ledger: Ledger, airflow: Airflow, clock: Time, look: Look
    ) -> None:
        ledger.jobs.finish(JOB, Verdict(State.FAILED, "it failed"))
        asked_at = []
        look()
        for _ in range(240):
            clock.now += 15
            if look()["untold"]:
                asked_at.append(clock.now)
                ledger.outbox.failed(ledger.outbox.undelivered(JOB)[0].id, "away")
        gaps = [round(b - a) for a, b in itertools.pairwise(asked_at)]
        assert gaps == [60, 120, 240, 480, 480, 480, 480, 480, 480]


@pytest.fixture
def cluster(outside: Outside) -> FakeCluster:
    outside.cluster = FakeCluster()
    return outside.cluster


def act(**changes: Any) -> dict[str, Any]:
    return {"reason": "its run is gone", "pods": [], "end": True, "evidence": {}, "controller_seen": None, **changes}


def finished(event: dict[str, Any]) -> dict[str, str]:
    return ReaperOperator(task_id="reap").finished({}, {"reap": {}, "untold": [], **event})


@pytest.mark.usefixtures("store", "cluster")
class TestActs:
    def test_a_job_without_a_controller_is_ended_with_the_reason(self, ledger: Ledger) -> None:
        assert finished({"reap": {JOB: act()}}) == {JOB: "ended FAILED: its run is gone"}
        assert (ledger.jobs.get(JOB).state, ledger.jobs.get(JOB).reason) == (State.FAILED, "its run is gone")

    def test_a_controller_that_has_come_back_is_left_alone(self, ledger: Ledger) -> None:
        ledger.jobs.touch(JOB, "train: watching attempt 1")
        assert finished({"reap": {JOB: act()}}) == {
            JOB: "its controller has come back (train: watching attempt 1); left alone"
        }
        assert ledger.jobs.get(JOB).state is State.PENDING

    def test_a_pod_that_stays_behind_a_dead_node_is_removed_by_force(
        self, ledger: Ledger, cluster: FakeCluster, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UPDRAFT_STOP_GRACE_SECONDS", "1")
        settings.cache_clear()
        ledger.jobs.finish(JOB, Verdict(State.FAILED, "it failed"))
        cluster.pods["p"] = {"metadata": {"name": "p", "labels": {"updraft.dev/job": JOB}}}
        forced: list[int] = []

        def delete(name: str, namespace: str, *, grace_period_seconds: int, **more: Any) -> None:
            forced.append(grace_period_seconds)
            if grace_period_seconds == 0:
                cluster.delete_namespaced_pod(name, namespace, **more)

        outside.cluster = Instead(cluster, delete_namespaced_pod=delete)
        outside.timing = replace(outside.timing, removal_seconds=0.0)
        finished({"reap": {JOB: act(end=False, pods=["p"], reason="the job has ended FAILED")}})
        assert (forced, cluster.left) == ([1, 0], [])

    @pytest.mark.parametrize("error", [UnavailableError("the cluster is away"), RefusedError("forbidden")])
    def test_one_jobs_trouble_is_not_anothers(self, ledger: Ledger, outside: Outside, error: Exception) -> None:
        ledger.jobs.record(NewJob(OTHER, "default", "digits", "train_model", OTHER, MANIFEST, "ada"))

        def current(job_id: str, role: str) -> Any:
            if job_id == JOB:
                raise error
            return ledger.attempts.current(job_id, role)

        outside.ledger = Instead(ledger, attempts=Instead(ledger.attempts, current=current))
        assert finished({"reap": {JOB: act(), OTHER: act()}}) == {OTHER: "ended FAILED: its run is gone"}
