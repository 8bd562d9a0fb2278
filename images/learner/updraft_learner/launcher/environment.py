"""Make the environment of one process from that of its pod."""

from __future__ import annotations

from collections.abc import Mapping


def environment_of(pod: Mapping[str, str], local_rank: int, processes: int) -> dict[str, str]:
    """Return the environment of the process `local_rank` of a learner with `processes` processes.

    `pod` is the environment of the learner's container, where NODE_RANK is the learner's rank. The names are those that
    torchrun sets. Every process sees all GPUs of the learner and takes the one that LOCAL_RANK names.
    """
    node, nodes = int(pod.get("NODE_RANK") or 0), int(pod.get("NUM_LEARNERS") or 1)
    return {
        **pod,
        "RANK": str(node * processes + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(nodes * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
    }
