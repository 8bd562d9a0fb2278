"""Puts task instances that wait for a pod into Airflow's database, as the `train` task or a stock operator leaves them.

Runs in Airflow's environment. Each line of the standard input is `{"side": SIDE, "first": N, "count": N}`; the answer
is one line, `{"pods": {run: pod}}`, when all of them are deferred. `ours`: a job in the ledger with its MLflow run,
template and first attempt, deployed by the platform's own functions, and what its sidecar would store. `stock`: a pod
and what a deferrable KubernetesPodOperator defers to. `queued`: a job in the queue, as `admit` leaves it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.models.dagbag import DBDagBag
from airflow.models.trigger import Trigger
from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

from updraft.allocation import GangRequest
from updraft.controller import attempts, pods
from updraft.controller.programs import command_of, program_of
from updraft.controller.records import first_launch, manifest_of
from updraft.kubernetes.base_pod import base_pod
from updraft.kubernetes.objects import Launch
from updraft.ledger import Job, NewJob
from updraft.lifecycle import State
from updraft.manifest import parse
from updraft.operators.learner import LearnerOperator
from updraft.services import Services, platform_services
from updraft.triggers.admit import AdmitTrigger
from updraft.triggers.gang import GangTrigger
from updraft_learner.contract import Keys, LearnerStatus
from updraft_learner.mlflow_rest import REST_SECONDS, TrackingServer

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

DAG_ID, TASK_ID, ROLE = "watched", "train", "train"
FAKE = json.loads(os.environ.get("BENCH_FAKE_NODES", "null"))  # nodeSelector and toleration; none on real nodes
MANIFEST = {
    "name": "watched",
    "framework": {"name": "shell", "version": "1"},
    "code": "s3://datasets/code",
    "command": "python train.py --epochs 10",
    "resources": {"learners": 1, "cpus": 1, "memory": "1GiB"},
}
WORKERS = 4
START = datetime.now(UTC)
SERVICES = platform_services()


def main() -> None:
    sync_dag(Path(__file__).parents[1] / "dags")
    core(), experiment()  # once, before the threads
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        numbers = range(asked["first"], asked["first"] + asked["count"])
        make, trigger = SIDES[asked["side"]]
        names = [f"{asked['side']}-{number:04d}" for number in numbers]
        with ThreadPoolExecutor(WORKERS) as workers:
            made = dict(zip(names, workers.map(make, names), strict=True))
        defer(names, [trigger(name, made[name]) for name in names])
        print(json.dumps({"pods": made}), flush=True)


# --- ours ------------------------------------------------------------------------------------------------------


def our_pod(name: str) -> str:
    """Create a job whose first attempt runs, as it is when `train` has deferred."""
    job = admitted_job(name, MANIFEST, "0" * 64)
    pod = launch_pod(SERVICES, core(), job)
    store, keys = SERVICES.store, Keys(job.tenant)
    status = LearnerStatus(t=time.time(), phase="running", last_metrics={"loss": 0.5}, steps={"first": 1, "last": 2})
    store.put_bytes(keys.status(name, ROLE, 1, 1), status.to_json().encode())
    store.put_bytes(keys.done(name, ROLE, 1, 1), json.dumps({"t": time.time()}).encode())
    return pod


def record_job(name: str, raw: dict[str, Any]) -> Job:
    return SERVICES.ledger.jobs.record(
        NewJob(name, "default", "watched", DAG_ID, name, parse(raw).canonical(), "bench")
    )


def admitted_job(name: str, raw: dict[str, Any], code_tree: str) -> Job:
    """Create a job as `train` finds it."""
    book = SERVICES.ledger
    record_job(name, raw)
    run_id, experiment_id = tracked_run(name)
    book.jobs.set_run(name, run_id, experiment_id)
    book.jobs.set_inputs(name, code_tree, [])
    book.jobs.move(name, State.QUEUED, "waiting to be admitted")
    return book.jobs.move(name, State.DEPLOYING, "admitted")


def launch_pod(services: Services, core: CoreV1Api, job: Job) -> str:
    """Do what `train` does before it defers; return the pod's name."""
    launch = first_launch(services.settings, job, manifest_of(job), ROLE)
    pods.record_template(services, job, ROLE, template(job, launch))
    attempt = attempts.begin(services, job, ROLE, None)
    pods.deploy(services, core, job, attempt)
    return launch.pod_name(1)


def our_trigger(name: str, _pod: str) -> GangTrigger:
    """Create the trigger that `LearnerOperator` builds."""
    namespace = SERVICES.settings.namespace("default")
    return GangTrigger(conn_id=SERVICES.settings.kubernetes_conn_id, namespace=namespace, job_id=name, role=ROLE)


