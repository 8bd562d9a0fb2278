"""An image whose Python believes another time: one layer more on an image of the platform.

The kernel has one clock for all containers of a machine, and no namespace for it. So what a node with a wrong clock
would tell the platform's own containers is told to them by `sitecustomize`. Called by the test of clocks.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

FOLDER = "opt/other-time"
INDEXES = ("manifest.json", "repositories", "index.json", "oci-layout")  # of which the first is written anew
SITECUSTOMIZE = """\
import datetime
import time

AHEAD_SECONDS = {ahead_seconds}
_time, _time_ns = time.time, time.time_ns
_gmtime, _localtime, _strftime = time.gmtime, time.localtime, time.strftime
time.time = lambda: _time() + AHEAD_SECONDS
time.time_ns = lambda: _time_ns() + AHEAD_SECONDS * 10**9
time.gmtime = lambda seconds=None: _gmtime(time.time() if seconds is None else seconds)
time.localtime = lambda seconds=None: _localtime(time.time() if seconds is None else seconds)
time.strftime = lambda style, moment=None: _strftime(style, time.localtime() if moment is None else moment)


class OtherTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.timezone.utc).replace(tzinfo=None)


datetime.datetime = OtherTime
"""


def skewed(archive: Path, made: Path, *, ahead_seconds: int) -> None:
    """`made`: the image of an archive (`docker save`, `ctr images export`), under its own name, with another time."""
    layer = _layer(SITECUSTOMIZE.format(ahead_seconds=ahead_seconds).encode())
    digest = hashlib.sha256(layer).hexdigest()
    with tarfile.open(archive) as old, tarfile.open(made, "w") as new:
        (image,) = json.loads(_read(old, "manifest.json"))
        config = json.loads(_read(old, image["Config"]))
        for member in old:
            if member.name not in (*INDEXES, image["Config"]):
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
        config["config"]["Env"] = [*config["config"]["Env"], f"PYTHONPATH=/{FOLDER}"]
        config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
        config["history"].append({"created_by": "another time"})
        text = json.dumps(config).encode()
        name = f"{hashlib.sha256(text).hexdigest()}.json"
        layers = [*image["Layers"], f"{digest}/layer.tar"]
        manifest = [{"Config": name, "RepoTags": image["RepoTags"], "Layers": layers}]
        for path, data in ((layers[-1], layer), (name, text), ("manifest.json", json.dumps(manifest).encode())):
            new.addfile(_file(path, data), io.BytesIO(data))


def _layer(module: bytes) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as layer:
        folder = tarfile.TarInfo(FOLDER)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        layer.addfile(folder)
        path = f"{FOLDER}/sitecustomize.py"
        layer.addfile(_file(path, module), io.BytesIO(module))
    return data.getvalue()


def _file(path: str, data: bytes) -> tarfile.TarInfo:
    found = tarfile.TarInfo(path)
    found.size, found.mode = len(data), 0o644
    return found


def _read(archive: tarfile.TarFile, path: str) -> Any:
    found = archive.extractfile(path)
    assert found is not None
    return found.read()
