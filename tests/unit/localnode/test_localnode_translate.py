from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft_localnode.translate import Translation, expand

RULES = Translation(
    mounts={"/updraft": "/host/v/job", "/updraft/data": "/host/v/data", "/run/keys": "/host/v/keys"},
    pod_ports={5000: 20001, 8080: 20002},
    namespace="team-a",
    services={"gang": {29500: 21000}, "other": {29500: 22000, 80: 22001}},
    subdomain="gang",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/updraft/code", "/host/v/job/code"),
        ("/updraft/data/a:/updraft/b", "/host/v/data/a:/host/v/job/b"),
        ("/updraft", "/host/v/job"),
        ("--out=/updraft/result", "--out=/host/v/job/result"),
        ('{"file": "/run/keys/k"}', '{"file": "/host/v/keys/k"}'),
        ("cd /updraft/code && ls", "cd /host/v/job/code && ls"),
        ("file:///updraft/x", "file:///host/v/job/x"),
        ("/updraft-2/x", "/updraft-2/x"),
        ("/updraft.bak", "/updraft.bak"),
        ("/home/updraft/x", "/home/updraft/x"),
        ("s3://bucket/updraft/data", "s3://bucket/updraft/data"),
        ("$HOME/updraft", "$HOME/updraft"),
        ("${HOME}/updraft", "${HOME}/updraft"),
        ("see /updraft.", "see /host/v/job."),
    ],
)
def test_paths_at_boundaries_only_and_the_longest_mount_wins(text, expected):
    assert RULES.text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:5000/api", "http://127.0.0.1:20001/api"),
        ("localhost:8080", "localhost:20002"),
        ("0.0.0.0:8080", "0.0.0.0:20002"),
        ("127.0.0.1:50001", "127.0.0.1:50001"),
        ("127.0.0.1:9999", "127.0.0.1:9999"),
        ("10.127.0.0.1:5000", "10.127.0.0.1:5000"),
        ("127.0.0.1:29500", "127.0.0.1:21000"),
    ],
)
def test_loopback_ports_of_the_pod_and_of_its_gang(text, expected):
    assert RULES.text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("job-1.gang", "127.0.0.1"),
        ("job-1.gang.team-a", "127.0.0.1"),
        ("job-1.gang.team-a.svc", "127.0.0.1"),
        ("job-1.gang.team-a.svc.cluster.local", "127.0.0.1"),
        ("gang.team-a.svc.cluster.local", "127.0.0.1"),
        ("tcp://job-1.gang.team-a.svc.cluster.local:29500", "tcp://127.0.0.1:21000"),
        ("--endpoint=job-2.other:29500", "--endpoint=127.0.0.1:22000"),
        ("job-1.gang:1234", "127.0.0.1:1234"),
        ("a.gang,b.gang", "127.0.0.1,127.0.0.1"),
        ("job-1.gang.team-b.svc", "job-1.gang.team-b.svc"),
        ("gang", "gang"),
        ("job-1.gangs", "job-1.gangs"),
        ("dir/job-1.gang", "dir/job-1.gang"),
    ],
)
def test_names_of_a_gang(text, expected):
    assert RULES.text(text) == expected


def test_variables_that_end_in_port_get_the_gangs_or_the_pods_port():
    assert RULES.variable("MASTER_PORT", "29500") == "21000"
    assert RULES.variable("MLFLOW_PORT", "5000") == "20001"
    assert RULES.variable("OTHER_PORT", "80") == "80"
    assert RULES.variable("EPOCHS", "5000") == "5000"
    assert RULES.variable("DATA_DIR", "/updraft/data") == "/host/v/data"


def test_a_path_without_a_mount_has_no_folder():
    assert RULES.path("/updraft/data/x") == "/host/v/data/x"
    assert RULES.path("/opt") is None
    assert RULES.path("/updraftx") is None


@given(st.text(alphabet=st.characters(blacklist_characters="/:."), max_size=60))
def test_a_text_without_paths_names_or_ports_is_left_alone(text):
    assert RULES.text(text) == text


@given(st.text(max_size=60))
def test_without_rules_nothing_changes(text):
    assert Translation().text(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-$(B)"),
        ("$$(A)", "$(A)"),
        ("$A $$", "$A $"),
        ("$(A", "$(A"),
        ("a$(A)b$(A)", "a1b1"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text, expected):
    assert expand(text, {"A": "1"}) == expected
