"""Validate objects and fill in defaults. Pure: it takes an object and returns a complete one, or raises StatusError.

All wrong fields of an object are reported at once. Fields that the local node cannot honour on one machine are refused
too, if a program would notice (other volume types, services with an address).
"""

from __future__ import annotations

import base64
import binascii
import copy
import re
from collections.abc import Callable
from typing import Any

from updraft_learner.quantity import parse_quantity
from updraft_localnode import policies
from updraft_localnode.affinity import OPERATORS, TAINT_EFFECTS
from updraft_localnode.errors import Json, StatusCause, bad_request, invalid
from updraft_localnode.resources import GPU, is_sidecar
from updraft_localnode.store import api_version

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(rf"^{_LABEL}$")
_DNS_SUBDOMAIN = re.compile(rf"^{_LABEL}(?:\.{_LABEL})*$")
_QUALIFIED = re.compile(r"^[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_ENV_NAME = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")
_SECRET_KEY = re.compile(r"^[-._a-zA-Z0-9]+$")
VOLUME_TYPES = ("emptyDir", "secret", "persistentVolumeClaim")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character"
)


class _Causes(list[StatusCause]):
    """A collector of wrong fields."""

    def wrong(self, field: str, value: object, why: str) -> None:
        self.append(StatusCause("FieldValueInvalid", f'Invalid value: "{value}": {why}', field))

    def required(self, field: str, why: str = "") -> None:
        self.append(StatusCause("FieldValueRequired", f"Required value{': ' + why if why else ''}", field))

    def unsupported(self, field: str, value: object, allowed: tuple[str, ...]) -> None:
        listed = ", ".join(f'"{a}"' for a in allowed)
        message = f'Unsupported value: "{value}": supported values: {listed}'
        self.append(StatusCause("FieldValueNotSupported", message, field))

    def duplicate(self, field: str, value: object) -> None:
        self.append(StatusCause("FieldValueDuplicate", f'Duplicate value: "{value}"', field))

    def dns_label(self, field: str, value: str) -> None:
        if len(value) > 63 or not _DNS_LABEL.match(value):
            self.wrong(field, value, _LABEL_RULE if len(value) <= 63 else "must be no more than 63 characters")

    def integer(self, field: str, value: object, low: int, high: int | None = None) -> None:
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
        if not ok:
            limits = f"greater than or equal to {low}" if high is None else f"between {low} and {high}"
            self.wrong(field, value, f"must be {limits}")


def check_labels(causes: _Causes, field: str, labels: Json) -> None:
    for key, value in labels.items():
        prefix, _, name = key.rpartition("/")
        bad_prefix = "/" in key and not _DNS_SUBDOMAIN.match(prefix)
        if bad_prefix or len(name) > 63 or not _QUALIFIED.match(name):
            causes.wrong(field, key, "name part must be alphanumerics, '-', '_' or '.', 63 characters or fewer")
        if not isinstance(value, str):
            causes.wrong(field, value, f"the value of {key} must be text")
        elif value and (len(value) > 63 or not _QUALIFIED.match(value)):
            rule = "must be empty or alphanumerics, '-', '_' or '.', start and end alphanumeric, 63 characters or fewer"
            causes.wrong(field, value, f"a valid label {rule}")


def _check_metadata(causes: _Causes, obj: Json) -> None:
    meta = obj["metadata"]
    name = meta.get("name")
    if not name:
        causes.required("metadata.name", "name or generateName is required")
    elif len(name) > 253 or not _DNS_SUBDOMAIN.match(name):
        causes.wrong("metadata.name", name, _SUBDOMAIN_RULE)
    check_labels(causes, "metadata.labels", meta.get("labels") or {})
    for i, owner in enumerate(meta.get("ownerReferences") or []):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                causes.required(f"metadata.ownerReferences[{i}].{field}")


