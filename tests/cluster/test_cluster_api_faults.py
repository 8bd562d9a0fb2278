"""Jobs on a real Kubernetes whose API fails them: no etcd, too many requests, a version that is too old, a quota, a
secret that somebody deletes."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import account_helpers
import pytest
from account_helpers import NAMESPACE, Account
from cluster_helpers import Pods, eventually
from kubernetes import client, config
from loss_helpers import (
    ALL_H100,
    H100,
    STEPS,
    WITHIN_SECONDS,
    begun,
    counting,
    last_step,
    told,
    undisturbed,
)
from platform_helpers import PROGRAMS, OwnPlatform
from system_helpers import shell_job

from updraft.kubernetes import secrets
from updraft.kubernetes.watch import PodWatch
from updraft_learner.contract import LABEL_JOB

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("own_platform")]
QUOTA = "updraft-test-small"
THROTTLE = "updraft-test-throttle"
SECRET = "updraft-test-secret"
OUTAGE_SECONDS = 60
SEATED_SECONDS = 1.0  # a request that is refused is answered at once
LONG = OUTAGE_SECONDS + 10  # steps of a second each
HALF_H100 = {**H100, "gpus": 1}


# --- no etcd ------------------------------------------------------------------------------------------------------


def test_a_minute_without_etcd_costs_nothing(platform: OwnPlatform) -> None:
    """The API server answers nobody. One job ends meanwhile, the other one after it."""
    short, long = (platform.submit(counting(f"etcd-{n}", n), base=PROGRAMS) for n in (STEPS, LONG))
    begun(platform, short)
    begun(platform, long)
    platform.cluster.stop_part("etcd")
    try:
        until = last_step(platform, long) + OUTAGE_SECONDS
        eventually(lambda: last_step(platform, long) >= until, within_seconds=WITHIN_SECONDS)
    finally:
        platform.cluster.start_part("etcd")
        platform.cluster.start_part("kube-apiserver")
    undisturbed(platform, short, STEPS)
    undisturbed(platform, long, LONG)


# --- too many requests --------------------------------------------------------------------------------------------


@pytest.fixture
def flows(platform: OwnPlatform) -> Iterator[client.FlowcontrolApiserverV1Api]:
    """API Priority and Fairness; afterwards without what a test added."""
    found = client.FlowcontrolApiserverV1Api(platform.witness.core.api_client)
    try:
        yield found
    finally:
        for delete in (found.delete_flow_schema, found.delete_priority_level_configuration):
            with suppress(client.ApiException):  # there is none: the test has removed it, or did not come to it
                delete(THROTTLE)


def one_seat_for_the_platform(flows: client.FlowcontrolApiserverV1Api) -> None:
    """A priority level of the platform's account alone: one request at a time, and no queue."""
    no_more = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0}
    level = {"type": "Limited", "limited": {**no_more, "limitResponse": {"type": "Reject"}}}
    flows.create_priority_level_configuration({"metadata": {"name": THROTTLE}, "spec": level})
    namespace, name = account_helpers.NAME.split(":")[2:]
    every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    rule = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}}],
        "resourceRules": [every],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }
    spec = {"priorityLevelConfiguration": {"name": THROTTLE}, "matchingPrecedence": 2, "rules": [rule]}
    flows.create_flow_schema({"metadata": {"name": THROTTLE}, "spec": spec})


@contextmanager
def seated(account: Account) -> Iterator[float]:
    """That seat is taken, by a request of the same account whose body does not come. Every other one is refused, with
    the pause in seconds that is given; the server waits a minute for the body."""
    core = without_patience(account)
    taken = eventually(lambda: _seat(core.api_client.configuration))
    try:
        yield eventually(lambda: pause_asked_for(core))
    finally:
        taken.close()


def _seat(configuration: client.Configuration) -> http.client.HTTPSConnection | None:
    """The connection of a request that is being executed; None for one that was answered, since it was refused."""
    trusted = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    connection = http.client.HTTPSConnection(
        urlsplit(configuration.host).netloc, context=trusted, timeout=SEATED_SECONDS
    )
    connection.putrequest("POST", f"/api/v1/namespaces/{NAMESPACE}/pods")
    connection.putheader("Authorization", configuration.auth_settings()["BearerToken"]["value"])
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "1000")
    connection.endheaders()
    try:
        connection.sock.recv(1)
    except TimeoutError:
        return connection
    connection.close()
    return None


