"""The section `pod`: its form, what its fields contradict, and what a tenant's policy allows of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from updraft.manifest import ManifestError, parse
from updraft.manifest.pod import Pod
from updraft.manifest.pod_rules import judge
from updraft.pod_policy import AIRFLOW_LABELS, PodPolicy, covers, is_reserved
from updraft.taints import EFFECTS, Taint, Toleration

WHOLE: dict[str, Any] = {
    "node_selector": {"disk": "ssd"},
    "tolerations": ["dedicated=training:NoSchedule", "spot"],
    "volumes": [{"mount": "/scratch", "size": "20GiB"}, {"mount": "/shared/team", "claim": "team-scratch"}],
    "service_account": "trainer",
    "labels": {"example.com/cost-center": "v12"},
    "annotations": {"example.com/owner": "Ada L."},
    "image_pull_secrets": ["team-registry"],
}
OPEN = PodPolicy.model_validate(
    {
        "node_selector": {"disk": ["ssd", "nvme"], "topology.kubernetes.io/zone": ["*"]},
        "tolerations": ["dedicated=training", "spot"],
        "claims": ["team-*"],
        "service_accounts": ["trainer"],
        "labels": ["example.com/*"],
        "annotations": ["example.com/*"],
        "image_pull_secrets": ["team-registry"],
    }
)


def job(pod: Any, **more: Any) -> dict[str, Any]:
    return {"name": "a", "framework": {"name": "pytorch"}, "command": "true", "pod": pod, **more}


def section(**fields: Any) -> Pod:
    pod = parse(job(fields)).pod
    assert pod is not None
    return pod


def test_the_whole_section_is_read_and_written_again() -> None:
    manifest = parse(job(WHOLE))
    assert manifest.pod is not None
    assert manifest.pod.tolerated == (Toleration("dedicated", "training", "NoSchedule"), Toleration("spot"))
    assert manifest.pod.claims == ("team-scratch",)
    assert manifest.canonical()["pod"]["volumes"][0] == {"mount": "/scratch", "size": "20GiB", "claim": None}
    assert parse(manifest.canonical()) == manifest
    assert judge(manifest.pod, OPEN) == []


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"node_selector": {"a b": "x"}}, "pod.node_selector['a b']"),
        ({"labels": {"updraft.dev./job": "x"}}, "pod.labels['updraft.dev./job']"),
        ({"annotations": {"a..b/c": "x"}}, "pod.annotations['a..b/c']"),
        ({"node_selector": {"disk": "-"}}, "pod.node_selector.disk"),
        ({"node_selector": {"disk": 1}}, "pod.node_selector.disk"),
        ({"labels": {"team": "x" * 64}}, "pod.labels.team"),
        ({"annotations": {"team": True}}, "pod.annotations.team"),
        ({"tolerations": ["a b"]}, "pod.tolerations[0]"),
        ({"tolerations": ["a:Never"]}, "pod.tolerations[0]"),
        ({"service_account": "Trainer"}, "pod.service_account"),
        ({"image_pull_secrets": ["a_b"]}, "pod.image_pull_secrets[0]"),
        ({"volumes": [{"mount": "scratch", "size": "1GiB"}]}, "pod.volumes[0].mount"),
        ({"volumes": [{"mount": "/a/../b", "size": "1GiB"}]}, "pod.volumes[0].mount"),
        ({"volumes": [{"mount": "/$(HOME)", "size": "1GiB"}]}, "pod.volumes[0].mount"),
        ({"volumes": [{"mount": "/scratch", "size": "1"}]}, "pod.volumes[0].size"),
        ({"volumes": [{"mount": "/scratch", "claim": "../x"}]}, "pod.volumes[0].claim"),
        ({"volumes": [{"mount": "/scratch"}]}, "pod.volumes[0].size"),
        ({"volumes": [{"mount": "/scratch", "size": "1GiB", "claim": "a"}]}, "pod.volumes[0].claim"),
        ({"volumes": [{"mount": "/scratch", "host_path": "/"}]}, "pod.volumes[0].host_path"),
        ({"host_network": True}, "pod.host_network"),
        ({"privileged": True}, "pod.privileged"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(pod: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(job(pod))
    assert path in [error.path for error in caught.value.fields]


@pytest.mark.parametrize(
    "mount", ["/updraft", "/updraft/data", "/run", "/run/updraft/private", "/dev/shm", "/usr/lib", "/var", "/etc"]
)
def test_no_volume_covers_what_the_platform_or_the_image_uses(mount: str) -> None:
    with pytest.raises(ManifestError, match="would cover"):
        parse(job({"volumes": [{"mount": mount, "size": "1GiB"}]}))


def test_volumes_lie_beside_each_other() -> None:
    beside = [{"mount": "/scratch/a", "size": "1GiB"}, {"mount": "/scratch/ab", "size": "1GiB"}]
    parse(job({"volumes": beside}))
    for mount in ("/scratch/a", "/scratch", "/scratch/a/b"):
        with pytest.raises(ManifestError, match="overlaps with '/scratch/a', another volume"):
            parse(job({"volumes": [beside[0], {"mount": mount, "size": "1GiB"}]}))


def test_scratch_space_is_part_of_the_disk() -> None:
    volumes = [{"mount": "/a", "size": "3GiB"}, {"mount": "/b", "size": "3GiB"}]
    parse(job({"volumes": volumes}, resources={"disk": "6GiB"}))
    with pytest.raises(ManifestError, match=r"the sizes are 6GiB together, and resources.disk.*is 5GiB"):
        parse(job({"volumes": volumes}, resources={"disk": "5GiB"}))


def test_without_a_policy_a_tenant_has_scratch_volumes_and_nothing_else() -> None:
    assert judge(None, PodPolicy()) == []
    assert judge(section(volumes=[{"mount": "/scratch", "size": "1GiB"}]), PodPolicy()) == []
    refused = judge(section(**WHOLE), PodPolicy())
    assert [error.path for error in refused] == [
        "pod.node_selector.disk",
        "pod.tolerations[0]",
        "pod.tolerations[1]",
        "pod.volumes[1].claim",
        "pod.service_account",
        "pod.labels['example.com/cost-center']",
        "pod.annotations['example.com/owner']",
        "pod.image_pull_secrets[0]",
    ]
    assert refused[4].text == (
        "pod.service_account: 'trainer' is not allowed for this tenant; write nothing here, or ask the platform's "
        "operator to allow it in UPDRAFT_POD_POLICY"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"node_selector": {"disk": "hdd"}},
            "'hdd' is not a value that this tenant may select; write one of nvme, ssd",
        ),
        (
            {"node_selector": {"host": "a"}},
            "'host' is not a label that this tenant may select; write one of disk, topo",
        ),
        ({"node_selector": {"updraft.dev/gpu-type": "a"}}, "the platform's own label; write resources.gpu_type"),
        ({"tolerations": ["dedicated"]}, "'dedicated' is not allowed for this tenant; write one of dedicated=training"),
        ({"service_account": "admin"}, "'admin' is not allowed for this tenant; write one of trainer, or ask"),
        (
            {"volumes": [{"mount": "/a", "claim": "other"}]},
            "'other' is not allowed for this tenant; write one of team-*",
        ),
        ({"labels": {"updraft.dev/job": "x"}}, "is set by the platform or by Airflow; write another key"),
        ({"labels": {"dag_id": "x"}}, "is set by the platform or by Airflow"),
        (
            {"annotations": {"container.apparmor.security.beta.kubernetes.io/base": "unconfined"}},
            "is not a key that this tenant may set; write one of example.com/*",
        ),
        ({"annotations": {"iam.amazonaws.com/role": "admin"}}, "is not a key that this tenant may set"),
    ],
)
def test_what_the_policy_refuses_is_told_with_what_it_allows(fields: dict[str, Any], said: str) -> None:
    (error,) = judge(section(**fields), OPEN)
    assert said in error.text


@pytest.mark.parametrize(
    "policy",
    [
        {"annotations": ["*"]},
        {"annotations": ["exam*"]},
        {"annotations": ["*/x"]},
        {"annotations": ["a.updraft.dev/*"]},
        {"labels": ["updraft.dev/job"]},
        {"labels": ["dag_id"]},
        {"node_selector": {"updraft.dev/gpu-type": ["a"]}},
        {"service_accounts": ["a*b"]},
        {"tolerations": ["node.kubernetes.io/unreachable"]},
        {"tolerations": ["a b"]},
        {"host_network": True},
    ],
)
def test_a_policy_that_gives_away_too_much_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PodPolicy.model_validate(policy)


KEYS = st.sampled_from(
    ["disk", "example.com/a", "example.com/b", "other.org/a", "updraft.dev/job", "x.updraft.dev/y", *AIRFLOW_LABELS]
)
NAMES = st.sampled_from(["a", "team", "team-a", "team-b", "admin", "default"])
VALUES = st.sampled_from(["", "ssd", "hdd", "nvme"])
TAINTS = st.builds(
    Toleration,
    st.sampled_from(["spot", "dedicated"]),
    st.none() | st.sampled_from(["a", "b"]),
    st.none() | st.sampled_from(EFFECTS),
)
SECTIONS = st.fixed_dictionaries(
    {
        "node_selector": st.dictionaries(KEYS, VALUES, max_size=3),
        "tolerations": st.lists(TAINTS.map(str), max_size=3),
        "volumes": st.lists(NAMES, max_size=2, unique=True).map(
            lambda names: [{"mount": f"/{name}", "claim": name} for name in names]
        ),
        "service_account": st.none() | NAMES,
        "labels": st.dictionaries(KEYS, VALUES, max_size=3),
        "annotations": st.dictionaries(KEYS, VALUES, max_size=3),
        "image_pull_secrets": st.lists(NAMES, max_size=2),
    }
)
FREE_KEYS = KEYS.filter(lambda key: not is_reserved(key)) | st.just("example.com/*")
ENTRIES = NAMES | st.sampled_from(["team-*", "*"])
POLICIES = st.builds(
    PodPolicy,
    node_selector=st.dictionaries(FREE_KEYS, st.lists(VALUES.filter(bool) | st.just("*"), max_size=2).map(tuple)),
    tolerations=st.lists(TAINTS, max_size=2).map(tuple),
    claims=st.lists(ENTRIES, max_size=2).map(tuple),
    service_accounts=st.lists(ENTRIES, max_size=2).map(tuple),
    labels=st.lists(FREE_KEYS, max_size=2).map(tuple),
    annotations=st.lists(FREE_KEYS, max_size=2).map(tuple),
    image_pull_secrets=st.lists(ENTRIES, max_size=2).map(tuple),
)


def within(entries: tuple[str, ...], texts: Any) -> bool:
    return all(any(covers(entry, text) for entry in entries) for text in texts)


@given(SECTIONS, POLICIES)
def test_what_is_allowed_holds_nothing_outside_the_policy(fields: dict[str, Any], policy: PodPolicy) -> None:
    pod = Pod.model_validate(fields)
    if judge(pod, policy):
        return
    assert not any(is_reserved(key) for key in (*pod.labels, *pod.annotations, *pod.node_selector))
    assert within(policy.labels, pod.labels)
    assert within(policy.annotations, pod.annotations)
    assert within(policy.claims, pod.claims)
    assert within(policy.image_pull_secrets, pod.image_pull_secrets)
    assert within(policy.service_accounts, [pod.service_account] if pod.service_account else [])
    for key, value in pod.node_selector.items():
        assert any(covers(entry, key) and within(values, [value]) for entry, values in policy.node_selector.items())
    taints = [
        Taint(key, value, effect)
        for key in ("spot", "dedicated")
        for value in ("", "a", "b", "c")
        for effect in EFFECTS
    ]
    for taint in taints:
        if any(own.tolerates(taint) for own in pod.tolerated):
            assert any(entry.tolerates(taint) for entry in policy.tolerations)


@given(SECTIONS, POLICIES)
def test_each_refused_value_is_named_once_and_the_rest_is_allowed(fields: dict[str, Any], policy: PodPolicy) -> None:
    paths = [error.path for error in judge(Pod.model_validate(fields), policy)]
    assert len(paths) == len(set(paths))
    kept = dict(fields)
    for name in ("labels", "annotations", "node_selector"):
        kept[name] = {
            k: v for k, v in fields[name].items() if not any(p.startswith(f"pod.{name}") and k in p for p in paths)
        }
    for name in ("tolerations", "image_pull_secrets"):
        kept[name] = [v for n, v in enumerate(fields[name]) if f"pod.{name}[{n}]" not in paths]
    kept["volumes"] = [v for n, v in enumerate(fields["volumes"]) if f"pod.volumes[{n}].claim" not in paths]
    kept["service_account"] = None if "pod.service_account" in paths else fields["service_account"]
    assert judge(Pod.model_validate(kept), policy) == []