def _check_resources(causes: _Causes, field: str, resources: Json) -> None:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name, text in limits.items():
        limit = parse_quantity(str(text))
        if limit < 0:
            causes.wrong(f"{field}.limits[{name}]", text, "must be greater than or equal to 0")
        if name in requests and parse_quantity(str(requests[name])) > limit:
            why = f"must be less than or equal to {name} limit of {text}"
            causes.wrong(f"{field}.requests", requests[name], why)
    for name, text in requests.items():
        if parse_quantity(str(text)) < 0:
            causes.wrong(f"{field}.requests[{name}]", text, "must be greater than or equal to 0")
    if GPU in requests and str(requests[GPU]) != str(limits.get(GPU)):
        causes.wrong(f"{field}.requests", requests[GPU], f"must be equal to {GPU} limit of {limits.get(GPU, 0)}")


def _check_quantities(spec: Json) -> None:
    """Check quantities. Kubernetes cannot even decode a bad one: 400, not 422."""
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        for kind in ("requests", "limits"):
            for name, text in ((container.get("resources") or {}).get(kind) or {}).items():
                try:
                    parse_quantity(str(text))
                except ValueError as exc:
                    raise bad_request(f"resources.{kind}.{name} of container {container.get('name')}: {exc}") from exc


def _check_env(causes: _Causes, field: str, env: list[Json]) -> None:
    for i, item in enumerate(env):
        name = item.get("name")
        if not name:
            causes.required(f"{field}[{i}].name")
        elif not _ENV_NAME.match(name):
            causes.wrong(f"{field}[{i}].name", name, "must consist of alphabetic characters, digits, '_', '-', or '.'")
        source = item.get("valueFrom")
        if source and item.get("value"):
            causes.wrong(f"{field}[{i}].valueFrom", "", "may not be specified when `value` is not empty")
        if source and not (source.get("secretKeyRef") or source.get("fieldRef")):
            allowed = ("secretKeyRef", "fieldRef")
            causes.unsupported(f"{field}[{i}].valueFrom", ", ".join(k for k, v in source.items() if v), allowed)


def _check_container(causes: _Causes, field: str, container: Json, volumes: set[str]) -> None:
    name = container.get("name")
    if not name:
        causes.required(f"{field}.name")
    else:
        causes.dns_label(f"{field}.name", name)
    if not container.get("image"):
        causes.required(f"{field}.image")
    _check_env(causes, f"{field}.env", container.get("env") or [])
    for i, port in enumerate(container.get("ports") or []):
        causes.integer(f"{field}.ports[{i}].containerPort", port.get("containerPort"), 1, 65535)
    _check_resources(causes, f"{field}.resources", container.get("resources") or {})
    paths: set[str] = set()
    for i, mount in enumerate(container.get("volumeMounts") or []):
        where = f"{field}.volumeMounts[{i}]"
        if mount.get("name") not in volumes:
            message = f'Not found: "{mount.get("name")}"'
            causes.append(StatusCause("FieldValueNotFound", message, f"{where}.name"))
        path = mount.get("mountPath")
        if not path:
            causes.required(f"{where}.mountPath")
        elif path in paths:
            causes.wrong(f"{where}.mountPath", path, "must be unique")
        elif not path.startswith("/") or path == "/":
            causes.wrong(f"{where}.mountPath", path, "the local node needs an absolute path other than /")
        paths.add(path or "")
        if ".." in str(mount.get("subPath") or "").split("/"):
            causes.wrong(f"{where}.subPath", mount["subPath"], "must not contain '..'")


def _check_volumes(causes: _Causes, volumes: list[Json]) -> set[str]:
    names: set[str] = set()
    for i, volume in enumerate(volumes):
        name = volume.get("name") or ""
        if not name:
            causes.required(f"spec.volumes[{i}].name")
        elif name in names:
            causes.duplicate(f"spec.volumes[{i}].name", name)
        names.add(name)
        kinds = [k for k, v in volume.items() if k != "name" and v is not None]
        if len(kinds) != 1 or kinds[0] not in VOLUME_TYPES:
            causes.unsupported(f"spec.volumes[{i}]", ", ".join(kinds) or "no type", VOLUME_TYPES)
        elif kinds[0] == "secret" and not volume["secret"].get("secretName"):
            causes.required(f"spec.volumes[{i}].secret.secretName")
        elif kinds[0] == "persistentVolumeClaim" and not volume["persistentVolumeClaim"].get("claimName"):
            causes.required(f"spec.volumes[{i}].persistentVolumeClaim.claimName")
    return names


