"""What guards a launch and who owns whom, as whole objects."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.kubernetes import policies
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.policies import Outside, outside_of
from updraft.lifecycle.membership import Membership
from updraft_localnode.validation import complete

NO_COORDINATOR = {"key": "updraft.dev/learner", "operator": "NotIn", "values": ["0"]}
LAUNCH = Launch("updraft-default", "default", "digits-1", "train", 2, Membership.first(3))
LABELS = {
    "updraft.dev/job": "digits-1",
    "updraft.dev/tenant": "default",
    "updraft.dev/role": "train",
    "updraft.dev/attempt": "2",
}
METADATA = {"name": "digits-1-t2", "namespace": "updraft-default", "labels": LABELS}


def test_learners_reach_each_other_dns_the_platform_and_the_outside_and_are_reached_by_their_peers_alone() -> None:
    outside = Outside(
        namespaces=("storage",),
        services=(("10.1.2.3", 9000),),
        closed=("10.0.0.1/32", "169.254.0.0/16", "fd00::1/128"),
    )
    gang = {"podSelector": {"matchLabels": LABELS}}
    assert policies.network_policy(LAUNCH, outside) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": METADATA,
        "spec": {
            "podSelector": {"matchLabels": LABELS},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [gang]}],
            "egress": [
                {"to": [gang]},
                {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
                {
                    "to": [
                        {
                            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}},
                            "podSelector": {
                                "matchExpressions": [{"key": "updraft.dev/job", "operator": "DoesNotExist"}]
                            },
                        }
                    ]
                },
                {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 9000}]},
                {
                    "to": [
                        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.1/32", "169.254.0.0/16"]}},
                        {"ipBlock": {"cidr": "::/0", "except": ["fd00::1/128"]}},
                    ]
                },
            ],
        },
    }


def test_without_closed_networks_the_whole_outside_is_open() -> None:
    (last,) = policies.network_policy(LAUNCH, Outside())["spec"]["egress"][2:]
    assert last == {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://minio:9000", Outside(namespaces=("mine",))),
        ("http://minio.storage:9000", Outside(namespaces=("storage",))),
        ("https://minio.storage.svc.cluster.local", Outside(namespaces=("storage",))),
        ("https://s3.eu-central-1.amazonaws.com", Outside()),
        ("http://localhost:9000", Outside()),
        ("https://10.1.2.3", Outside(services=(("10.1.2.3", 443),))),
        ("http://[fd00::5]:9000", Outside(services=(("fd00::5", 9000),))),
    ],
)
def test_where_the_store_is_follows_from_its_address(url: str, expected: Outside) -> None:
    assert outside_of("mine", [url], []) == expected


def test_addresses_and_networks_that_are_closed_are_told_once_and_in_order() -> None:
    closed = ["169.254.0.0/16", "10.0.0.1", "10.0.0.1/32", "fd00::1"]
    assert outside_of("mine", [], closed).closed == ("10.0.0.1/32", "169.254.0.0/16", "fd00::1/128")


ADDRESSES = st.ip_addresses()


@given(st.lists(ADDRESSES), st.sampled_from(["http://a.b:1", "http://10.0.0.9:1", "http://a:1"]))
def test_whatever_is_closed_is_in_no_open_block(closed: list[Any], url: str) -> None:
    made = policies.network_policy(LAUNCH, outside_of("mine", [url], map(str, closed)))
    open_blocks = [peer["ipBlock"] for peer in made["spec"]["egress"][-1]["to"]]
    for address in closed:
        (block,) = [b for b in open_blocks if ipaddress.ip_network(b["cidr"]).version == address.version]
        assert any(address in ipaddress.ip_network(text) for text in block["except"])
    complete("networkpolicies", made)  # the API takes it


def test_a_disruption_budget_keeps_the_whole_gang() -> None:
    assert policies.disruption_budget(LAUNCH) == {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": METADATA,
        "spec": {
            "minAvailable": 3,
            "selector": {"matchLabels": LABELS, "matchExpressions": [NO_COORDINATOR]},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def test_where_learners_join_and_leave_the_fewest_are_kept() -> None:
    made = policies.disruption_budget(replace(LAUNCH, least=2))
    assert made["spec"]["minAvailable"] == 2


def test_an_owner_is_named_by_its_identity_and_blocks_nothing() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "uid": "u-1", "labels": {}}}
    owned = policies.owned_by(policies.disruption_budget(LAUNCH), [secret])
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u-1"}
    assert owned == {
        **policies.disruption_budget(LAUNCH),
        "metadata": {**METADATA, "ownerReferences": [reference]},
    }


@pytest.mark.parametrize(
    ("closed", "blocks"), [(("0.0.0.0/0",), ["::/0"]), (("::/0",), ["0.0.0.0/0"]), (("0.0.0.0/0", "::/0"), None)]
)
def test_an_outside_that_is_closed_as_a_whole_has_no_rule(closed: tuple[str, ...], blocks: list[str] | None) -> None:
    rest = policies.network_policy(LAUNCH, Outside(closed=closed))["spec"]["egress"][2:]
    assert [[peer["ipBlock"]["cidr"] for peer in rule["to"]] for rule in rest] == ([] if blocks is None else [blocks])
