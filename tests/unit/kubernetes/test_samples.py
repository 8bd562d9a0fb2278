"""The probe of a pod, run as a kubelet runs it, with an nvidia-smi that is a script and folders as control groups."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from updraft.kubernetes.samples import sample_probe
from updraft_localnode.translate import expand

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
        self.file, self.memory = self.io / "gpus.csv", self.io / "memory"
        self.groups = folder / "cgroup"
        self.groups.mkdir()

    def driver(self, script: str) -> None:
        (self.bin / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / "nvidia-smi").chmod(0o755)

    def counts(self, **files: str) -> None:
        for name, text in files.items():
            path = self.groups / name.replace("__", "/").replace("_", ".", 1)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def probe(self, shell: Sequence[str] = ("/bin/sh",), *, gpus: bool = True) -> None:
        """Succeeds and says nothing, whatever happens."""
        _, dash_c, script, *names = sample_probe(10, gpus=gpus)["exec"]["command"]
        places = {"/updraft/io/gpus.csv": self.file, "/updraft/io/memory": self.memory, "/sys/fs/cgroup": self.groups}
        argv = [*shell, dash_c, script, names[0], *(str(places[name]) for name in names[1:])]
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


STAT = "anon 900\nfile 600\ninactive_anon 1\ninactive_file 500\nactive_file 100\n"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_memory_is_what_the_kernel_counts_of_the_container(container: Container, shell: Sequence[str]) -> None:
    container.counts(memory_current="1500\n", memory_stat=STAT, memory_max="4096\n")
    container.probe(shell, gpus=False)
    assert (container.memory.read_text(), container.files()) == ("1500 500 4096\n", ["memory"])
    container.counts(memory_max="max\n")
    container.probe(shell)
    assert container.memory.read_text() == "1500 500 max\n"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_control_groups_of_the_first_version_are_read_too(container: Container, shell: Sequence[str]) -> None:
    container.counts(
        memory__memory_usage_in_bytes="1500\n",
        memory__memory_limit_in_bytes="9223372036854771712\n",
        memory__memory_stat="inactive_file 7\ntotal_inactive_file 400\n",
    )
    container.probe(shell)
    assert container.memory.read_text() == "1500 400 9223372036854771712\n"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_a_kernel_that_counts_less_leaves_out_what_it_does_not_know(container: Container, shell: Sequence[str]) -> None:
    container.probe(shell)
    assert container.files() == []
    container.counts(memory_current="1500\n")
    container.probe(shell)
    assert container.memory.read_text().split()[:2] == ["1500", "0"]


def test_the_probe_never_ends_a_pod_and_asks_for_memory_alone_more_seldom() -> None:
    probe, with_gpus = sample_probe(10.0, gpus=False), sample_probe(10.0, gpus=True)
    script = probe["exec"]["command"][2]
    assert "nvidia-smi" not in script
    assert probe == {
        "exec": {"command": ["/bin/sh", "-c", script, "sh", "/updraft/io/memory", "/sys/fs/cgroup"]},
        "periodSeconds": 30,
        "timeoutSeconds": 5,
        "failureThreshold": 1_000_000,
    }
    assert with_gpus["exec"]["command"][3:] == ["sh", "/updraft/io/memory", "/sys/fs/cgroup", "/updraft/io/gpus.csv"]
    assert with_gpus["periodSeconds"] == 10
    assert sample_probe(0.2, gpus=False)["periodSeconds"] == 1
    for text in (script, with_gpus["exec"]["command"][2]):
        assert expand(text, {}) == text  # a kubelet expands a probe's command too
