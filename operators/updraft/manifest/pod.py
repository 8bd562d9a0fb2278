"""Define the manifest's section `pod`: where the job's pods may run, and what they get besides resources.

The form of each value is checked here, and fields against each other in `pod_checks`. Whether the tenant may have what
the section asks for is decided by `pod_rules`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from updraft.manifest import limits
from updraft.manifest.errors import VALUE, wrong
from updraft.manifest.part import Part, Text
from updraft.manifest.sources import is_object_name
from updraft.manifest.units import DiskBytes
from updraft.manifest.values import check_each
from updraft.taints import Toleration, is_key, is_label_value

KEY_ALLOWED = "letters, digits, '-', '_' and '.', at most 63, with or without a domain and '/' before them"
VALUE_ALLOWED = "text of at most 63 letters, digits, '-', '_' and '.', which begins and ends with a letter or digit"


def check_key(key: str) -> str:
    """Return the key of a label, of an annotation or of a node's label."""
    domain = key.rpartition("/")[0]
    if not is_key(key) or (domain and not is_object_name(domain)):
        raise wrong(f"{VALUE} is not a key of Kubernetes", KEY_ALLOWED, "example.com/team", value=key)
    return key


def check_labels(value: object) -> dict[str, str]:
    """Return labels, of pods or of nodes."""

    def check(key: str, item: object) -> None:
        check_key(key)
        if not isinstance(item, str) or not is_label_value(item):
            raise wrong(f"{VALUE} is not the value of a label", VALUE_ALLOWED, "ssd", value=item)

    return check_each(value, check, "a mapping of keys to text", "{disk: ssd}")


def check_annotations(value: object) -> dict[str, str]:
    """Return annotations of pods."""

    def check(key: str, item: object) -> None:
        check_key(key)
        if not isinstance(item, str) or len(item) > limits.STRING_CHARACTERS:
            allowed = f"text of at most {limits.STRING_CHARACTERS} characters, in quotes"
            raise wrong(f"{VALUE} is not the value of an annotation", allowed, "'true'", value=item)

    return check_each(value, check, "a mapping of keys to text", "{example.com/team: vision}")


def check_toleration(value: str) -> str:
    """Return a toleration as `kubectl taint` writes taints."""
    try:
        Toleration.parse(value)
    except ValueError:
        allowed = "KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT; without a value or an effect, any is tolerated"
        raise wrong(f"{VALUE} is not a taint", allowed, "dedicated=training:NoSchedule", value=value) from None
    return value


def check_object_name(value: str) -> str:
    """Return the name of a claim, a secret or a service account."""
    if not is_object_name(value):
        allowed = "lower-case letters, digits, '-' and '.', at most 253"
        raise wrong(f"{VALUE} is not a name of Kubernetes", allowed, "team-scratch", value=value)
    return value


def check_folder(value: str) -> str:
    """Return the absolute folder of a volume in the program's container."""
    parts = value.split("/")
    if len(parts) < 2 or parts[0] or any(part in ("", ".", "..") for part in parts[1:]) or _is_special(value):
        allowed = "an absolute path without '.', '..', ':' and a '/' at its end"
        raise wrong(f"{VALUE} is not a folder of a container", allowed, "/scratch", value=value)
    return value


def _is_special(path: str) -> bool:
    return not path.isprintable() or any(character in path for character in ":$\\")


ObjectName = Annotated[Text, AfterValidator(check_object_name)]
Labels = Annotated[
    dict[str, str],
    PlainValidator(check_labels),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]
Annotations = Annotated[
    dict[str, str],
    PlainValidator(check_annotations),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


class Volume(Part):
    """A writable volume of the program's container: scratch space of a size, or a persistent claim."""

    mount: Annotated[Text, AfterValidator(check_folder)] = Field(
        description="Folder of the volume in the program's container", examples=["/scratch"]
    )
    size_bytes: DiskBytes | None = Field(
        None,
        alias="size",
        description="Scratch space of each learner: at most this much, empty at each launch, part of resources.disk",
        examples=["20GiB"],
    )
    claim: ObjectName | None = Field(
        None, description="PersistentVolumeClaim in the tenant's namespace, which all learners write to"
    )


class Pod(Part):
    """What the job's pods get besides resources. The policy of the tenant says what it may ask for."""

    node_selector: Labels = Field(
        {}, description="Labels that the nodes of the job's pods must have", examples=[{"disk": "ssd"}]
    )
    tolerations: Annotated[
        tuple[Annotated[Text, AfterValidator(check_toleration)], ...], Field(strict=False, max_length=limits.LISTED)
    ] = Field(
        (),
        description="Taints of nodes that the job's pods may run on nevertheless: KEY[=VALUE][:EFFECT]",
        examples=[["dedicated=training:NoSchedule"]],
    )
    volumes: Annotated[tuple[Volume, ...], Field(strict=False, max_length=limits.LISTED)] = Field(
        (), description="Writable volumes of the program", examples=[[{"mount": "/scratch", "size": "20GiB"}]]
    )
    service_account: ObjectName | None = Field(
        None,
        description="Service account of the program's pods, for a cloud's identity; its token for the cluster's API "
        "is not mounted",
        examples=["trainer"],
    )
    labels: Labels = Field({}, description="Labels of the job's pods", examples=[{"example.com/cost-center": "v12"}])
    annotations: Annotations = Field(
        {}, description="Annotations of the job's pods", examples=[{"example.com/owner": "Ada"}]
    )
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False, max_length=limits.LISTED)] = Field(
        (),
        description="Secrets of the tenant's namespace with which nodes pull the job's image",
        examples=[["team-registry"]],
    )

    @property
    def tolerated(self) -> tuple[Toleration, ...]:
        """Return the tolerations, taken apart."""
        return tuple(Toleration.parse(text) for text in self.tolerations)

    @property
    def claims(self) -> tuple[str, ...]:
        """Return the names of the claims among the volumes, each once."""
        return tuple(dict.fromkeys(volume.claim for volume in self.volumes if volume.claim is not None))