def refused_watches(platform: OwnPlatform) -> list[datetime]:
    """When the API server answered the platform's watch of pods with 429, as its audit log has it."""
    events = map(json.loads, platform.cluster.layout.audit_log.read_text().splitlines())
    return [
        datetime.fromisoformat(event["stageTimestamp"])
        for event in events
        if event["requestURI"].endswith(f"/pods?labelSelector={LABEL_JOB}")
        and event["user"]["username"] == account_helpers.NAME
        and event.get("responseStatus", {}).get("code") == 429
    ]


def test_a_platform_that_is_told_to_wait_waits_and_loses_nothing(
    platform: OwnPlatform, account: Account, flows: client.FlowcontrolApiserverV1Api
) -> None:
    """Every request of the platform is refused until the program has ended; the API server is a new one, so that
    watches and logs have to be asked for again as well."""
    before = len(refused_watches(platform))
    job_id = platform.submit(counting("throttled"), base=PROGRAMS)
    begun(platform, job_id)
    one_seat_for_the_platform(flows)
    platform.cluster.stop_part("kube-apiserver")
    platform.cluster.start_part("kube-apiserver")
    with seated(account) as pause_seconds:
        eventually(lambda: last_step(platform, job_id) == STEPS, within_seconds=WITHIN_SECONDS)
        eventually(lambda: len(refused_watches(platform)) >= before + 3)
    flows.delete_flow_schema(THROTTLE)
    undisturbed(platform, job_id, STEPS)
    times = refused_watches(platform)[before:]
    assert all((later - earlier).total_seconds() >= pause_seconds for earlier, later in pairwise(times)), times


def without_patience(account: Account) -> client.CoreV1Api:
    """The platform's account, with a client that asks once."""
    configuration = client.Configuration()
    config.load_kube_config(str(account.kubeconfig), client_configuration=configuration)
    configuration.retries = False
    return client.CoreV1Api(client.ApiClient(configuration))


def pause_asked_for(core: client.CoreV1Api) -> float | None:
    """Seconds that the server wants to be left alone for, once it refuses the platform's account."""
    try:
        core.list_namespaced_pod(NAMESPACE, limit=1)
    except client.ApiException as exc:
        return float(exc.headers["Retry-After"]) if exc.status == 429 else None
    return None


# --- a watch whose version is too old -----------------------------------------------------------------------------


class Expired(PodWatch):
    """The platform's watch, but that so much happened after its first list that the server forgot its version."""

    def __init__(self, account: Account) -> None:
        super().__init__("unused", NAMESPACE)
        self._account = account
        self.versions: list[str] = []
        self.errors: list[str] = []

    async def _connect(self) -> None:
        from kubernetes_asyncio.config import new_client_from_config

        self.api = await new_client_from_config(str(self._account.kubeconfig))

    async def _list(self) -> str:
        version = await super()._list()
        self.versions.append("1" if not self.versions else version)
        return self.versions[-1]

    async def _watch(self, version: str) -> None:
        try:
            await super()._watch(version)
        except Exception as exc:
            self.errors.append(str(exc))
            raise


def test_a_watch_that_the_server_has_forgotten_goes_on_without_losing_an_event(
    platform: OwnPlatform, account: Account
) -> None:
    async def watched() -> Expired:
        watch = Expired(account)
        await watch.start()
        try:
            await asyncio.wait_for(until(lambda: len(watch.versions) == 2), WITHIN_SECONDS)
            job_id = await asyncio.to_thread(platform.submit, shell_job("forgotten", "true"))
            key = (job_id, "train", "1")
            woken = watch.subscribe(key)
            await asyncio.wait_for(until(lambda: exit_codes(watch.last_seen(key)) == {0}), WITHIN_SECONDS)
            assert woken.is_set()
            await asyncio.to_thread(platform.completed, job_id)
            await asyncio.wait_for(until(lambda: not watch.pods(key)), WITHIN_SECONDS)
        finally:
            await watch.stop()
        return watch

    watch = asyncio.run(watched())
    (error,) = watch.errors
    assert "(410)" in error
    assert "too old resource version: 1 " in error
    assert len(watch.versions) == 2  # one list more, and from there on one watch saw everything


