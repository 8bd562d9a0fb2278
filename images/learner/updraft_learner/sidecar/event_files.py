"""Read the scalars of TensorBoard's event files: records of the protocol buffer `Event`.

A record is its length (8 bytes), a checksum of the length, the event, and a checksum of the event
(tensorflow/core/lib/io/record_writer.h). Only the fields that scalars have are described here; the package
`tensorboard` has all of them, but brings a web server and grpc into every pod. TensorFlow 1 and PyTorch write a value
as `simple_value`, TensorFlow 2 and Keras as a tensor without dimensions.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from updraft_learner.collectors import LATEST, Point
from updraft_learner.record.files import open_below

LONGEST_BYTES = 1 << 20  # of an event that is read; images, graphs and histograms may be longer, and have no scalars
MOST_BYTES = 1 << 40  # no event is that long: it is no event file
HEADER_BYTES, FOOTER_BYTES = 12, 4
_FLOAT, _DOUBLE = 1, 2  # tensorflow/core/framework/types.proto
_TYPES = {"double": 1, "float": 2, "int64": 3, "int32": 5, "message": 11, "bytes": 12}
_FIELDS = {
    "Dimension": [("size", 1, "int64", False)],
    "Shape": [("dim", 2, "Dimension", True), ("unknown_rank", 3, "int32", False)],
    "Tensor": [
        ("dtype", 1, "int32", False),
        ("shape", 2, "Shape", False),
        ("content", 4, "bytes", False),
        ("floats", 5, "float", True),
        ("doubles", 6, "double", True),
    ],
    "Value": [("tag", 1, "bytes", False), ("simple", 2, "float", False), ("tensor", 8, "Tensor", False)],
    "Summary": [("value", 1, "Value", True)],
    "Event": [("wall_time", 1, "double", False), ("step", 2, "int64", False), ("summary", 5, "Summary", False)],
}


class NoEventFile(ValueError):
    """The file is not one of TensorBoard's, or it is damaged. The message says why."""


def is_event_file(name: str) -> bool:
    return "tfevents" in name


def read_events(root: Path, path: str, offset: int, limit_bytes: int) -> Iterator[tuple[Point | None, int]]:
    """Yield the scalars of each complete event after `offset`, or None for an event without any, and the offset behind
    the event. At most about `limit_bytes` are looked at.

    Raises NoEventFile, and OSError if the file cannot be read.
    """
    with open_below(root, path) as file:
        size = os.fstat(file.fileno()).st_size
        end = min(size, offset + limit_bytes)
        while offset + HEADER_BYTES <= end:
            file.seek(offset)
            header = file.read(HEADER_BYTES) or b""
            if len(header) < HEADER_BYTES:
                return
            length = struct.unpack_from("<Q", header)[0]
            if length > MOST_BYTES:
                raise NoEventFile(f"at byte {offset} is no record of an event file")
            behind = offset + HEADER_BYTES + length + FOOTER_BYTES
            if behind > size:
                return  # the program has not written all of it
            point = _scalars(file.read(length) or b"") if length <= LONGEST_BYTES else None
            offset = behind
            yield point, offset


def _scalars(data: bytes) -> Point | None:
    from google.protobuf.message import DecodeError

    event = _event_class()()
    try:
        event.ParseFromString(data)
    except DecodeError:
        raise NoEventFile("a record of it is no event") from None
    values = {
        value.tag.decode(errors="replace"): found
        for value in event.summary.value
        if value.tag and (found := _scalar(value)) is not None
    }
    if not values:
        return None
    return Point(values, event.step, event.wall_time if 0 <= event.wall_time < LATEST else None)


def _scalar(value: Any) -> float | None:
    if value.HasField("simple"):
        return float(value.simple)
    tensor = value.tensor
    if not value.HasField("tensor") or tensor.shape.dim or tensor.shape.unknown_rank:
        return None
    if tensor.dtype not in (_FLOAT, _DOUBLE):
        return None
    numbers = tensor.floats if tensor.dtype == _FLOAT else tensor.doubles
    if len(numbers) == 1:
        return float(numbers[0])
    form = "<f" if tensor.dtype == _FLOAT else "<d"
    if len(tensor.content) == struct.calcsize(form):
        return float(struct.unpack(form, tensor.content)[0])
    return None


@functools.cache
def _event_class() -> Any:
    """Return the message class `Event`, in a pool of its own: TensorFlow may be in the process."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="updraft/event.proto", package="updraft", syntax="proto2")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            item = described.field.add(name=name, number=number, label=3 if repeated else 1)
            item.type = _TYPES.get(kind, _TYPES["message"])
            if kind in _FIELDS:
                item.type_name = f".updraft.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("updraft.Event"))
