"""Judge a manifest's section `pod` by the policy of its tenant. Pure.

Every gate calls `judge`: the routes that check a manifest, the task that admits a job, and each launch of its pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from updraft.manifest.errors import FieldError, join_path, one_of, show, shown_key
from updraft.manifest.pod import Pod
from updraft.pod_policy import PodPolicy, covers, is_reserved

ASK = "or ask the platform's operator to allow it in UPDRAFT_POD_POLICY"


def judge(pod: Pod | None, policy: PodPolicy) -> list[FieldError]:
    """Return an error for each value in the section that the policy does not allow."""
    if pod is None:
        return []
    return [
        *_selectors(pod, policy),
        *_tolerations(pod, policy),
        *(
            error
            for number, volume in enumerate(pod.volumes)
            for error in _named(f"pod.volumes[{number}].claim", volume.claim, policy.claims)
        ),
        *_named("pod.service_account", pod.service_account, policy.service_accounts),
        *_keys("pod.labels", pod.labels, policy.labels),
        *_keys("pod.annotations", pod.annotations, policy.annotations),
        *(
            error
            for number, name in enumerate(pod.image_pull_secrets)
            for error in _named(f"pod.image_pull_secrets[{number}]", name, policy.image_pull_secrets)
        ),
    ]


def _refused(path: str, value: str, problem: str, allowed: Iterable[str]) -> FieldError:
    listed = sorted(allowed)
    return FieldError(path, show(value), problem, f"{one_of(listed)}, {ASK}" if listed else f"nothing here, {ASK}")


def _selectors(pod: Pod, policy: PodPolicy) -> Iterator[FieldError]:
    for key, value in pod.node_selector.items():
        path = join_path("pod.node_selector", shown_key(key))
        entries = [entry for entry in policy.node_selector if covers(entry, key)]
        if is_reserved(key):
            allowed = "resources.gpu_type for the type of GPU, and no other label of the platform"
            yield FieldError(path, show(value), f"{show(key)} is the platform's own label", allowed)
        elif not entries:
            yield _refused(path, value, f"{show(key)} is not a label that this tenant may select", policy.node_selector)
        elif not any(covers(each, value) for entry in entries for each in policy.node_selector[entry]):
            values = {each for entry in entries for each in policy.node_selector[entry]}
            yield _refused(path, value, f"{show(value)} is not a value that this tenant may select", values)


def _tolerations(pod: Pod, policy: PodPolicy) -> Iterator[FieldError]:
    for number, (text, toleration) in enumerate(zip(pod.tolerations, pod.tolerated, strict=True)):
        if not any(entry.includes(toleration) for entry in policy.tolerations):
            problem = f"{show(text)} is not allowed for this tenant"
            yield _refused(f"pod.tolerations[{number}]", text, problem, map(str, policy.tolerations))


def _named(path: str, name: str | None, allowed: Iterable[str]) -> Iterator[FieldError]:
    if name is not None and not any(covers(entry, name) for entry in allowed):
        yield _refused(path, name, f"{show(name)} is not allowed for this tenant", allowed)


def _keys(path: str, given: Iterable[str], allowed: Iterable[str]) -> Iterator[FieldError]:
    for key in given:
        below = join_path(path, shown_key(key))
        if is_reserved(key):
            yield FieldError(below, None, f"{show(key)} is set by the platform or by Airflow", "another key")
        elif not any(covers(entry, key) for entry in allowed):
            yield _refused(below, key, f"{show(key)} is not a key that this tenant may set", allowed)
