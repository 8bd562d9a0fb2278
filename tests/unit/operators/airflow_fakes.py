"""Runs the tasks of a job as Airflow does: retries, deferrals, processes that are lost in the middle."""

from __future__ import annotations

import copy
import inspect
import pickle
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from memory_store import MemoryStore
from outside import Outside
from unit.operators.platform_fakes import (
    JUDGED,
    Blade,
    FakeCluster,
    FakeMlflowClient,
    SimulatedKill,
    role_of,
    store_checkpoint,
    store_comparison,
    store_done,
    store_export,
    store_prepared,
)

from updraft.controller.approval import Question
from updraft.exceptions import RefusedError
from updraft.ledger import Ledger
from updraft.lifecycle import workflow
from updraft.recovery.ends import EndKind
from updraft.services import Services
from updraft_data.gate import Comparison, Score

RUN_ID = "digits-1"
BETTER = Comparison(overall=Score(rows=100, challenger=0.9, champion=0.8, better=0.1, low=0.02, high=0.18))
APPROVED = {  # as Airflow's api-server wakes a task
    "chosen_options": ["Approve"],
    "params_input": {"reason": "looks good"},
    "responded_at": datetime(2026, 1, 1, tzinfo=UTC),
    "responded_by_user": {"id": "grace", "name": "grace"},
}
ORDER = workflow.TASKS


