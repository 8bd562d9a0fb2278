"""Who in the cluster has which certificate, and the kubeconfigs that hold them.

The Go program beside this package signs them. Called by `running`.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from dataclasses import asdict, dataclass

from kubecluster.building import BUNDLE, Programs
from kubecluster.layout import ClusterError, Layout
from kubecluster.machines import NODES
from kubecluster.network import Network
from updraft.stack.layout import write_private

ADMIN = "admin"
KUBELET_CLIENT = "apiserver-to-kubelets"
DNS = "coredns"
FAKE_KUBELET = "fake-kubelet"  # serves the logs of the pods on fake nodes, on this machine


@dataclass(frozen=True)
class Certificate:
    """One with `hosts` is for a server as well; `common_name` is the user's name, `organizations` its groups."""

    name: str
    common_name: str
    organizations: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def certificates(network: Network) -> list[Certificate]:
    control = ("127.0.0.1", "localhost", network.control)
    api_names = tuple(
        f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")
    )
    return [
        Certificate(ADMIN, "updraft-admin", ("system:masters",)),
        # By this machine's address too: a port of it may lead there.
        Certificate(
            "apiserver", "kube-apiserver", (), (*control, network.host, network.kubernetes_service, *api_names)
        ),
        Certificate("etcd", "etcd", (), control),
        Certificate(KUBELET_CLIENT, KUBELET_CLIENT),
        Certificate("controller-manager", "system:kube-controller-manager", (), control),
        Certificate("scheduler", "system:kube-scheduler", (), control),
        Certificate(DNS, f"system:{DNS}"),
        Certificate(FAKE_KUBELET, FAKE_KUBELET, (), (network.host,)),
        *(
            Certificate(node, f"system:node:{node}", ("system:nodes",), (node, network.node(index)))
            for index, node in enumerate(NODES)
        ),
    ]


def write(layout: Layout, programs: Programs, network: Network) -> None:
    """Certificates, keys and kubeconfigs; whole or not at all, since a later step takes the folder for done."""
    aside = layout.pki.with_name("pki-unfinished")
    wanted = json.dumps([asdict(certificate) for certificate in certificates(network)])
    done = subprocess.run(
        [programs.path(BUNDLE), "certificates", aside], input=wanted, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"The certificates could not be made: {done.stderr.strip()}")
    shutil.rmtree(layout.pki, ignore_errors=True)
    aside.rename(layout.pki)
    for name in (ADMIN, "controller-manager", "scheduler", DNS, *NODES):
        text = kubeconfig(layout, network, name)
        write_private(layout.kubeconfig if name == ADMIN else layout.configuration / f"{name}.kubeconfig", text)


def kubeconfig(layout: Layout, network: Network, name: str) -> str:
    """With the certificates inside, so that it can be copied. JSON is YAML."""

    def content(file: str) -> str:
        return base64.b64encode((layout.pki / file).read_bytes()).decode()

    cluster = {"server": network.api_url, "certificate-authority-data": content("ca.crt")}
    user = {"client-certificate-data": content(f"{name}.crt"), "client-key-data": content(f"{name}.key")}
    context = {"cluster": "updraft-test", "user": name}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "updraft-test",
        "clusters": [{"name": "updraft-test", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "updraft-test", "context": context}],
    }
    return json.dumps(body, indent=2) + "\n"
