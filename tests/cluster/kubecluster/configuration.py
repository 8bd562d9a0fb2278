"""Configuration files of the cluster's parts: pure functions from the layout to texts, and one that writes them.

Called by `running`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from kubecluster.images import CONTAINERD_SOCKET, PAUSE_IMAGE
from kubecluster.layout import Layout
from kubecluster.machines import NODES, cgroup_of
from kubecluster.needs import CNI_FOLDERS, cni_folder
from kubecluster.network import MTU_BYTES, Network
from updraft.stack.layout import write_private

LEASE_SECONDS = 8  # how long a silent kubelet is believed; Kubernetes' own default is 40
DOMAIN = "cluster.local"

# Users of the cluster's own parts: their requests are many, and say nothing about ours.
QUIET_USERS = [
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:coredns",
]


def write_all(layout: Layout, network: Network) -> None:
    files = {
        "audit-policy.json": json.dumps(audit_policy(), indent=2),
        "Corefile": corefile(layout, network),
        "resolv.conf": f"nameserver {network.control}\n",
    }
    with tempfile.TemporaryDirectory(dir=layout.root) as probe:
        snapshotter = "overlayfs" if overlays(Path(probe)) else "native"
    for index, node in enumerate(NODES):
        files[f"{node}.containerd.toml"] = containerd(layout, node, snapshotter)
        files[f"{node}.kubelet.json"] = json.dumps(kubelet(layout, network, node, memory_bytes()), indent=2)
        files[f"{node}.cni/10-bridge.conflist"] = json.dumps(cni(network, index), indent=2)
    for name, text in files.items():
        write_private(layout.configuration / name, text)
    (layout.configuration / "resolv.conf").chmod(0o644)
    layout.configuration.chmod(0o711)


def audit_policy() -> dict[str, Any]:
    """Who did what to which resource: no contents. Enough to tell which permissions a client needs."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": QUIET_USERS},
            {"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
            {"level": "Metadata"},
        ],
    }


def corefile(layout: Layout, network: Network) -> str:
    """Names of headless services and their pods; every other name does not exist, and that is answered at once."""
    return f"""\
.:53 {{
    errors
    ready {network.control}:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {layout.configuration / "coredns.kubeconfig"} updraft-test
        ttl 1
    }}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def containerd(layout: Layout, node: str, snapshotter: str) -> str:
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE nobody may lower a score, and no pod would start.
  restrict_oom_score_adj = true
  # A profile would stay loaded in this machine's kernel.
  disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_folder() or CNI_FOLDERS[0]}"
  conf_dir = "{layout.configuration / f"{node}.cni"}"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "{snapshotter}"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
"""


def cni(network: Network, index: int) -> dict[str, Any]:
    """A bridge in the node's namespace. Pods keep their addresses everywhere: nothing is translated."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": network.pods_range(index)}]]}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "ipMasq": False,
                "mtu": MTU_BYTES,
                "ipam": {**addresses, "routes": [{"dst": "0.0.0.0/0"}]},
            }
        ],
    }


def kubelet(layout: Layout, network: Network, node: str, memory_total_bytes: int) -> dict[str, Any]:
    """What differs from a kubelet's defaults, and why."""
    seen_mib = memory_total_bytes // 2**20
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / f"{node}.crt"),
        "tlsPrivateKeyFile": str(layout.pki / f"{node}.key"),
        "rotateCertificates": False,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup_of(layout, node)}",
        "failSwapOn": False,
        "oomScoreAdj": 0,  # lowering it needs CAP_SYS_RESOURCE
        "makeIPTablesUtilChains": False,
        "clusterDNS": [network.control],
        "clusterDomain": DOMAIN,
        "resolvConf": str(layout.configuration / "resolv.conf"),
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",  # the default would be made in this machine's /usr
        # Both nodes see all of this machine's memory: each gives pods a bit less than half of it.
        "systemReserved": {"memory": f"{seen_mib * 55 // 100}Mi"},
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "volumeStatsAggPeriod": "10s",  # a minute by default: what a program writes would count that much later
        "imageGCHighThresholdPercent": 100,  # never: an image cannot be pulled again
        "nodeLeaseDurationSeconds": LEASE_SECONDS,
        "serializeImagePulls": False,
        "shutdownGracePeriod": "0s",
        "podLogsDir": "/var/log/pods",
    }


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def overlays(folder: Path) -> bool:
    """Whether containers' layers can be stacked here: not where this machine is a container on such layers."""
    for name in ("lower", "upper", "work", "merged"):
        (folder / name).mkdir()
    options = ",".join(f"{part}dir={folder / part}" for part in ("lower", "upper", "work"))
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(folder / "merged")]
    # In a mount namespace of its own, so that it is gone with the command.
    tried = subprocess.run(["unshare", "--mount", *mount], capture_output=True, check=False)
    return tried.returncode == 0
