"""Check the fields of the section `pod` against each other and against `resources`.

The checks work on the raw mapping, as those in `checks` do, and skip a value that is malformed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from updraft.manifest.errors import FieldError, show
from updraft.manifest.units import format_memory, parse_disk
from updraft_learner import contract

# The platform mounts these itself; the others hold the image's programs, or belong to the container's runtime.
RESERVED = (
    contract.ROOT_DIR,
    contract.PRIVATE_DIR.rpartition("/")[0],
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run"),
)


def pod_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield everything that is wrong between fields of `pod`."""
    pod = raw.get("pod")
    listed = pod.get("volumes") if isinstance(pod, Mapping) else None
    volumes = [each if isinstance(each, Mapping) else {} for each in listed] if isinstance(listed, list | tuple) else []
    for number, volume in enumerate(volumes):
        yield from _kind(f"pod.volumes[{number}]", volume)
    yield from _mounts([volume.get("mount") for volume in volumes])
    yield from _sizes(volumes, raw.get("resources"))


def _kind(path: str, volume: Mapping[str, Any]) -> Iterator[FieldError]:
    size, claim = volume.get("size"), volume.get("claim")
    if size is None and claim is None and volume:
        yield FieldError(f"{path}.size", None, "is missing, and so is claim", "one of the two", "20GiB")
    elif size is not None and claim is not None:
        yield FieldError(f"{path}.claim", show(claim), "is given, and size too", "one of the two")


def _mounts(mounts: list[object]) -> Iterator[FieldError]:
    for number, mount in enumerate(mounts):
        if not isinstance(mount, str):
            continue
        path = f"pod.volumes[{number}].mount"
        if (
            reserved := next((each for each in RESERVED if _within(mount, each) or _within(each, mount)), None)
        ) is not None:
            problem = f"{show(mount)} would cover {reserved}, or be a part of it"
            yield FieldError(
                path, show(mount), problem, "a folder that neither the platform nor the image uses", "/scratch"
            )
        others = [other for other in mounts[:number] if isinstance(other, str)]
        if (other := next((o for o in others if _within(mount, o) or _within(o, mount)), None)) is not None:
            problem = f"{show(mount)} overlaps with {show(other)}, another volume"
            yield FieldError(path, show(mount), problem, "folders that lie beside each other")


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _sizes(volumes: list[Mapping[str, Any]], resources: object) -> Iterator[FieldError]:
    disk = resources.get("disk") if isinstance(resources, Mapping) else None
    try:
        total = sum(parse_disk(volume["size"]) for volume in volumes if volume.get("size") is not None)
        most = None if disk is None else parse_disk(disk)
    except PydanticCustomError:
        return  # the model reports it
    if most is not None and total > most:
        problem = (
            f"the sizes are {format_memory(total)} together, and resources.disk, which they are part of, is {disk}"
        )
        yield FieldError("pod.volumes", None, problem, f"sizes of at most {disk} together, or a larger resources.disk")
