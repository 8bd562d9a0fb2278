"""A small API server on loopback that answers what a preflight asks, as a test tells it to."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from updraft.kubernetes import rbac

NODE_FIELDS = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID"),
    *("operatingSystem", "osImage", "systemUUID"),
)
NODE: dict[str, Any] = {
    "metadata": {"name": "node-1", "labels": {"updraft.dev/gpu-type": "nvidia-a100"}},
    "status": {
        "allocatable": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {**dict.fromkeys(NODE_FIELDS, ""), "kubeletVersion": "v1.34.4"},
    },
}


@dataclass
class Cluster:
    """What the server answers from; whole and willing as it is made."""

    version: str = "v1.34.4"
    token: str = "good"
    namespaces: tuple[str, ...] = ("updraft-default",)
    forbidden: set[tuple[str, str, str]] = field(default_factory=lambda: {("create", "", "namespaces")})
    forbidden_on_cluster: set[tuple[str, str, str]] = field(default_factory=set)  # not within a namespace
    nodes: list[dict[str, Any]] = field(default_factory=lambda: [NODE])
    whole_rules: bool = True  # whether the list of all rules tells anything
    down: bool = False
    url: str = ""
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, dict[str, Any]]:
        self.requests.append(f"{method} {path}")
        if self.down:
            return 503, {"message": "not today"}
        if token != self.token:
            return 401, {"message": "Unauthorized"}
        if path == "/version/":
            return 200, {"major": "1", "minor": "0", "gitVersion": self.version, **dict.fromkeys(VERSION_FIELDS, "")}
        if path.endswith("/selfsubjectaccessreviews"):
            everywhere = not body["spec"]["resourceAttributes"].get("namespace")
            allowed = right_of(body) not in self.forbidden
            allowed = allowed and not (everywhere and right_of(body) in self.forbidden_on_cluster)
            return 201, {"spec": body["spec"], "status": {"allowed": allowed}}
        if path.endswith("/selfsubjectrulesreviews"):
            given = (*rbac.each(rbac.NAMESPACED), *rbac.each(rbac.CLUSTER))
            rules = [
                {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                for verb, group, resource in given
                if self.whole_rules and (verb, group, resource) not in self.forbidden
            ]
            status = {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}
            return 201, {"spec": body["spec"], "status": status}
        if path.startswith("/api/v1/namespaces") and method == "GET":
            return self._namespace(path.rpartition("/")[2])
        if path == "/api/v1/namespaces":
            return 403, {"message": "namespaces is forbidden"}
        if path.partition("?")[0] == "/api/v1/nodes":
            return 200, {"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": self.nodes}
        return 404, {"message": "the server could not find the requested resource"}

    def _namespace(self, name: str) -> tuple[int, dict[str, Any]]:
        if ("get", "", "namespaces") in self.forbidden:
            return 403, {"message": "namespaces is forbidden"}
        if name not in self.namespaces:
            return 404, {"message": f'namespaces "{name}" not found'}
        return 200, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}


VERSION_FIELDS = ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "platform")


def right_of(review: dict[str, Any]) -> tuple[str, str, str]:
    wanted = review["spec"]["resourceAttributes"]
    part = f"/{wanted['subresource']}" if "subresource" in wanted else ""
    return wanted["verb"], wanted["group"], wanted["resource"] + part


@contextmanager
def serving(cluster: Cluster, certificate: Path | None = None) -> Iterator[Cluster]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            code, answer = cluster.answer(self.command, self.path, token, body)
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _serve

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    cluster.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def own_certificate(path: Path) -> Path:
    """Key and certificate of a server that nobody vouches for but itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "updraft-test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def kubeconfig(path: Path, server: str, *contexts: str, token: str = "good", **more: Any) -> Path:
    names = contexts or ("here",)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **more.pop("trust", {})}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in names],
        "current-context": names[0],
        **more,
    }
    path.write_text(json.dumps(document))
    return path
