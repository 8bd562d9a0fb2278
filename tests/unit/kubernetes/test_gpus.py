"""The probe of a pod with GPUs, run as a kubelet runs it, with an nvidia-smi that is a script."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from updraft.kubernetes.gpus import SAMPLE_GPUS, gpu_probe
from updraft.localnode.translate import expand

SAMPLE = "0, 87, 2000, 80000, 301.50\n1, [N/A], 0, 80000, [Not Supported]\n"
SHELLS = [["/bin/sh"], *([[bash, "--posix"]] if (bash := shutil.which("bash")) else [])]


class Container:
    """A PATH with the few programs that an image has, and a job's volume."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.io = folder / "bin", folder / "a volume" / "io"
        self.bin.mkdir()
        self.io.mkdir(parents=True)
        for name in ("mv", "sh", "cat"):
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.file = self.io / "gpus.csv"

    def driver(self, script: str) -> None:
        (self.bin / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / "nvidia-smi").chmod(0o755)

    def probe(self, shell: Sequence[str] = ("/bin/sh",)) -> None:
        """Succeeds and says nothing, whatever happens."""
        argv = [*shell, "-c", SAMPLE_GPUS, "sh", str(self.file)]
        done = subprocess.run(argv, env={"PATH": str(self.bin)}, capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def files(self) -> list[str]:
        return sorted(path.name for path in self.io.iterdir())


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_what_the_driver_tells_is_in_the_file(container: Container, shell: Sequence[str]) -> None:
    fields = "index,utilization.gpu,memory.used,memory.total,power.draw"
    (container.bin / "nvidia-smi.asked").write_text(f"--query-gpu={fields} --format=csv,noheader,nounits")
    container.driver(f'[ "$*" = "$(cat "$0.asked")" ] && printf "{SAMPLE}" && echo noise >&2')
    container.probe(shell)
    assert (container.file.read_text(), container.files()) == (SAMPLE, ["gpus.csv"])


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_an_image_without_the_tool_leaves_nothing(container: Container, shell: Sequence[str]) -> None:
    container.probe(shell)
    assert container.files() == []


def test_a_driver_that_fails_does_not_renew_the_last_sample(container: Container) -> None:
    container.driver(f'printf "{SAMPLE}"')
    container.probe()
    before = container.file.stat()
    container.driver('echo "Unable to determine the device handle"; exit 15')
    container.probe()
    after = container.file.stat()
    assert (container.file.read_text(), after.st_mtime_ns) == (SAMPLE, before.st_mtime_ns)


def test_a_place_that_the_program_has_taken_or_removed_hurts_nobody(container: Container) -> None:
    container.driver(f'printf "{SAMPLE}"')
    container.file.with_name("gpus.csv.part").mkdir()
    container.probe()
    assert container.files() == ["gpus.csv.part"]
    shutil.rmtree(container.io)
    container.probe()


def test_the_probe_never_ends_a_pod_and_asks_as_often_as_metrics_are_taken() -> None:
    assert gpu_probe(10.0) == {
        "exec": {"command": ["/bin/sh", "-c", SAMPLE_GPUS, "sh", "/updraft/io/gpus.csv"]},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": 1_000_000,
    }
    assert gpu_probe(0.2)["periodSeconds"] == 1
    assert expand(SAMPLE_GPUS, {}) == SAMPLE_GPUS  # a kubelet expands a probe's command too
