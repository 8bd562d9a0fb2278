"""Check whether a cluster can run jobs, and say what to do if it cannot: log-in, version, namespaces, rights, GPUs.

`examine` checks everything, for `updraft doctor`. `require` checks what a job needs before it waits in the queue, with
four requests. Neither changes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from updraft.exceptions import RefusedError
from updraft.kubernetes import calls, errors, gang, rbac
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.taints import GPU_TAINT, Toleration, untolerated

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

# Sidecars are init containers with restartPolicy Always, which API servers and kubelets support by default from 1.29 on
# (KEP-753, beta). Older ones refuse such a pod, or wait for ever for its sidecar to end.
OLDEST = (1, 29)
TIMEOUT_SECONDS = (5.0, 10.0)  # connect, answer
UPGRADE_KUBELETS = "upgrade their kubelets, or cordon them"
ASK_ADMINISTRATOR = "ask the cluster's administrator for them: `kubectl apply -k deploy/kustomize` holds the Role"
DISCOVERY = (
    "ask the cluster's administrator for the ClusterRoles system:discovery and system:basic-user for its account"
)
OTHER_PODS = ("list", "", "pods")  # in all namespaces; the planner does without
NEW_TOKEN = "put a valid token into the kubeconfig (`kubectl create token updraft --namespace updraft-system`)"


@dataclass(frozen=True)
class PreflightFinding:
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


class _Stop(Exception):
    """No further check is possible."""

    def __init__(self, finding: PreflightFinding) -> None:
        super().__init__(finding.detail)
        self.finding = finding


def examine(
    core: CoreV1Api, namespaces: Sequence[str], gpu_types: Mapping[str, str] | None = None
) -> list[PreflightFinding]:
    """Run every check. `gpu_types`: each requested type of GPU, and who requests it."""
    found: list[PreflightFinding] = []
    try:
        for finding in _findings(core, namespaces, gpu_types or {}):
            found.append(finding)
    except _Stop as stop:
        found.append(stop.finding)
    return found


def answers(core: CoreV1Api) -> bool:
    """Return whether a Kubernetes API server is there, whatever it says."""
    try:
        _ask(core, core.get_code)
    except _Stop as stop:
        return isinstance(stop.__cause__, errors.ApiError)
    return True


def _findings(core: CoreV1Api, namespaces: Sequence[str], gpu_types: Mapping[str, str]) -> Iterator[PreflightFinding]:
    server = core.api_client.configuration.host
    version = str(_ask(core, core.get_code).get("gitVersion") or "")
    yield PreflightFinding("cluster", True, f"{server} answers")
    yield _version(version)
    may_list = _may(core, "list", "", "nodes", None)  # the first request that identifies the platform's account
    yield PreflightFinding("cluster's log-in", True, "accepted")
    for namespace in namespaces:
        yield _namespace(core, namespace)
        yield _rights(core, namespace)
    if may_list:
        nodes = _ask(core, core.list_node)["items"]
        yield _nodes(nodes)
        yield _gpus(nodes, gpu_types)
        if not _may(core, *OTHER_PODS, None):
            told = "may not list the pods of all namespaces, so that what other workloads take is not counted"
            yield PreflightFinding("other pods", True, told)
    else:
        yield PreflightFinding("nodes", False, "may not list nodes, so that what fits is unknown", ASK_ADMINISTRATOR)


def _ask(
    core: CoreV1Api, call: Callable[..., Any], *args: Any, ok: tuple[type[errors.ApiError], ...] = ()
) -> dict[str, Any]:
    """Make one request without retries. Raises an ApiError in `ok`, _Stop for anything else that is no answer."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    server = core.api_client.configuration.host
    try:
        answer = call(*args, _request_timeout=TIMEOUT_SECONDS)
    except ApiException as exc:
        error = errors.error_of(exc)
        if isinstance(error, ok):
            raise error from exc
        raise _Stop(_refused(server, error)) from error
    except (HTTPError, OSError) as exc:
        raise _Stop(_unreachable(server, exc)) from exc
    except AttributeError as exc:
        if (handshake := calls.failed_handshake(exc)) is not None:
            raise _Stop(_unreachable(server, handshake)) from exc
        raise _Stop(_no_cluster(server)) from exc
    except (ValueError, TypeError) as exc:  # the client could not parse the answer
        raise _Stop(_no_cluster(server)) from exc
    return dict(core.api_client.sanitize_for_serialization(answer))


def _refused(server: str, error: errors.ApiError) -> PreflightFinding:
    match error:
        case errors.UnauthorizedError():
            detail = f"{server} does not accept the token or certificate (401); it may have run out"
            return PreflightFinding("cluster's log-in", False, detail, NEW_TOKEN)
        case errors.ForbiddenError():  # forbidden: something that by default every account may do
            detail = f"{server} does not even tell its version, or what the platform may do (403)"
            return PreflightFinding("cluster's log-in", False, detail, DISCOVERY)
        case errors.TransientError():
            advice = "look at the API server, or try again later"
            return PreflightFinding("cluster", False, f"{server} answers {error.status}", advice)
    return _no_cluster(server)


