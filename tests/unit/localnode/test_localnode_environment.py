from __future__ import annotations

import base64
from pathlib import Path

import pytest

from updraft_learner.catalogue import Image
from updraft_localnode.environment import (
    LOOPBACK_INTERFACE,
    ContainerFolders,
    ContainerLaunch,
    launch_of,
    path_variable,
)
from updraft_localnode.translate import Translation
from updraft_localnode.volumes import NotYetError, link_nested, mounts_of, prepare_volumes

PLACE = ContainerFolders(Path("/pod/h"), Path("/pod/t"), "/venv/bin:/usr/bin", (1,))
POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"team": "v"}}, "spec": {"nodeName": "local"}}
TRANSLATION = Translation({"/job": "/host/job"}, {5000: 20001}, "n")
SECRETS = {"s": {"data": {"key": base64.b64encode(b"/job/127.0.0.1:5000").decode()}}}


def launch(container, host=None):
    container = {"name": "c", "command": ["run"], **container}
    return launch_of(container, POD, SECRETS.get, TRANSLATION, PLACE, host or {})


def test_a_container_gets_its_own_variables_and_the_nodes_and_nothing_else():
    container = {
        "command": ["run", "--in=/job/in"],
        "args": ["$(WHERE)", "$(NOBODY)"],
        "workingDir": "/job/code",
        "env": [{"name": "WHERE", "value": "/job/out"}, {"name": "HOME", "value": "/root"}],
    }
    host = {"SECRET_OF_HOST": "x", "SSL_CERT_FILE": "/etc/ca.pem"}
    assert launch(container, host) == ContainerLaunch(
        argv=("run", "--in=/host/job/in", "/host/job/out", "$(NOBODY)"),
        environment={
            "PATH": "/venv/bin:/usr/bin",
            "HOSTNAME": "p",
            "HOME": "/pod/h",
            "TMPDIR": "/pod/t",
            "LANG": "C.UTF-8",
            "GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE,
            "SSL_CERT_FILE": "/etc/ca.pem",
            "NVIDIA_VISIBLE_DEVICES": "1",
            "CUDA_VISIBLE_DEVICES": "1",
            "WHERE": "/host/job/out",
        },
        cwd=Path("/host/job/code"),
    )


def test_secrets_are_never_rewritten():
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}]
    made = launch({"env": env, "envFrom": [{"secretRef": {"name": "s"}, "prefix": "S_"}]}).environment
    assert (made["A"], made["S_key"]) == ("/job/127.0.0.1:5000", "/job/127.0.0.1:5000")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "absent", "key": "k"}}, 'secret "absent" not found'),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "couldn't find key k in Secret s"),
        ({"fieldRef": {"fieldPath": "status.color"}}, "unsupported fieldPath: status.color"),
    ],
)
def test_what_does_not_exist_is_waited_for(source, message):
    with pytest.raises(NotYetError, match=message):
        launch({"env": [{"name": "A", "valueFrom": source}]})


def test_optional_secrets_may_be_absent():
    source = {"secretKeyRef": {"name": "absent", "key": "k", "optional": True}}
    assert "A" not in launch({"env": [{"name": "A", "valueFrom": source}]}).environment


def test_a_container_without_a_command_is_told_so():
    with pytest.raises(NotYetError, match="no command specified"):
        launch({"command": []})


def no_claim(_name: str) -> None:
    return None


def test_secret_volumes_are_private_files_and_nested_mounts_are_linked(tmp_path):
    spec = {
        "volumes": [
            {"name": "job", "emptyDir": {}},
            {"name": "keys", "secret": {"secretName": "s", "items": [{"key": "key", "path": "deep/file"}]}},
        ]
    }
    prepare_volumes({"spec": spec}, tmp_path, SECRETS.get, no_claim)
    prepare_volumes({"spec": spec}, tmp_path, SECRETS.get, no_claim)  # after a restart of the node
    file = tmp_path / "keys" / "deep" / "file"
    assert file.read_text() == "/job/127.0.0.1:5000"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700

    mounts = mounts_of(
        {
            "volumeMounts": [
                {"name": "job", "mountPath": "/job"},
                {"name": "job", "mountPath": "/results/", "subPath": "out"},
                {"name": "keys", "mountPath": "/job/run/keys"},
            ]
        },
        tmp_path,
    )
    assert mounts == {
        "/job": str(tmp_path / "job"),
        "/results": str(tmp_path / "job" / "out"),
        "/job/run/keys": str(tmp_path / "keys"),
    }
    link_nested(mounts)
    assert (tmp_path / "job" / "run" / "keys" / "deep" / "file").exists()


def test_an_images_programs_come_before_the_hosts():
    images_dir = Path("/images")
    assert path_variable(Image(), images_dir, "team/shell:1") == "/usr/bin:/bin"
    of_learner = path_variable(Image("p"), images_dir, "team/learner:1.0")
    assert of_learner == "/images/team-learner-1-0/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
