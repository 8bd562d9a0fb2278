"""Jobs on a real Kubernetes whose objects are refused or deleted: quota, secrets, a watch with too old a version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from account_helpers import NAMESPACE, Account
from cluster_helpers import Pods, eventually
from kubecluster.target import Target
from kubernetes import client
from loss_helpers import ALL_H100, H100, WITHIN_SECONDS, told
from platform_helpers import OwnPlatform
from system_helpers import shell_job

from updraft.kubernetes import secrets
from updraft.kubernetes.watch import PodWatch

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("own_platform")]
QUOTA, USER = "updraft-test-small", "updraft-test-user-of-all"
SECRET = "updraft-test-secret"
HALF_H100 = {**H100, "gpus": 1}


# --- secrets that somebody deletes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def newer_api_server(platform: OwnPlatform) -> None:
    """One that knows nothing of the cluster's first versions: it began after them."""
    platform.cluster.stop_part("kube-apiserver")
    platform.cluster.start_part("kube-apiserver")


@pytest.fixture(scope="module")
def secretless(platform: OwnPlatform, target: Target, newer_api_server: None) -> Iterator[dict[str, str]]:
    """Two jobs whose pods wait for a node while somebody deletes a secret: the launch's own, or the one that the
    manifest names. Then there is room. The first test of this file runs beside them."""
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


@pytest.mark.fault("watch_expired")
def test_a_watch_that_the_server_has_forgotten_goes_on_without_losing_an_event(
    platform: OwnPlatform, account: Account, secretless: dict[str, str]
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


@pytest.mark.fault("launch_secret_deleted")
def test_a_launch_whose_secret_is_deleted_is_made_again(platform: OwnPlatform, secretless: dict[str, str]) -> None:
    job_id = secretless["launch"]
    platform.completed(job_id)
    assert [a.label for a in platform.client.attempts(job_id).attempts] == ["secret.gone", "done"]
    platform.nothing_is_left(job_id)


@pytest.mark.fault("named_secret_deleted")
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


@pytest.fixture
def user_of_all(quota: client.CoreV1Api, target: Target) -> Iterator[None]:
    """A pod that no node takes, and that uses the quota all the same. The quota would have room for one learner."""
    quota.patch_namespaced_resource_quota(QUOTA, NAMESPACE, {"spec": {"hard": {"requests.memory": "1Gi"}}})
    eventually(lambda: _hard(quota) == "1Gi")
    pods = Pods(target, NAMESPACE)
    amounts = {"cpu": "1m", "memory": "1000Mi"}  # both are asked for by the quota of deploy/kustomize
    resources = {"requests": amounts, "limits": amounts}
    pods.create(USER, "true", base={"resources": resources}, nodeSelector={"updraft.dev/test-nowhere": "true"})
    try:
        yield
    finally:
        with suppress(client.ApiException):  # the test has removed it
            pods.core.delete_namespaced_pod(USER, NAMESPACE, grace_period_seconds=0)


def _hard(core: client.CoreV1Api) -> Any:
    return core.read_namespaced_resource_quota(QUOTA, NAMESPACE).status.hard["requests.memory"]


@pytest.mark.parametrize("how", ["somebody raises it", "others leave"])
@pytest.mark.fault("quota_used_up")
def test_a_quota_that_is_used_up_is_named_and_waited_for(
    platform: OwnPlatform, quota: client.CoreV1Api, user_of_all: None, how: str
) -> None:
    """From its first launch on, though the job may lose no attempt; then there is room, and it runs. What it waits with
    is a place in the queue, not what it was granted."""
    job_id = platform.submit(shell_job("quota", "true", budget={"infra_attempts": 0}))
    told(platform, job_id, f"exceeded quota: {QUOTA}, requested: requests.memory=")
    platform.nothing_is_left(job_id)
    if how == "others leave":
        quota.delete_namespaced_pod(USER, NAMESPACE, grace_period_seconds=0)
    else:
        quota.patch_namespaced_resource_quota(QUOTA, NAMESPACE, {"spec": {"hard": {"requests.memory": "100Gi"}}})
    platform.completed(job_id)
    *refused_ones, last = platform.client.attempts(job_id).attempts
    words = f"exceeded quota: {QUOTA}, requested: requests.memory="
    shown = [step for step in platform.client.transitions(job_id).transitions if "was refused: " in step.reason]
    assert [step.state for step in shown] == ["QUEUED"] * len(refused_ones), platform.explained(job_id)
    assert all(words in step.reason for step in shown), platform.explained(job_id)
    assert {attempt.label for attempt in refused_ones} == {"quota.exceeded"}, platform.explained(job_id)
    assert {attempt.cause for attempt in refused_ones} == {"infrastructure"}
    assert last.label == "done"
    assert refused_ones[0].relaunch is not None
    assert "no loss" in refused_ones[0].relaunch.reason
    platform.nothing_is_left(job_id)


@pytest.mark.fault("quota_too_small")
def test_a_quota_that_can_never_hold_the_job_ends_it_at_once(platform: OwnPlatform, quota: client.CoreV1Api) -> None:
    job_id = platform.submit(shell_job("never", "true"))
    assert platform.ended(job_id) == ("configuration", "quota.too_small", ["quota.too_small"])
    said = str(platform.client.job(job_id).reason)
    assert f"exceeded quota: {QUOTA}, requested: requests.memory=" in said
    assert f"quota {QUOTA} can never hold the whole launch" in said
    platform.nothing_is_left(job_id)