def exit_codes(pods: Any) -> set[int | None]:
    return {pod.main.exit_code for pod in pods}


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.05)


# --- a quota ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quota(platform: OwnPlatform) -> Iterator[client.CoreV1Api]:
    """A quota of the tenant's namespace that has no room for any learner, in effect."""
    core = platform.witness.core
    core.create_namespaced_resource_quota(
        NAMESPACE, {"metadata": {"name": QUOTA}, "spec": {"hard": {"requests.memory": "100Mi"}}}
    )
    eventually(lambda: core.read_namespaced_resource_quota(QUOTA, NAMESPACE).status.hard)
    try:
        yield core
    finally:
        core.delete_namespaced_resource_quota(QUOTA, NAMESPACE)


def test_a_quota_that_is_used_up_is_named_and_waited_for(platform: OwnPlatform, quota: client.CoreV1Api) -> None:
    """From its first launch on, though the job may lose no attempt; somebody raises the quota, and it runs."""
    job_id = platform.submit(shell_job("quota", "true", budget={"infra_attempts": 0}))
    told(platform, job_id, f"exceeded quota: {QUOTA}, requested: requests.memory=")
    platform.nothing_is_left(job_id)
    quota.patch_namespaced_resource_quota(QUOTA, NAMESPACE, {"spec": {"hard": {"requests.memory": "100Gi"}}})
    platform.completed(job_id)
    *refused_ones, last = platform.client.attempts(job_id).attempts
    assert {attempt.label for attempt in refused_ones} == {"quota.exceeded"}, platform.explained(job_id)
    assert {attempt.cause for attempt in refused_ones} == {"infrastructure"}
    assert last.label == "done"
    assert "no loss" in refused_ones[0].relaunch.reason
    platform.nothing_is_left(job_id)


# --- secrets that somebody deletes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secretless(platform: OwnPlatform, target: Any) -> Iterator[dict[str, str]]:
    """Two jobs whose pods wait for a node while somebody deletes a secret: the launch's own, or the one that the
    manifest names. Then there is room."""
    holder = Pods(target, "updraft-test-holder")
    holder.create_namespace()
    core = platform.witness.core
    try:
        platform.client.set_secret(SECRET, {"value": "v"})
        holder.create("holder", "sleep 600", **ALL_H100)
        holder.in_phase("holder", "Running")
        names = [{"name": SECRET, "as": "TOKEN"}]
        jobs = {
            "launch": platform.submit(shell_job("bare", "true", resources=HALF_H100)),
            "named": platform.submit(shell_job("named", "true", resources=HALF_H100, secrets=names)),
        }
        for job_id in jobs.values():
            told(platform, job_id, "Insufficient nvidia.com/gpu")
        core.delete_namespaced_secret(f"{jobs['launch']}-t1", NAMESPACE)
        core.delete_namespaced_secret(secrets.object_name(SECRET), NAMESPACE)
        holder.core.delete_namespaced_pod("holder", holder.namespace, grace_period_seconds=0)
        yield jobs
    finally:
        holder.core.delete_namespace(holder.namespace)


def test_a_launch_whose_secret_is_deleted_is_made_again(platform: OwnPlatform, secretless: dict[str, str]) -> None:
    job_id = secretless["launch"]
    platform.completed(job_id)
    assert [a.label for a in platform.client.attempts(job_id).attempts] == ["secret.gone", "done"]
    platform.nothing_is_left(job_id)


def test_a_secret_that_the_job_names_and_somebody_deleted_ends_it_by_name(
    platform: OwnPlatform, secretless: dict[str, str]
) -> None:
    job_id = secretless["named"]
    detail = platform.end(job_id)
    assert detail.state == "FAILED", platform.explained(job_id)
    (attempt,) = platform.client.attempts(job_id).attempts
    assert (attempt.cause, attempt.label) == ("configuration", "container.config"), platform.explained(job_id)
    assert f'secret "{secrets.object_name(SECRET)}" not found' in str(detail.reason)
    platform.nothing_is_left(job_id)