class Platform:
    """Everything of one job: its outsides, and `run` to run its tasks."""

    outside: Outside  # watched by the blade

    def __init__(self, ledger: Ledger, dag: Any, params: dict[str, Any]) -> None:
        self.blade = Blade()
        self.cluster = FakeCluster()
        self.mlflow = FakeMlflowClient()
        self.store = MemoryStore()
        self.ledger = ledger
        self.dag = dag
        self.params = params
        self.run_id = RUN_ID
        self.states: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.kills = 0
        self.max_tries = 4
        self.dies_later_each_time = False  # the n-th try of a task dies after its n-th call
        self.drive: Callable[[str, str], dict[str, Any]] | None = None  # in place of `_drive`
        self.judges: Callable[[dict[str, Any]], dict[str, Any]] = lambda source: JUDGED
        self.pods_end: Callable[[Platform, str], dict[str, Any]] = Platform.pods_succeed
        self.fired: tuple[str, ...] = ()
        self.compares: Callable[[str], Comparison] = lambda role: BETTER
        self.answers: Callable[[Platform], dict[str, Any]] = lambda _: APPROVED
        self.asked: list[Question] = []
        self.asset_events: list[tuple[str, dict[str, Any]]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.watched: list[tuple[str, int]] = []  # role and attempt of each time that pods were watched

    def become(self, other: Platform) -> None:
        """All that is not in the ledger."""
        self.store.objects = dict(other.store.objects)
        self.cluster, self.mlflow = copy.deepcopy(other.cluster), copy.deepcopy(other.mlflow)
        self.params, self.states = copy.deepcopy(other.params), dict(other.states)
        self.pods_end, self.run_id, self.judges = other.pods_end, other.run_id, other.judges

    @contextmanager
    def watched_calls(self) -> Iterator[None]:
        """`blade.deaths` is known afterwards."""
        with closing(sqlite3.connect(self.ledger_file, check_same_thread=False)) as beside:

            def look() -> Any:
                version = beside.execute("PRAGMA data_version").fetchone()  # another one's commits move it
                cluster = (self.cluster.objects, self.cluster.created)
                return version, self.store.changes, pickle.dumps((cluster, vars(self.mlflow)))

            self.blade.look = look
            yield
            self.blade.look = None

    @property
    def ledger_file(self) -> str:
        return str(self.ledger._engine.url.database)

    @property
    def services(self) -> Services:
        return self.outside.services

    # --- the DAG run ---

    def run_all(self) -> dict[str, str]:
        for task_id in ORDER:
            self.run(task_id)
        return self.states

    def run(self, task_id: str) -> str:
        """Upstream states decide whether it runs; `release` always does."""
        upstream = [self.states.get(t, "success") for t in self.dag.task_dict[task_id].upstream_task_ids]
        rule = str(getattr(self.dag.task_dict[task_id].trigger_rule, "value", ""))
        if task_id != "release" and any(s in ("failed", "upstream_failed") for s in upstream):
            self.states[task_id] = "upstream_failed"
        elif task_id != "release" and rule == "all_success" and "skipped" in upstream:
            self.states[task_id] = "skipped"
        else:
            self.states[task_id] = self._tries(task_id)
        return self.states[task_id]

    def _tries(self, task_id: str) -> str:
        from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

        for number in range(1, self.max_tries + 2):
            if self.dies_later_each_time:
                self.blade.falls_after = self.blade.calls + number
            try:
                self._process(task_id, number)
                return "success"
            except AirflowSkipException:
                return "skipped"
            except AirflowFailException as exc:
                self.errors[task_id] = str(exc)
                return "failed"
            except SimulatedKill:
                self.kills += 1
            except Exception as exc:  # noqa: BLE001 - as Airflow: any other error is tried again
                self.errors[task_id] = f"{type(exc).__name__}: {exc}"
        return "failed"

    def _process(self, task_id: str, try_number: int) -> None:
        """One try: a new process for `execute`, and one more for each time the task wakes."""
        from airflow.sdk.exceptions import TaskDeferred

        method, event = "execute", None
        while True:
            self.blade.new_process()
            task = self.task(task_id)
            context = self.context(task_id, try_number)
            try:
                if event is None:
                    inspect.unwrap(type(task).execute)(task, context)
                else:
                    getattr(task, method)(context, event)
                return
            except TaskDeferred as deferred:
                method, event = deferred.method_name, self._event(deferred.trigger)

    def task(self, task_id: str) -> Any:
        task = copy.copy(self.dag.task_dict[task_id])
        task.make_services = lambda: self.services
        task.ask = lambda context, question: self.asked.append(question)
        return task

    def context(self, task_id: str, try_number: int = 1) -> Any:
        return {
            "dag": self.dag,
            "params": self.params,
            "dag_run": SimpleNamespace(dag_id=self.dag.dag_id, run_id=self.run_id, triggering_user_name="ada"),
            "ti": SimpleNamespace(
                task_id=task_id,
                dag_id=self.dag.dag_id,
                run_id=self.run_id,
                map_index=-1,
                try_number=try_number,
                max_tries=self.max_tries,
                get_task_states=lambda **_: {self.run_id: dict(self.states)},
            ),
            "run_id": self.run_id,
            "outlet_events": defaultdict(lambda: SimpleNamespace(add=self._asset_changed)),
            "triggering_asset_events": {
                "asset": [SimpleNamespace(extra={"payload": {"fired": k}}) for k in self.fired]
            },
        }

    def _asset_changed(self, asset: Any, *, extra: dict[str, Any]) -> None:
        self.asset_events.append((asset.uri, extra))

    def dag_started_by(self, *keys: str) -> None:
        """The run was started by the events of these firings."""
        self.fired = keys

    # --- what happens while a task is deferred ---

    def _event(self, trigger: Any) -> dict[str, Any]:
        from updraft.controller import queueing
        from updraft.triggers.checkpoints import follow_checkpoints

        # Of a trigger only its arguments reach the triggerer.
        path, kwargs = trigger.serialize()
        name = path.rpartition(".")[2]
        self.events.append((name, kwargs))
        self.blade.new_process()
        if name == "AdmitTrigger":
            nodes = self.cluster._plain(self.cluster.list_node())["items"]
            queueing.plan(self.services, nodes)
            kind, reason = queueing.ask(self.services, kwargs["job_id"])
            assert kind != "waiting", reason
            return {"kind": kind, "reason": reason}
        if name == "TrackingTrigger":
            self.mlflow.away = False
            return {"kind": "again", "reason": "MLflow answers"}
        if name == "CheckpointTrigger":
            follow_checkpoints(self.services, kwargs["job_id"], kwargs["keep"])
            return {"kind": "ended"}
        if name == "ApprovalTrigger":
            return self.answers(self)
        return (self.drive or self._drive)(kwargs["job_id"], kwargs["role"])

    def _drive(self, job_id: str, role: str) -> dict[str, Any]:
        """What the gang's trigger does, without watching: pods end when `pods_end` says so, and back-offs are over."""
        from updraft.controller import attempts, pods, queueing, user_requests
        from updraft.controller.next_action import Finished, LaunchDue, Queued, Running, next_action

        core, services = self.services.core, self.services
        for _ in range(100):
            job, halt = user_requests.wanted(services, job_id)
            newest = services.ledger.attempts.current(job_id, role)
            match next_action(job, newest, halt_asked=halt is not None, now=datetime.max.replace(tzinfo=UTC)):
                case Finished(reason):
                    return {"kind": "ended", "reason": reason}
                case LaunchDue(earlier):
                    attempts.begin(services, job, role, earlier)
                case Running(attempt):
                    try:
                        pods.deploy(services, core, job, attempt)
                    except RefusedError as exc:
                        seen = attempts.EndSignal(EndKind.REFUSED, str(exc))
                    else:
                        self.watched.append((role, attempt.number))
                        event = self.pods_end(self, job_id)
                        tails = {int(learner): lines for learner, lines in event["tails"].items()}
                        seen = attempts.EndSignal(EndKind(event["kind"]), event["reason"], tails)
                    attempts.conclude(services, core, job_id, role, attempt.number, seen)
                case Queued():
                    queueing.requeue(services, job_id, role)
                    queueing.plan(services, self.cluster._plain(self.cluster.list_node())["items"])
                    services.ledger.queue.start(job_id, "granted again")
                case other:
                    raise AssertionError(f"nobody drives {other} here")
        raise AssertionError("the role does not end")

    def pods_succeed(self, job_id: str) -> dict[str, Any]:
        """Every program ends with 0, its sidecar stores everything."""
        for name, pod in self.cluster.pods.items():
            role, attempt, learner = role_of(pod)
            self.cluster.set_status(name, exit_code=0)
            if role == "train" and learner == 1:
                for step in (1, 2, 3, 4):
                    store_checkpoint(self.store, job_id, f"step-{step}", step, {"acc": step / 10}, attempt)
            if role == "prepare":
                store_prepared(self.store, job_id, attempt, self.judges)
            if role == "export":
                store_export(self.store, job_id, attempt)
            if role.startswith("compare-"):
                store_comparison(self.store, job_id, role, self.compares(role))
            run = self.mlflow.runs.get(self.ledger.jobs.get(job_id).mlflow_run_id or "")
            if run is not None:
                run.data.metrics["acc"] = 0.9
            store_done(self.store, job_id, role, attempt, learner)
        return {"kind": "ended", "reason": "all pods have ended", "tails": {}}

    def pods_fail(self, job_id: str) -> dict[str, Any]:
        """The first learner's program exits with 3; sidecars store what there is, as they always do."""
        for name, pod in self.cluster.pods.items():
            role, attempt, learner = role_of(pod)
            self.cluster.set_status(name, exit_code=3 if learner == 1 else None)
            if learner == 1:
                store_done(self.store, job_id, role, attempt, learner)
        return {"kind": "failed", "reason": "learner 1 failed", "tails": {"1": ["no labels"]}}

    @property
    def job(self) -> Any:
        return self.ledger.jobs.of_run(self.dag.dag_id, self.run_id)


def until(platform: Platform, task_id: str) -> Platform:
    """The platform just before a task."""
    for earlier in ORDER[: ORDER.index(task_id)]:
        platform.run(earlier)
    return platform


def registered_champion(platform: Platform, job_id: str) -> None:
    """Make version 1 of the model `digits`, by this other job, the champion."""
    mlflow = platform.mlflow
    run = mlflow.create_run(mlflow.create_experiment("older"), tags={}, run_name="older")
    mlflow.runs[run.info.run_id].data.metrics["acc"] = 0.5
    mlflow.registered["digits"] = {"updraft.tenant": "default"}
    mlflow.create_model_version(
        "digits", source="x", run_id=run.info.run_id, model_id=None, tags={"updraft.job_id": job_id}
    )
    mlflow.aliases["digits", "champion"] = "1"


def after(name: str, around: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    """Something happens right after the calls of this name: `platform.blade.around = after(...)`."""

    def wrapped(called: str, call: Callable[[], Any]) -> Any:
        result = around(called, call)
        if called == name:
            act()
        return result

    return wrapped
