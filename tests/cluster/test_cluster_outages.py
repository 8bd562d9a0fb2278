"""Jobs on a real Kubernetes that answers nobody for a minute, since it has no etcd, or not the platform (429)."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import groupby, pairwise
from operator import itemgetter
from urllib.parse import urlsplit

import account_helpers
import pytest
from account_helpers import NAMESPACE, Account
from cluster_helpers import eventually
from kubernetes import client, config
from loss_helpers import STEPS, WITHIN_SECONDS, begun, counting, last_step, undisturbed
from platform_helpers import PROGRAMS, OwnPlatform

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("own_platform")]
THROTTLE = "updraft-test-throttle"
PROBE = "limit=1"  # no request of the platform's
OUTAGE_SECONDS = 60
SEATED_SECONDS = 1.0  # a request that is refused is answered at once
LONG = OUTAGE_SECONDS + 30  # steps of a second each; some are behind it when etcd stops


# --- no etcd ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("etcd_stopped")
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
        platform.cluster.start_part("kube-apiserver")
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


def refused(platform: OwnPlatform) -> list[tuple[str, datetime]]:
    """What the API server answered to the platform with 429, and when, as its audit log has it."""
    events = map(json.loads, platform.cluster.layout.audit_log.read_text().splitlines())
    return [
        (f"{event['verb']} {event['requestURI']} {event['userAgent']}", datetime.fromisoformat(event["stageTimestamp"]))
        for event in events
        if event["user"]["username"] == account_helpers.NAME
        and event.get("responseStatus", {}).get("code") == 429
        and event["stage"] == "ResponseComplete"  # a watch's answer has begun before
        and PROBE not in event["requestURI"]
        and event["verb"] != "create"  # of the test itself
    ]


@pytest.mark.fault("api_throttled_429")
def test_a_platform_that_is_told_to_wait_waits_and_loses_nothing(
    platform: OwnPlatform, account: Account, flows: client.FlowcontrolApiserverV1Api
) -> None:
    """Every request of the platform is refused from before its program's end until after it, but what came through
    when the API server, a new one, had just begun."""
    before = len(refused(platform))
    job_id = platform.submit(counting("throttled"), base=PROGRAMS)
    begun(platform, job_id)
    one_seat_for_the_platform(flows)
    platform.cluster.stop_part("kube-apiserver")
    platform.cluster.start_part("kube-apiserver")
    with seated(account) as pause_seconds:
        eventually(lambda: last_step(platform, job_id) == STEPS, within_seconds=WITHIN_SECONDS)
        eventually(lambda: len(refused(platform)) >= before + 3)
    flows.delete_flow_schema(THROTTLE)
    undisturbed(platform, job_id, STEPS)
    for _, again in groupby(sorted(refused(platform)[before:]), key=itemgetter(0)):
        for (what, earlier), (_, later) in pairwise(again):
            assert (later - earlier).total_seconds() >= pause_seconds, what


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
