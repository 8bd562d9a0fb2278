"""What KWOK is told: how nodes and pods that nobody runs come to look like those that a kubelet runs.

Pods run as soon as they have a node, init containers done and native sidecars running. One that is annotated `END`
ends with exit code 0: where it has a sidecar its program first, the sidecar `SIDECAR_SECONDS` later, as if it stored.
Pure; called by `kwok`.
"""

from __future__ import annotations

from typing import Any

END = "updraft.test/end"
SIDECAR_SECONDS = 1.0
MANAGED = ("kwok.x-k8s.io/node", "fake")  # annotation and taint of the nodes
FAKE_LABEL = "updraft.test/fake"

_GONE = ".metadata.deletionTimestamp"
_PHASE = ".status.phase"
_ENDED = ".status.containerStatuses.[].state.terminated"
_SIDECAR = '.spec.initContainers.[] | select( .restartPolicy == "Always" ) | .name'
_ASKED = f'.metadata.annotations["{END}"]'

_NODE = """\
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
  message: {{ .message | Quote }}
  reason: {{ .reason | Quote }}
  status: {{ .status | Quote }}
  type: {{ .type | Quote }}
{{ end }}
addresses:
- address: {{ NodeIP | Quote }}
  type: InternalIP
- address: {{ NodeName | Quote }}
  type: Hostname
daemonEndpoints:
  kubeletEndpoint:
    Port: {{ NodePort }}
allocatable: &amounts
  cpu: 1k
  memory: 1Ti
  pods: 1k
capacity: *amounts
nodeInfo:
  architecture: amd64
  bootID: ""
  containerRuntimeVersion: kwok
  kernelVersion: kwok
  kubeProxyVersion: ""
  kubeletVersion: %(version)s
  machineID: ""
  operatingSystem: linux
  osImage: kwok
  systemUUID: ""
phase: Running
"""

_STATUS = """\
- containerID: {{ printf "containerd://%%s" $item.name | Quote }}
  image: {{ $item.image | Quote }}
  imageID: {{ printf "sha256:%%s" $item.name | Quote }}
  lastState: {}
  name: {{ $item.name | Quote }}
  ready: %(ready)s
  restartCount: 0
  started: %(started)s
  state:
    %(state)s
"""
_RUNS = "running: { startedAt: {{ $now | Quote }} }"
_ENDS = (
    "terminated: { exitCode: 0, reason: Completed, startedAt: {{ $root.status.startTime | Quote }}, "
    "finishedAt: {{ $now | Quote }} }"
)
_HEAD = "{{ $now := Now }}\n{{ $root := . }}\n"


def stages(kubelet_version: str) -> list[dict[str, Any]]:
    """Every stage, as KWOK's configuration file holds them."""
    alive, ended = (_ENDED, "DoesNotExist"), (_ENDED, "Exists")
    living, running = (_GONE, "DoesNotExist"), (_PHASE, "In", "Running")
    asked, stores, alone = (_ASKED, "Exists"), (_SIDECAR, "Exists"), (_SIDECAR, "DoesNotExist")
    ready = ('.status.conditions.[] | select( .type == "Ready" ) | .status', "NotIn", "True")
    main, both = _containers(_ENDS), _containers(_ENDS) + _init_containers(_ENDS)
    return [
        _stage("node-is-ready", "Node", [ready], status=_NODE % {"version": kubelet_version}),
        _stage("pod-runs", "Pod", [living, (_PHASE, "In", "Pending"), alive], status=_HEAD + _running()),
        _stage("program-ends", "Pod", [living, running, asked, stores, alive], status=_HEAD + main),
        _stage(
            "sidecar-ends",
            "Pod",
            [living, running, stores, ended],
            status=_HEAD + both + _over(),
            delay_seconds=SIDECAR_SECONDS,
        ),
        _stage("pod-ends", "Pod", [living, running, asked, alone, alive], status=_HEAD + main + _over()),
        _stage("pod-goes", "Pod", [(_GONE, "Exists")], delete=True),
    ]


def _running() -> str:
    conditions = "".join(
        f'- {{ lastProbeTime: null, lastTransitionTime: {{{{ $now | Quote }}}}, status: "True", type: {kind} }}\n'
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    )
    pod = ".metadata.uid .metadata.name .metadata.namespace"
    address = "hostIP: {{ NodeIPWith .spec.nodeName | Quote }}\n"
    address += f"podIP: {{{{ PodIPWith .spec.nodeName false {pod} | Quote }}}}\n"
    times = "phase: Running\nstartTime: {{ $now | Quote }}\n"
    begun = _ENDS.replace("$root.status.startTime", "$now")
    return f"conditions:\n{conditions}{address}{times}{_containers(_RUNS)}{_init_containers(begun, _RUNS)}"


def _over() -> str:
    conditions = "".join(
        f"- {{ lastProbeTime: null, lastTransitionTime: {{{{ $now | Quote }}}}, reason: PodCompleted, "
        f'status: "False", type: {kind} }}\n'
        for kind in ("Ready", "ContainersReady")
    )
    return f"conditions:\n{conditions}phase: Succeeded\n"


def _containers(state: str) -> str:
    return f"containerStatuses:\n{{{{ range $index, $item := .spec.containers }}}}\n{_status(state)}{{{{ end }}}}\n"


def _init_containers(state: str, sidecar: str | None = None) -> str:
    """`sidecar`: the state of those that run beside the program, where it is another."""
    each = _status(state)
    if sidecar is not None:
        beside = f'{{{{ if eq (or $item.restartPolicy "") "Always" }}}}\n{_status(sidecar)}'
        each = f"{beside}{{{{ else }}}}\n{each}{{{{ end }}}}\n"
    body = f"initContainerStatuses:\n{{{{ range $index, $item := .spec.initContainers }}}}\n{each}{{{{ end }}}}\n"
    return f"{{{{ if .spec.initContainers }}}}\n{body}{{{{ end }}}}\n"


def _status(state: str) -> str:
    runs = state == _RUNS
    ready = "true" if runs else "false"
    return _STATUS % {"ready": ready, "started": ready, "state": state}


def _stage(
    name: str,
    kind: str,
    selects: list[tuple[str, ...]],
    *,
    status: str | None = None,
    delete: bool = False,
    delay_seconds: float = 0.0,
) -> dict[str, Any]:
    """`selects`: key, operator and values of each requirement."""
    matches = [
        {"key": key, "operator": operator, **({"values": values} if values else {})}
        for key, operator, *values in selects
    ]
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": matches},
        "next": {"delete": True} if delete else {"statusTemplate": status},
    }
    if delay_seconds:
        spec["delay"] = {"durationMilliseconds": int(1000 * delay_seconds)}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}
