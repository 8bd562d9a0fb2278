"""The programs of the cluster, built from the Go modules beside this package and kept by their hash.

A build that is there is never touched; one that was interrupted is removed by the next. Called by `running` and `kwok`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubecluster.layout import ClusterError, Layout
from kubecluster.needs import find_go

MODULE = Path(__file__).resolve().parents[1] / "go"
BUNDLE = "updraft-cluster"
PAUSE = "pause"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "coredns")
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
PARALLEL_COMPILERS = 2
PROGRESS_SECONDS = 15.0
UNFINISHED = ".building-"


@dataclass(frozen=True)
class Programs:
    """A finished build."""

    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def digest(self) -> str:
        return self.folder.name


def module_files(module: Path = MODULE) -> list[Path]:
    return sorted(path for path in module.rglob("*") if path.suffix in {".go", ".mod", ".sum"})


def module_digest(module: Path = MODULE) -> str:
    digest = hashlib.sha256()
    for path in module_files(module):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(module)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def kubernetes_version(module: Path = MODULE) -> str:
    matched = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    if matched is None:
        raise ClusterError(f"{module / 'go.mod'} requires no k8s.io/kubernetes.")
    return matched[1]


def built(layout: Layout, module: Path = MODULE) -> Programs | None:
    folder = layout.cache / module_digest(module)
    return Programs(folder) if folder.is_dir() else None


def build(layout: Layout, environment: Mapping[str, str], say: Callable[[str], None]) -> Programs:
    """The build of this module: from the cache, or made now, which takes minutes and 2.3 GiB of memory."""
    version = kubernetes_version()
    stamps = [f"-X {package}.gitVersion={version}" for package in VERSION_PACKAGES]
    what = [[".", BUNDLE, f"-ldflags=-s -w {' '.join(stamps)}"], ["./pause", PAUSE, "-ldflags=-s -w"]]
    named = f"Kubernetes {version} once, about 7 minutes"
    return _built_or_made(layout, MODULE, what, PROGRAMS, named, environment, say)


def build_tool(
    layout: Layout, module: Path, package: str, name: str, environment: Mapping[str, str], say: Callable[[str], None]
) -> Path:
    """One program of another module, that its go.mod names as a tool: from the cache, or made now."""
    named = f"{name} once, about 2 minutes"
    what = [[package, name, "-ldflags=-s -w"]]
    return _built_or_made(layout, module, what, (), named, environment, say).path(name)


def _built_or_made(
    layout: Layout,
    module: Path,
    what: list[list[str]],
    links: tuple[str, ...],
    named: str,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> Programs:
    """`what`: package, name and flags of each program; `links`: further names of the first one."""
    found = built(layout, module)
    if found is not None:
        return found
    layout.cache.mkdir(parents=True, exist_ok=True)
    remove_unfinished(layout)
    aside = layout.cache / f"{UNFINISHED}{layout.name}"
    target = layout.cache / module_digest(module)
    (aside / "temporary").mkdir(parents=True)
    say(f"building {named} on two cores; it stays in {target}")
    for each in what:
        _compile(module, each, aside, environment, say)
    for name in links:
        (aside / name).symlink_to(what[0][1])
    shutil.rmtree(aside / "temporary")
    try:
        aside.rename(target)
    except OSError:  # another checkout was faster with the same
        if not target.is_dir():
            raise
        shutil.rmtree(aside)
    return Programs(target)


def _compile(
    module: Path, what: list[str], aside: Path, environment: Mapping[str, str], say: Callable[[str], None]
) -> None:
    package, name, flags = what
    go = find_go()
    if go is None:
        raise ClusterError("Go is not there; see https://go.dev/dl.")
    log = aside / f"{name}.log"
    command = ["nice", "-n", "19", go, "build", "-p", str(PARALLEL_COMPILERS), "-trimpath", "-buildvcs=false", "-v"]
    command += [flags, "-o", str(aside / name), package]
    environment = {
        **environment,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOTMPDIR": str(aside / "temporary"),  # with the build it is removed
        # `go` stamps nothing and vendors nothing, whatever the caller has set.
        "GOFLAGS": "-mod=readonly",
    }
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=module, env=environment, stdout=output, stderr=output)
        try:
            while True:
                try:
                    code = process.wait(PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    packages = sum(1 for _ in log.open("rb"))
                    say(f"building {name}: {packages} packages after {time.monotonic() - started:.0f} s")
        except BaseException:
            process.terminate()
            raise
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise ClusterError(f"The build of {name} failed ({code}); its last lines:\n{tail}")
    log.unlink()


def remove_unfinished(layout: Layout) -> None:
    """What an interrupted build of this cluster left. Others of the same user may be building."""
    for path in layout.cache.glob(f"{UNFINISHED}{layout.name}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
