"""What the test cluster says before it starts, and what it decides without starting anything. Needs no root."""

from __future__ import annotations

import ipaddress
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from kubecluster import archives, building, cgroups, configuration, network
from kubecluster.certificates import FAKE_KUBELET, certificates
from kubecluster.layout import STATE_VARIABLE, ClusterError, Layout, find_layout, refuse_hidden
from kubecluster.machines import CONTROL, NODES, script
from kubecluster.needs import Machine, distribution
from kubecluster.network import Network
from kubecluster.parts import all_parts
from kubecluster.running import down

FIT = Machine(
    system="Linux",
    root=True,
    distribution=frozenset({"debian"}),
    go_version=(1, 24),
    missing_programs=(),
    memory_bytes=8 * 1024**3,
    disk_bytes=50 * 1024**3,
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "state", tmp_path / "cache")


def test_a_fit_machine_has_no_problem() -> None:
    assert FIT.problems() == []


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"root": False}, "It needs root"),
        (
            {"distribution": frozenset({"fedora"})},
            "Debian or Ubuntu with apt, for containerd, runc and the CNI plugins; this is fedora",
        ),
        ({"go_version": None}, "It needs Go 1.24 or newer on the PATH"),
        ({"go_version": (1, 19)}, "It needs Go 1.24 or newer, this is 1.19"),
        ({"missing_programs": ("nsenter",)}, "apt-get install util-linux"),
        ({"memory_bytes": 1024**3}, "3 GiB of memory, 1.0 GiB are there"),
        ({"disk_bytes": 1024**3}, "6 GiB of free disk"),
        ({"system": "Darwin"}, "It needs Linux, this is Darwin"),
    ],
)
def test_what_is_missing_is_told_by_name(lacking: dict[str, object], said: str) -> None:
    (problem,) = replace(FIT, **lacking).problems()  # type: ignore[arg-type]
    assert said in problem


def test_everything_that_is_missing_is_told_at_once() -> None:
    assert len(replace(FIT, root=False, go_version=None, memory_bytes=0).problems()) == 3


def test_a_relative_of_debian_counts(tmp_path: Path) -> None:
    file = tmp_path / "os-release"
    file.write_text('ID=linuxmint\nID_LIKE="ubuntu debian"\n')
    assert distribution(file) == {"linuxmint", "ubuntu", "debian"}
    assert distribution(tmp_path / "absent") == frozenset()


def test_a_state_folder_that_machines_cannot_see_is_refused() -> None:
    with pytest.raises(ClusterError, match="below /var/lib"):
        refuse_hidden(Path("/var/lib/ci/state"), "state folder", STATE_VARIABLE)
    refuse_hidden(Path("/srv/state"), "state folder", STATE_VARIABLE)


def test_two_clusters_have_names_and_networks_of_their_own(tmp_path: Path) -> None:
    one, two = (find_layout({STATE_VARIABLE: str(tmp_path / name), "HOME": "/root"}) for name in ("one", "two"))
    assert one.name != two.name
    assert len(one.name) <= 9
    first = network.choose(one, [])
    assert network.choose(one, [ipaddress.IPv4Network(first.machines_range)]) != first


def test_a_network_that_is_routed_everywhere_is_told(layout: Layout) -> None:
    with pytest.raises(ClusterError, match="none is left"):
        network.choose(layout, [ipaddress.IPv4Network("10.0.0.0/8")])


def test_ranges_of_one_cluster_do_not_overlap() -> None:
    net = Network("10.77")
    texts = [net.machines_range, net.services_range, *(net.pods_range(i) for i in range(len(NODES)))]
    ranges = [ipaddress.IPv4Network(text) for text in texts]
    assert not any(a.overlaps(b) for i, a in enumerate(ranges) for b in ranges[:i])
    assert ipaddress.IPv4Address(net.kubernetes_service) in ipaddress.IPv4Network(net.services_range)


def test_a_build_is_known_by_the_content_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text("package main\n")
    before = building.module_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("not part of it")
    assert building.module_digest(tmp_path) == before
    (tmp_path / "main.go").write_text("package main \n")
    assert building.module_digest(tmp_path) != before


def test_the_version_is_that_of_the_module() -> None:
    assert building.kubernetes_version() == "v1.34.4"


def test_everything_that_listens_has_a_certificate_and_nobody_may_ask_anonymously(layout: Layout) -> None:
    net = Network("10.77")
    programs = building.Programs(layout.cache / "x")
    parts = {part.name: [str(word) for word in part.command] for part in all_parts(layout, programs, net)}
    assert {"--anonymous-auth=false", "--authorization-mode=Node,RBAC"} <= set(parts["kube-apiserver"])
    assert "--client-cert-auth" in parts["etcd"]
    kubelet = configuration.kubelet(layout, net, "node-a", 8 * 1024**3)
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    servers = {c.name: c.hosts for c in certificates(net) if c.hosts}
    assert set(servers) == {"apiserver", "etcd", "controller-manager", "scheduler", FAKE_KUBELET, *NODES}
    assert net.kubernetes_service in servers["apiserver"]


def test_no_secret_is_in_an_argument(layout: Layout) -> None:
    parts = all_parts(layout, building.Programs(layout.cache / "x"), Network("10.77"))
    words = " ".join(str(word) for part in parts for word in part.command)
    assert "BEGIN" not in words
    assert "token" not in words


def test_only_nodes_get_mounts_and_settings_of_their_own(layout: Layout) -> None:
    programs = building.Programs(layout.cache / "x")
    assert "/var/lib/kubelet" in script(layout, "node-a", programs)
    assert "overcommit" in script(layout, "node-a", programs)
    assert "/var/lib" not in script(layout, CONTROL, programs)


def test_the_audit_log_has_no_contents() -> None:
    assert {rule["level"] for rule in configuration.audit_policy()["rules"]} == {"None", "Metadata"}


def test_control_groups_are_found_made_and_removed_in_each_hierarchy(tmp_path: Path) -> None:
    for name in ("cpu", "memory", "cpuset", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpuacct").symlink_to("cpu")
    assert cgroups.missing(tmp_path) == []
    assert len(cgroups.hierarchies(tmp_path)) == 4
    cgroups.make("updx/node-a", tmp_path)
    assert len(cgroups.remains("updx", tmp_path)) == 4
    assert cgroups.remove("updx", mounted=tmp_path) == []
    assert cgroups.remains("updx", tmp_path) == []


def test_a_machine_without_control_groups_is_told_which_are_missing(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cgroup.procs").touch()
    assert cgroups.missing(tmp_path) == ["cpuset", "memory", "pids"]


def test_an_archive_holds_the_program_its_name_and_its_user(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"program")
    target = tmp_path / "pause.tar"
    archives.write_program_archive(target, "updraft.test/pause:1", program)
    with tarfile.open(target) as archive:
        read = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    (manifest,) = json.loads(read["manifest.json"])
    config = json.loads(read[manifest["Config"]])
    assert manifest["RepoTags"] == ["updraft.test/pause:1"]
    assert config["config"] == {"Entrypoint": ["/pause"], "User": "65532:65532"}
    assert len(config["rootfs"]["diff_ids"]) == 1


def test_down_on_a_machine_without_a_cluster_says_so(layout: Layout) -> None:
    said: list[str] = []
    down(layout, said.append)
    assert said == ["nothing was running"]
    assert list(layout.cache.iterdir()) == []
