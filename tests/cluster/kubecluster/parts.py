"""What runs in the cluster: a list of parts with machine, command and probe. A further one is an entry more.

Called by `running`, which starts them in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubecluster import api
from kubecluster.building import Programs
from kubecluster.certificates import KUBELET_CLIENT
from kubecluster.configuration import LEASE_SECONDS
from kubecluster.images import ctr
from kubecluster.layout import Layout
from kubecluster.machines import CONTROL, NODES, run_on
from kubecluster.network import Network

GPU_TYPE_LABEL = "updraft.dev/gpu-type"  # what a job's manifest asks for
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"  # what NVIDIA's GPU operator writes on a real node
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class ImaginaryGpus:
    kind: str
    product: str
    count: int


GPUS = {
    "node-a": ImaginaryGpus("nvidia-a100", "NVIDIA-A100-SXM4-80GB", 4),
    "node-b": ImaginaryGpus("nvidia-h100", "NVIDIA-H100-80GB-HBM3", 2),
}


@dataclass(frozen=True)
class Part:
    """A program of the cluster. `ready` says whether it does its work now."""

    name: str
    machine: str
    command: tuple[str | Path, ...]
    ready: Callable[[], bool]


def all_parts(layout: Layout, programs: Programs, network: Network) -> list[Part]:
    control = [
        _etcd(layout, programs, network),
        _apiserver(layout, programs, network),
        _controller_manager(layout, programs, network),
        _scheduler(layout, programs, network),
        _dns(layout, programs, network),
    ]
    containerds = [_containerd(layout, node) for node in NODES]
    return control + containerds + [_kubelet(layout, programs, network, node) for node in NODES]


def kubelet_name(node: str) -> str:
    return f"kubelet-{node}"


def containerd_name(node: str) -> str:
    return f"containerd-{node}"


def _etcd(layout: Layout, programs: Programs, network: Network) -> Part:
    peers = "https://127.0.0.1:2380"
    command = (
        *("--name", "only", "--data-dir", layout.etcd, "--unsafe-no-fsync"),  # it ends with its data
        *("--listen-client-urls", network.etcd_url, "--advertise-client-urls", network.etcd_url),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--initial-cluster", f"only={peers}"),
        *("--client-cert-auth", "--trusted-ca-file", layout.pki / "ca.crt"),
        *("--cert-file", layout.pki / "etcd.crt", "--key-file", layout.pki / "etcd.key"),
        *("--peer-client-cert-auth", "--peer-trusted-ca-file", layout.pki / "ca.crt"),
        *("--peer-cert-file", layout.pki / "etcd.crt", "--peer-key-file", layout.pki / "etcd.key"),
        *("--log-level", "warn"),
    )
    url = f"{network.etcd_url}/health"
    return Part("etcd", CONTROL, (programs.path("etcd"), *command), lambda: api.answers(layout, url))


def _apiserver(layout: Layout, programs: Programs, network: Network) -> Part:
    command = (
        f"--etcd-servers={network.etcd_url}",
        f"--etcd-cafile={layout.pki / 'ca.crt'}",
        f"--etcd-certfile={layout.pki / 'apiserver.crt'}",
        f"--etcd-keyfile={layout.pki / 'apiserver.key'}",
        "--bind-address=0.0.0.0",  # of the control machine: its own address, and that of the service `kubernetes`
        "--secure-port=443",
        "--permit-port-sharing=true",  # with one that was killed and whose threads still hold it
        f"--advertise-address={network.control}",
        f"--service-cluster-ip-range={network.services_range}",
        f"--tls-cert-file={layout.pki / 'apiserver.crt'}",
        f"--tls-private-key-file={layout.pki / 'apiserver.key'}",
        f"--client-ca-file={layout.pki / 'ca.crt'}",
        f"--kubelet-certificate-authority={layout.pki / 'ca.crt'}",
        f"--kubelet-client-certificate={layout.pki / f'{KUBELET_CLIENT}.crt'}",
        f"--kubelet-client-key={layout.pki / f'{KUBELET_CLIENT}.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",  # beside those on by default, Pod Security among them
        "--allow-privileged=true",  # whether a pod may be so is for Pod Security to say
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-signing-key-file={layout.pki / 'service-accounts.key'}",
        f"--service-account-key-file={layout.pki / 'service-accounts.pub'}",
        f"--audit-policy-file={layout.configuration / 'audit-policy.json'}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=64",
        "--audit-log-maxbackup=1",
        "--profiling=false",
    )
    url = f"{network.api_url}/readyz"
    return Part(
        "kube-apiserver", CONTROL, (programs.path("kube-apiserver"), *command), lambda: api.answers(layout, url)
    )


def _controller_manager(layout: Layout, programs: Programs, network: Network) -> Part:
    kubeconfig = layout.configuration / "controller-manager.kubeconfig"
    command = (
        *_delegating(kubeconfig),
        f"--bind-address={network.control}",
        f"--tls-cert-file={layout.pki / 'controller-manager.crt'}",
        f"--tls-private-key-file={layout.pki / 'controller-manager.key'}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.pki / 'service-accounts.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        "--flex-volume-plugin-dir=/run/volumeplugins",
        # A node is given up a little after its lease would have been renewed for the third time.
        f"--node-monitor-grace-period={LEASE_SECONDS + 2}s",
        "--node-monitor-period=1s",
        "--profiling=false",
    )
    url = f"https://{network.control}:10257/healthz"
    program = programs.path("kube-controller-manager")
    return Part("kube-controller-manager", CONTROL, (program, *command), lambda: api.answers(layout, url))


def _scheduler(layout: Layout, programs: Programs, network: Network) -> Part:
    command = (
        *_delegating(layout.configuration / "scheduler.kubeconfig"),
        f"--bind-address={network.control}",
        f"--tls-cert-file={layout.pki / 'scheduler.crt'}",
        f"--tls-private-key-file={layout.pki / 'scheduler.key'}",
        "--leader-elect=false",
        "--profiling=false",
    )
    url = f"https://{network.control}:10259/healthz"
    return Part(
        "kube-scheduler", CONTROL, (programs.path("kube-scheduler"), *command), lambda: api.answers(layout, url)
    )


def _delegating(kubeconfig: Path) -> tuple[str, ...]:
    """Who asks them is for the API server to say."""
    return tuple(f"--{use}kubeconfig={kubeconfig}" for use in ("", "authentication-", "authorization-"))


def _dns(layout: Layout, programs: Programs, network: Network) -> Part:
    command = (programs.path("coredns"), "-quiet", "-conf", layout.configuration / "Corefile")
    name = "kubernetes.default.svc.cluster.local"
    return Part("coredns", CONTROL, command, lambda: api.resolve(network.control, name) == network.kubernetes_service)


def _containerd(layout: Layout, node: str) -> Part:
    command = ("containerd", "--config", layout.configuration / f"{node}.containerd.toml", "--log-level", "warn")
    return Part(
        containerd_name(node),
        node,
        command,
        lambda: run_on(layout, node, [*ctr(layout), "version"]).returncode == 0,
    )


def _kubelet(layout: Layout, programs: Programs, network: Network, node: str) -> Part:
    gpus = GPUS[node]
    command = (
        f"--config={layout.configuration / f'{node}.kubelet.json'}",
        f"--kubeconfig={layout.configuration / f'{node}.kubeconfig'}",
        f"--hostname-override={node}",
        f"--node-ip={network.node(NODES.index(node))}",
        f"--node-labels={GPU_TYPE_LABEL}={gpus.kind},{GPU_PRODUCT_LABEL}={gpus.product}",
        "--cert-dir=/var/lib/kubelet/pki",
    )
    return Part(
        kubelet_name(node), node, (programs.path("kubelet"), *command), lambda: node_is_ready(layout, network, node)
    )


def node_is_ready(layout: Layout, network: Network, node: str) -> bool:
    """Ready by its own word, with its imaginary GPUs. One that has started anew has lost those, and gets them back."""
    url = f"{network.api_url}/api/v1/nodes/{node}"
    try:
        found = api.read(layout, url)
        if found is None:
            return False
        count = str(GPUS[node].count)
        status = found["status"]
        if status.get("capacity", {}).get(GPU) != count or status.get("allocatable", {}).get(GPU) != count:
            amounts = {GPU: count}
            api.patch(layout, f"{url}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
            return False
    except OSError:
        return False
    ready = [c["status"] for c in status.get("conditions", []) if c["type"] == "Ready"]
    return ready == ["True"]