def template(job: Job, launch: Launch) -> dict[str, Any]:
    """KubernetesPodOperator's pod, on a fake node if there are such."""
    operator = LearnerOperator(task_id=TASK_ID, role=ROLE)
    task_instance = SimpleNamespace(dag_id=DAG_ID, task_id=TASK_ID, map_index=-1, try_number=1)
    context: Any = {"ti": task_instance, "run_id": job.run_id, "dag": SimpleNamespace(dag_id=DAG_ID)}
    manifest, settings = manifest_of(job), SERVICES.settings
    command = command_of(manifest, ROLE)
    assert command is not None
    ids = {"run_id": job.mlflow_run_id or "", "experiment_id": job.mlflow_experiment_id or ""}
    program = program_of(settings, manifest, launch, command, **ids)
    pod = base_pod(operator, launch, program, settings.kubernetes_conn_id, context)
    if FAKE:
        pod["spec"]["nodeSelector"] = FAKE["selector"]
        pod["spec"]["tolerations"] = [FAKE["toleration"]]
    return pod


@cache
def experiment() -> str:
    return str(server("").post("experiments/create", {"name": "watched"}).body["experiment_id"])


def tracked_run(name: str) -> tuple[str, str]:
    body = {"experiment_id": experiment(), "run_name": name, "start_time": int(time.time() * 1000)}
    return str(server("").post("runs/create", body).body["run"]["info"]["run_id"]), experiment()


def server(run_id: str) -> TrackingServer:
    return SERVICES.open_run(run_id, REST_SECONDS)


def queued_job(name: str) -> str:
    """Create a job as `admit` leaves it when it defers. Jobs are in the queue in the order of their names."""
    job = record_job(name, MANIFEST)
    at = START + timedelta(milliseconds=int(name.rpartition("-")[2]))
    SERVICES.ledger.queue.enqueue(job.id, GangRequest(name, **json.loads(os.environ["BENCH_GANG"]), requested_at=at))
    SERVICES.ledger.jobs.move(job.id, State.QUEUED, "waiting to be admitted")
    return name


def queue_trigger(name: str, _pod: str) -> AdmitTrigger:
    return AdmitTrigger(conn_id=SERVICES.settings.kubernetes_conn_id, job_id=name)


# --- stock -----------------------------------------------------------------------------------------------------


def stock_pod(name: str) -> str:
    namespace = SERVICES.settings.namespace("default")
    core().create_namespaced_pod(namespace, plain_pod(name))
    return name


def plain_pod(name: str) -> dict[str, Any]:
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "base", "image": "shell:1", "command": ["true"], "securityContext": secure}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"dag_id": DAG_ID, "task_id": TASK_ID, "run_id": name}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": FAKE["selector"],
            "tolerations": [FAKE["toleration"]],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def stock_trigger(name: str, pod: str) -> KubernetesPodTrigger:
    """Create the trigger that `KubernetesPodOperator.invoke_defer_method` builds, with the operator's defaults."""
    return KubernetesPodTrigger(
        pod_name=pod,
        pod_namespace=SERVICES.settings.namespace("default"),
        trigger_start_time=datetime.now(UTC),
        base_container_name="base",
        kubernetes_conn_id=SERVICES.settings.kubernetes_conn_id,
        connection_extras=json.loads(os.environ["BENCH_CONNECTION"])["extra"],  # the triggerer's
        on_finish_action="keep_pod",
    )


# --- Airflow's rows --------------------------------------------------------------------------------------------


def sync_dag(folder: Path) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    bag = BundleDagBag(dag_folder=folder / "watched.py", bundle_path=folder, bundle_name="own-dags")
    sync_bag_to_db(bag, "own-dags", None)


def defer(names: Sequence[str], triggers: Sequence[Any]) -> None:
    """Create a run for each trigger, whose task instance is deferred to it."""
    now = datetime.now(UTC)
    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag(DAG_ID, session=session)
        assert dag is not None
        for name, trigger in zip(names, triggers, strict=True):
            run = dag.create_dagrun(
                run_id=name,
                run_after=now,
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                start_date=now,
                session=session,
            )
            row = Trigger.from_object(trigger)
            session.add(row)
            session.flush()
            waiting = run.get_task_instance(TASK_ID, session=session)
            assert waiting is not None
            waiting.state = TaskInstanceState.DEFERRED
            waiting.start_date = now
            waiting.try_number = 1
            waiting.next_method, waiting.next_kwargs = "finished", {}
            waiting.trigger_id = row.id


@cache
def core() -> Any:
    return SERVICES.core


SIDES: dict[str, tuple[Callable[[str], str], Callable[[str, str], Any]]] = {
    "ours": (our_pod, our_trigger),
    "stock": (stock_pod, stock_trigger),
    "queued": (queued_job, queue_trigger),
}

if __name__ == "__main__":
    main()