def _check_selector_terms(causes: _Causes, field: str, term: Json) -> None:
    for kind in ("matchExpressions", "matchFields"):
        for i, expression in enumerate(term.get(kind) or []):
            where = f"{field}.{kind}[{i}]"
            operator, values = expression.get("operator"), expression.get("values") or []
            if not expression.get("key"):
                causes.required(f"{where}.key")
            if operator not in OPERATORS:
                causes.unsupported(f"{where}.operator", operator, OPERATORS)
            elif operator in ("In", "NotIn") and not values:
                causes.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            elif operator in ("Gt", "Lt") and len(values) != 1:
                causes.required(f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")


def _check_placement(causes: _Causes, spec: Json) -> None:
    """Check node affinity and tolerations."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    field = "spec.affinity.nodeAffinity"
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        where = f"{field}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        if not required.get("nodeSelectorTerms"):
            causes.required(where, "must have at least one node selector term")
        for i, term in enumerate(required.get("nodeSelectorTerms") or []):
            _check_selector_terms(causes, f"{where}[{i}]", term)
    for i, preferred in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []):
        where = f"{field}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        causes.integer(f"{where}.weight", preferred.get("weight"), 1, 100)
        _check_selector_terms(causes, f"{where}.preference", preferred.get("preference") or {})
    for i, toleration in enumerate(spec.get("tolerations") or []):
        where, operator = f"spec.tolerations[{i}]", toleration.get("operator") or "Equal"
        if operator not in ("Equal", "Exists"):
            causes.unsupported(f"{where}.operator", operator, ("Equal", "Exists"))
        if not toleration.get("key") and operator != "Exists":
            causes.wrong(f"{where}.operator", operator, "operator must be Exists when `key` is empty")
        effect, seconds = toleration.get("effect"), toleration.get("tolerationSeconds")
        if effect and effect not in TAINT_EFFECTS:
            causes.unsupported(f"{where}.effect", effect, TAINT_EFFECTS)
        if seconds is not None and effect != "NoExecute":
            causes.wrong(f"{where}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        if seconds is not None:
            causes.integer(f"{where}.tolerationSeconds", seconds, -(2**63))


def _check_identity(causes: _Causes, spec: Json) -> None:
    """Refuse what only a cluster has: accounts with rights of their own, and registries to pull from."""
    for field in ("serviceAccountName", "serviceAccount"):
        if spec.get(field) not in (None, "", "default"):
            causes.unsupported(f"spec.{field}", spec[field], ("default",))
    if spec.get("imagePullSecrets"):
        names = ", ".join(str(each.get("name")) for each in spec["imagePullSecrets"])
        causes.wrong("spec.imagePullSecrets", names, "the local node has its images from a catalogue and pulls none")


def _check_pod(causes: _Causes, pod: Json) -> None:
    spec = pod["spec"]
    _check_quantities(spec)
    volumes = _check_volumes(causes, spec.get("volumes") or [])
    if not spec.get("containers"):
        causes.required("spec.containers")
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(group) or []):
            field = f"spec.{group}[{i}]"
            _check_container(causes, field, container, volumes)
            if container.get("name") in names:
                causes.duplicate(f"{field}.name", container["name"])
            names.add(container.get("name") or "")
            policy = container.get("restartPolicy")
            if policy is not None and not (group == "initContainers" and is_sidecar(container)):
                causes.unsupported(f"{field}.restartPolicy", policy, ("Always",) if group == "initContainers" else ())
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        causes.unsupported("spec.restartPolicy", spec["restartPolicy"], ("Always", "OnFailure", "Never"))
    causes.integer("spec.terminationGracePeriodSeconds", spec["terminationGracePeriodSeconds"], 0)
    if spec.get("activeDeadlineSeconds") is not None:
        causes.integer("spec.activeDeadlineSeconds", spec["activeDeadlineSeconds"], 1, 2**31 - 1)
    _check_placement(causes, spec)
    _check_identity(causes, spec)
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            causes.dns_label(f"spec.{field}", spec[field])


def _check_service(causes: _Causes, service: Json) -> None:
    causes.dns_label("metadata.name", service["metadata"].get("name") or "")
    spec = service["spec"]
    if spec.get("clusterIP") != "None":
        causes.unsupported("spec.clusterIP", spec.get("clusterIP") or "", ("None",))
    for i, port in enumerate(spec.get("ports") or []):
        causes.integer(f"spec.ports[{i}].port", port.get("port"), 1, 65535)


def _check_secret(causes: _Causes, secret: Json) -> None:
    for key, value in (secret.get("data") or {}).items():
        if not _SECRET_KEY.match(key):
            causes.wrong(f"data[{key}]", key, "a valid config key must consist of alphanumerics, '-', '_' or '.'")
        try:
            base64.b64decode(str(value), validate=True)
        except (binascii.Error, ValueError):
            # The message must not repeat the value, which is secret.
            raise bad_request(f"data.{key} of secret {secret['metadata'].get('name')} is not base64") from None


def _default_pod(pod: Json) -> None:
    spec = pod["spec"]
    for name, value in {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        "securityContext": {},
    }.items():
        if spec.get(name) is None:
            spec[name] = value
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        resources = container.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        container["resources"] = resources
        for name, text in {
            "imagePullPolicy": "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        }.items():
            container[name] = container.get(name) or text
    spec.pop("nodeName", None)
    pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}


def _default_service(service: Json) -> None:
    for port in service["spec"].get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    service["spec"].setdefault("type", "ClusterIP")
    service["spec"].setdefault("clusterIPs", ["None"])
    service["status"] = {"loadBalancer": {}}


def _default_secret(secret: Json) -> None:
    plain: dict[str, Any] = secret.pop("stringData", None) or {}
    encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
    secret["data"] = {**(secret.get("data") or {}), **encoded}
    secret.setdefault("type", "Opaque")


def _default_namespace(namespace: Json) -> None:
    namespace["spec"] = {"finalizers": ["kubernetes"]}
    namespace["status"] = {"phase": "Active"}
    name = namespace["metadata"].get("name")
    namespace["metadata"]["labels"] = {
        **(namespace["metadata"].get("labels") or {}),
        "kubernetes.io/metadata.name": name,
    }


def _check_namespace(causes: _Causes, namespace: Json) -> None:
    causes.dns_label("metadata.name", namespace["metadata"].get("name") or "")


_RULES: dict[str, tuple[str, Callable[[Json], None], Callable[[_Causes, Json], None]]] = {
    "pods": ("Pod", _default_pod, _check_pod),
    "services": ("Service", _default_service, _check_service),
    "secrets": ("Secret", _default_secret, _check_secret),
    "namespaces": ("Namespace", _default_namespace, _check_namespace),
    "networkpolicies": ("NetworkPolicy", policies.default_network_policy, policies.check_network_policy),
    "poddisruptionbudgets": ("PodDisruptionBudget", policies.default_budget, policies.check_budget),
}


def complete(resource: str, body: Any) -> Json:
    """Return the object as it will be stored. Raises StatusError 400 or 422."""
    kind, default, check = _RULES[resource]
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object of kind {kind}")
    if body.get("kind") not in (None, "", kind):
        raise bad_request(f'the object provided is unrecognized: kind "{body["kind"]}" is not {kind}')
    obj: Json = {**copy.deepcopy(body), "apiVersion": api_version(resource), "kind": kind}
    obj["metadata"] = obj.get("metadata") or {}
    if resource not in ("secrets", "namespaces"):
        obj["spec"] = obj.get("spec") or {}
    try:
        default(obj)
        causes = _Causes()
        _check_metadata(causes, obj)
        check(causes, obj)
    except (AttributeError, TypeError) as exc:
        raise bad_request(
            f"{kind} in version {api_version(resource)} cannot be handled: a field has the wrong JSON type ({exc})"
        ) from exc
    if causes:
        raise invalid(kind, obj["metadata"].get("name") or "", list(dict.fromkeys(causes)))
    return obj


def check_patched_labels(obj: Json) -> None:
    """Raise StatusError 422 if the labels of a patched object are not valid."""
    causes = _Causes()
    check_labels(causes, "metadata.labels", obj["metadata"].get("labels") or {})
    if causes:
        raise invalid(obj["kind"], obj["metadata"]["name"], list(causes))
