"""Whether a launch that a ResourceQuota refused could ever fit into it, from the API server's own words."""

from __future__ import annotations

import pytest

from updraft.kubernetes.quota import never_fits

GPU = "requests.nvidia.com/gpu"


def told(kind: str, requested: str, used: str, limited: str) -> str:
    """As the platform has it from the API server."""
    return (
        f'The cluster refused to create it: 403 {kind} "digits-1-t1-2" is forbidden: exceeded quota: team-b, '
        f"requested: {requested}, used: {used}, limited: {limited}"
    )


@pytest.mark.parametrize(
    ("words", "learners"),
    [
        (told("pods", f"{GPU}=8", f"{GPU}=16", f"{GPU}=16"), 2),
        (told("pods", "requests.memory=384Mi", "requests.memory=1Gi", "requests.memory=1Gi"), 2),
        (told("pods", "pods=1", "pods=4", "pods=4"), 4),
        (told("secrets", "count/secrets=1", "count/secrets=1", "count/secrets=1"), 8),  # one for all learners
        ('403 pods "p" is forbidden: status unknown for quota: team-b, resources: pods', 100),
        ('403 pods "p" is forbidden: exceeded quota: team-b, requested: many, used: 1, limited: few', 100),
        ("", 1),
    ],
)
def test_room_that_others_use_comes_back(words: str, learners: int) -> None:
    assert never_fits(words, learners) is None


def test_the_whole_launch_counts_not_the_pod_that_was_refused() -> None:
    """Two of eight learners were made, and the third one alone would have fitted."""
    words = told("pods", f"{GPU}=8", f"{GPU}=16", f"{GPU}=16")
    assert never_fits(words, 8) == (
        f"quota team-b can never hold the whole launch, which needs 8 x 8 of {GPU}, and its limit is 16"
    )


def test_one_pod_can_be_too_large_in_several_ways() -> None:
    amounts = ("limits.cpu=500m,requests.memory=384Mi", "limits.cpu=0,requests.memory=0")
    said = never_fits(told("pods", *amounts, "limits.cpu=400m,requests.memory=100M"), 1)
    assert said == (
        "quota team-b can never hold the whole launch, which needs 1 x 500m of limits.cpu, and its limit is "
        "400m; 1 x 384Mi of requests.memory, and its limit is 100M"
    )


def test_a_limit_of_no_secret_at_all_is_too_small() -> None:
    assert never_fits(told("secrets", "secrets=1", "secrets=0", "secrets=0"), 3) is not None
