"""From the file that a pod's probe leaves to the system metrics; the program may write that file too."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from learner.sidecar_fakes import CONFIG, make_paths

from updraft_learner import contract
from updraft_learner.record.journal import Journal, JournalPosition
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.system import MOST_GPUS, OLDEST_SAMPLES, SystemMetrics, parse_gpus, parse_memory

SAMPLE = "0, 87, 2000, 80000, 301.50\n"
VALUES = {
    "system/node_0/gpu_0_utilization_percentage": 87.0,
    "system/node_0/gpu_0_memory_usage_megabytes": 2097.2,
    "system/node_0/gpu_0_memory_usage_percentage": 2.5,
    "system/node_0/gpu_0_power_usage_watts": 301.5,
}


class Sampler:
    """The sidecar's sampler on a clock of its own, ten seconds apart."""

    def __init__(self, root: Path) -> None:
        self.now, self.paths = 1000.0, make_paths(root)
        self.file = self.paths.io / "gpus.csv"
        self.journal = Journal(self.paths.private / "journal")
        config = replace(CONFIG, system_metrics_seconds=10.0)
        recorder = Recorder(self.journal, Warnings())
        self.system = SystemMetrics(config, recorder, Warnings(), self.paths.root, clock=lambda: self.now)
        self.system.begin(self.now)
        self.system.poll()

    def probe(self, content: str | bytes = SAMPLE) -> None:
        self.file.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(self.file, (self.now, self.now))

    def gpus(self, word: str = "gpu") -> dict[str, float]:
        """What the next sample says of GPUs. It says something of the node in any case."""
        self.now += 10
        self.system.poll()
        *_, (entry, _) = self.journal.read(JournalPosition())
        assert (entry["step"], entry["source"]) == (int(self.now - 1000), "system")
        assert "system/node_0/cpu_utilization_percentage" in entry["metrics"]
        return {name: value for name, value in entry["metrics"].items() if word in name}


@pytest.fixture
def sampler(tmp_path: Path) -> Sampler:
    return Sampler(tmp_path / "pod")


def test_a_sample_of_the_gpus_is_among_the_metrics(sampler: Sampler) -> None:
    assert sampler.gpus() == {}  # before the first one, and where the program has no GPU
    sampler.probe()
    assert sampler.gpus() == VALUES


def test_an_old_sample_is_none(sampler: Sampler) -> None:
    sampler.probe()
    assert [sampler.gpus() for _ in range(4)] == [VALUES, VALUES, VALUES, {}]
    sampler.probe()
    os.utime(sampler.file, (sampler.now + 3600, sampler.now + 3600))  # nor is one of the future
    assert sampler.gpus() == {}


def test_the_programs_own_memory_is_among_the_metrics_and_grows_old(sampler: Sampler) -> None:
    sampler.file = sampler.paths.io / "memory"
    sampler.probe("1500000 500000 4000000\n")
    values = {
        "system/node_0/learner_memory_megabytes": 1.0,
        "system/node_0/learner_memory_percentage": 25.0,
    }
    fresh = OLDEST_SAMPLES * contract.MEMORY_INTERVALS
    assert [sampler.gpus("learner") for _ in range(fresh + 1)] == [values] * fresh + [{}]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2000000 0 max\n", {"learner_memory_megabytes": 2.0}),
        ("2000000 0 9223372036854771712\n", {"learner_memory_megabytes": 2.0}),
        ("2000000 3000000 0\n", {"learner_memory_megabytes": 0.0}),
        ("2000000 0 1\n", {"learner_memory_megabytes": 2.0, "learner_memory_percentage": 200000000.0}),
        ("999999999999999999 0 1\n", {}),
        ("1 2\n", {}),
        ("1 2 3 4\n", {}),
        ("-1 0 3\n", {}),
        ("nan 0 3\n", {}),
        ("1e3 0 3\n", {}),
        ("", {}),
    ],
)
def test_what_no_kernel_counts_is_no_memory(text: str, values: dict[str, float]) -> None:
    assert parse_memory(text) == values


def elsewhere(sampler: Sampler) -> None:
    secret = sampler.paths.root.parent / "credentials"
    secret.write_text(SAMPLE)
    os.utime(secret, (sampler.now, sampler.now))
    sampler.file.symlink_to(secret)


def folder_elsewhere(sampler: Sampler) -> None:
    sampler.probe()
    sampler.paths.io.rename(sampler.paths.root.parent / "io")
    sampler.paths.io.symlink_to(sampler.paths.root.parent / "io")


def pipe(sampler: Sampler) -> None:
    os.mkfifo(sampler.file)


def folder(sampler: Sampler) -> None:
    sampler.file.mkdir()


def a_gibibyte(sampler: Sampler) -> None:
    sampler.probe("")
    os.truncate(sampler.file, 1 << 30)
    os.utime(sampler.file, (sampler.now, sampler.now))


def noise(sampler: Sampler) -> None:
    sampler.probe(bytes(range(256)) * 100)


@pytest.mark.parametrize("place", [elsewhere, folder_elsewhere, pipe, folder, a_gibibyte, noise])
def test_a_file_that_is_no_sample_costs_nothing_and_leads_nowhere(
    sampler: Sampler, place: Callable[[Sampler], None]
) -> None:
    place(sampler)
    assert sampler.gpus() == {}


def test_lines_beside_a_sample_do_not_spoil_it(sampler: Sampler) -> None:
    sampler.probe("No devices were found\n" + SAMPLE + "x" * 100_000)
    assert sampler.gpus() == VALUES


@pytest.mark.parametrize(
    "line",
    [
        "loss, 1, 1, 2, 1",
        "0/../x, 1, 1, 2, 1",
        "-1, 1, 1, 2, 1",
        "1234, 1, 1, 2, 1",
        "0, 1, 1, 2",
        "0, 1, 1, 2, 1, 1",
        "0, nan, inf, nan, -inf",
        "0, -1, -1, -1, 1e300",
        "0, x, 1, 1e-300, x",
        "0, x, 1, 0, x",
    ],
)
def test_a_name_or_a_value_that_no_driver_prints_is_no_metric(line: str) -> None:
    assert parse_gpus(line) == {}


def test_a_machine_has_so_many_gpus_and_no_more() -> None:
    assert len(parse_gpus("".join(f"{index}, 1, [N/A], [N/A], [N/A]\n" for index in range(900)))) == MOST_GPUS