def _no_cluster(server: str) -> PreflightFinding:
    advice = "correct the server's address in the kubeconfig"
    return PreflightFinding("cluster", False, f"{server} does not answer as Kubernetes does", advice)


def _unreachable(server: str, exc: Exception) -> PreflightFinding:
    reason = str(getattr(exc, "reason", None) or exc)
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        advice = "put the certificate of its authority into the kubeconfig (certificate-authority-data)"
        return PreflightFinding("cluster", False, f"the certificate of {server} is not trusted", advice)
    advice = "correct the server's address in the kubeconfig, or start the cluster"
    return PreflightFinding("cluster", False, f"{server} cannot be reached ({type(exc).__name__})", advice)


def too_old(version: str) -> str | None:
    """Return why this version cannot run jobs; None if it can. A version that cannot be read is not judged."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) >= OLDEST:
        return None
    return f"Kubernetes {version} is too old: sidecars need {OLDEST[0]}.{OLDEST[1]} or later"


def _version(version: str) -> PreflightFinding:
    problem = too_old(version)
    advice = f"upgrade the cluster to {OLDEST[0]}.{OLDEST[1]} or later, or use another one" if problem else ""
    return PreflightFinding("Kubernetes version", problem is None, problem or version, advice)


def _namespace(core: CoreV1Api, namespace: str) -> PreflightFinding:
    name = f"namespace {namespace}"
    try:
        found = _ask(core, core.read_namespace, namespace, ok=(errors.ForbiddenError, errors.ObjectNotFoundError))
    except errors.ForbiddenError:
        return PreflightFinding(name, False, "does not exist, or nothing was granted there", _make(namespace))
    except errors.ObjectNotFoundError:
        if _may(core, "create", "", "namespaces", None):
            return PreflightFinding(name, True, "is made with the first job")
        return PreflightFinding(name, False, "does not exist", _make(namespace))
    leaving = bool(found["metadata"].get("deletionTimestamp"))
    return PreflightFinding(
        name, not leaving, "is being deleted" if leaving else "exists", _make(namespace) if leaving else ""
    )


def _make(namespace: str) -> str:
    return f"`kubectl create namespace {namespace}`, or `kubectl apply -k deploy/kustomize`, which gives its rights too"


def _rights(core: CoreV1Api, namespace: str) -> PreflightFinding:
    name, rights = f"rights in {namespace}", list(rbac.each(rbac.NAMESPACED))
    missing = [right for right in rights if not _may(core, *right, namespace)]
    if not missing:
        return PreflightFinding(name, True, f"has all {len(rights)} that jobs need")
    if {resource for _, _, resource in missing} <= rbac.ONLY_WITH.keys():
        only = "; ".join(rbac.ONLY_WITH[resource] for _, _, resource in missing)
        return PreflightFinding(name, True, f"may not {_listed(missing)}: {only}")
    return PreflightFinding(name, False, f"may not {_listed(missing)}", ASK_ADMINISTRATOR)


def _listed(rights: Sequence[tuple[str, str, str]]) -> str:
    return ", ".join(f"{verb} {resource}{'.' if group else ''}{group}" for verb, group, resource in rights)


def _may(core: CoreV1Api, verb: str, group: str, resource: str, namespace: str | None) -> bool:
    answer = _ask(core, core.create_self_subject_access_review, _review(verb, group, resource, namespace))
    return bool((answer.get("status") or {}).get("allowed"))


def _review(verb: str, group: str, resource: str, namespace: str | None) -> dict[str, Any]:
    kind, _, part = resource.partition("/")
    wanted = {"verb": verb, "group": group, "resource": kind}
    wanted |= {"subresource": part} if part else {}
    wanted |= {"namespace": namespace} if namespace else {}
    return {"spec": {"resourceAttributes": wanted}}


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> PreflightFinding:
    if not nodes:
        return PreflightFinding("nodes", False, "the cluster has none", "add nodes")
    if (problem := _old_kubelets(nodes)) is not None:
        return PreflightFinding("nodes", False, problem, UPGRADE_KUBELETS)
    tainted = [
        f"{node['metadata']['name']} ({', '.join(keys)})" for node in nodes if (keys := _taints_of_the_site(node))
    ]
    closed = f"; for learners only where UPDRAFT_TOLERATIONS names the taint: {', '.join(tainted)}" if tainted else ""
    advice = "" if len(tainted) < len(nodes) else "name a taint there, or remove it"
    return PreflightFinding("nodes", not advice, f"{len(nodes)}{closed}", advice)


def _old_kubelets(nodes: Sequence[Mapping[str, Any]], tolerated: Sequence[Toleration] = ()) -> str | None:
    """Return which nodes that learners may get have kubelets that are too old: a pod there would wait for its sidecar's
    end, which never comes."""
    old = [
        f"{node['metadata']['name']} ({version})"
        for node in nodes
        if not (node.get("spec") or {}).get("unschedulable")
        and not _taints_of_the_site(node, tolerated)
        and too_old(version := str(((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or ""))
    ]
    return f"too old for sidecars, which need {OLDEST[0]}.{OLDEST[1]} or later: {', '.join(old)}" if old else None


def _taints_of_the_site(node: Mapping[str, Any], tolerated: Sequence[Toleration] = ()) -> list[str]:
    """Return the keys of taints that keep learners away, without Kubernetes' own, which follow the node's state."""
    keys = [str(taint["key"]) for taint in untolerated(node, (GPU_TAINT, *tolerated))]
    return [key for key in keys if not key.startswith("node.kubernetes.io/")]


def _gpus(nodes: Sequence[Mapping[str, Any]], asked: Mapping[str, str]) -> PreflightFinding:
    """Check the types of GPU. `asked`: type of GPU, and who requests it."""
    counted: dict[str, int] = {}
    for node in capacity_from_nodes(nodes).nodes:
        if node.gpus:
            counted[node.gpu_type or ""] = counted.get(node.gpu_type or "", 0) + node.gpus
    absent = [f"{kind} (asked for by {who})" for kind, who in sorted(asked.items()) if kind not in counted]
    there = ", ".join(f"{number} x {kind or 'of no named type'}" for kind, number in sorted(counted.items())) or "none"
    if absent:
        advice = "ask for a type that is there, or name the nodes': `kubectl label node NODE updraft.dev/gpu-type=TYPE`"
        return PreflightFinding("GPUs", False, f"no node has {', '.join(absent)}; there is {there}", advice)
    return PreflightFinding("GPUs", True, there)


# --- at submission --------------------------------------------------------------------------------------------------


def require(
    core: CoreV1Api,
    namespace: str,
    rights: Sequence[rbac.Right] = rbac.NAMESPACED,
    tolerations: Sequence[Toleration] = (),
) -> None:
    """Raise RefusedError if the cluster cannot run the job, UnavailableError if it does not answer.

    `rights`: the rights that the platform uses there; `tolerations`: the site's, for learners.
    """
    body = {"spec": {"namespace": namespace}}
    ask = core.create_self_subject_rules_review
    reviewed = calls.call("tell what the platform may do", ask, body, ok=(errors.UnauthorizedError,))
    if reviewed is None:
        raise RefusedError(
            f"the cluster at {core.api_client.configuration.host} does not accept the platform's token or certificate "
            f"(401); it may have run out: {NEW_TOKEN}"
        )
    version = str(_plain(core, calls.call("tell its version", core.get_code)).get("gitVersion") or "")
    if (problem := too_old(version)) is not None:
        raise RefusedError(f"{problem}; run jobs on a newer cluster")
    gang.ensure_namespace(core, namespace)
    rules = (_plain(core, reviewed).get("status") or {}).get("resourceRules") or []
    needed: list[tuple[tuple[str, str, str], str | None]] = [(right, namespace) for right in rbac.each(rights)]
    needed += [(right, None) for right in rbac.each(rbac.CLUSTER) if right != OTHER_PODS]
    # The list of rules may be incomplete: ask for each missing right by name.
    missing = [right for right, where in needed if not _allowed(rules, *right) and not _told(core, right, where)]
    if len(missing) >= len(list(rbac.each(rights))):
        raise RefusedError(
            f"namespace {namespace} does not exist, or nothing was granted to the platform there; {_make(namespace)}"
        )
    if missing:
        raise RefusedError(f"the platform may not {_listed(missing)} in namespace {namespace}; {ASK_ADMINISTRATOR}")
    nodes = _plain(core, calls.call("list nodes", core.list_node, resource_version="0"))["items"]
    if (problem := _old_kubelets(nodes, tolerations)) is not None:
        raise RefusedError(f"nodes {problem}; {UPGRADE_KUBELETS}")


def _plain(core: CoreV1Api, answer: Any) -> dict[str, Any]:
    return dict(core.api_client.sanitize_for_serialization(answer))


def _allowed(rules: Sequence[Mapping[str, Any]], verb: str, group: str, resource: str) -> bool:
    def covers(rule: Mapping[str, Any], field: str, value: str) -> bool:
        return not {value, "*"}.isdisjoint(rule.get(field) or ())

    return any(
        covers(rule, "verbs", verb)
        and covers(rule, "apiGroups", group)
        and covers(rule, "resources", resource)
        and not rule.get("resourceNames")
        for rule in rules
    )


def _told(core: CoreV1Api, right: tuple[str, str, str], namespace: str | None) -> bool:
    review = _review(*right, namespace)
    answer = calls.call("tell what the platform may do", core.create_self_subject_access_review, review)
    return bool((_plain(core, answer).get("status") or {}).get("allowed"))
