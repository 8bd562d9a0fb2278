"""Metrics taken from what a program prints or writes: real files, the real journal, each point once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner.sidecar_fakes import FakeMlflow, make_paths

from updraft_learner.collectors import metric_name
from updraft_learner.contract import Collector, PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.record.forward import Forwarder
from updraft_learner.record.journal import Journal
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar import collect
from updraft_learner.sidecar.collect import MetricsCollector
from updraft_learner.sidecar.recorder import Recorder, is_name

SummaryWriter = pytest.importorskip("tensorboardX", reason="runs in the development environment").SummaryWriter
LOSS = Collector("regex", pattern="step %{INT:step}: loss %{FLOAT:loss}")


class Pod:
    """The collectors of one learner over one folder; a new Pod over the same folder is a restarted sidecar."""

    def __init__(self, root: Path, mlflow: FakeMlflow, *collectors: Collector, first: bool = True) -> None:
        paths = PodPaths(root) if root.exists() else make_paths(root)
        self.root, self.warnings = root, Warnings()
        self.journal = Journal(root / ".sidecar" / "journal")
        self.recorder = Recorder(self.journal, self.warnings)
        place = {"job_id": "job-1", "tenant": "t", "role": "train", "attempt": 1, "learner": 1, "learners": 1}
        config = PodConfig(
            **place, bucket="b", prefix="t", mlflow_run_id="r", mlflow_experiment_id="1", collect=collectors
        )
        self.collector = MetricsCollector(
            PodConfig.from_json(config.to_json()), paths, self.journal, self.recorder, self.warnings, lambda: 100.0
        )
        self.forwarder = Forwarder(self.journal, mlflow.client(), self.warnings, root / ".sidecar" / "forward.json")
        if first:
            self.collector.begin()

    def write(self, path: str, text: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            opened.write(text.encode() if isinstance(text, str) else text)
        return file

    def print(self, text: str | bytes, stream: str = "stdout") -> None:
        self.write(f"io/output/{stream}", text)

    def send(self, *, final: bool = False) -> None:
        self.collector.poll(final=final)
        while self.forwarder.step():
            pass


def test_numbers_in_what_the_program_prints_are_metrics_at_their_step(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", mlflow, LOSS)
    pod.print("hello\nstep 10: loss 0.5\nstep 20: lo")
    pod.print("step 5: loss 7e-1\n", "stderr")
    pod.send()
    pod.print("ss nan\nstep 30: loss 0.25")
    pod.send(final=True)
    points = sorted(mlflow.points("loss"), key=lambda point: point[0])
    assert points == [(5, 0.7), (10, 0.5), (20, "NaN"), (30, 0.25)]
    assert pod.recorder.steps()["last"] == 30
    assert [text for text in pod.warnings.texts() if "metrics[" in text] == []


def test_a_progress_bar_with_colours_is_read_piece_by_piece(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", mlflow, Collector("regex", pattern=r"%{INT:n}/\d+ .*loss=%{FLOAT:loss}", step="n"))
    pod.print("\r\x1b[32m 1/100\x1b[0m [00:01] loss=3.5\r 2/100 [00:02] loss=\x1b[1m2.5\n", "stderr")
    pod.send()
    assert mlflow.points("loss") == [(1, 3.5), (2, 2.5)]


def test_a_pattern_may_span_lines_and_name_its_metrics(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pattern = r"Iteration %{INT:iteration}, .*accuracy = %{FLOAT:acc}"
    caffe = Collector("regex", None, pattern, {"accuracy": "acc"}, "iteration", 4, "test")
    pod = Pod(tmp_path / "pod", mlflow, caffe)
    pod.print("I0301 solver: Iteration 100, Testing net\nI0301 net 0\nI0301 accuracy = 0.9\n")
    pod.print("Iteration 200, Testing\n1\n2\n3\naccuracy = 0.1\naccuracy = 0.2\n")
    pod.send()
    assert mlflow.points("test/accuracy") == [(100, 0.9)]


def test_without_a_step_the_matches_are_counted_also_after_a_restart(tmp_path: Path, mlflow: FakeMlflow) -> None:
    counted = Collector("regex", pattern="acc=%{FLOAT:acc}")
    pod = Pod(tmp_path / "pod", mlflow, counted)
    pod.print("acc=0.1\nacc=0.2\n")
    pod.send()
    pod.print("acc=0.3\n")
    again = Pod(tmp_path / "pod", mlflow, counted, first=False)
    again.send()
    assert mlflow.points("acc") == [(0, 0.1), (1, 0.2), (2, 0.3)]


def test_what_lay_there_before_the_program_started_is_not_read(tmp_path: Path, mlflow: FakeMlflow) -> None:
    make_paths(tmp_path / "pod")
    lines = Collector("jsonl", source="$RESULT_DIR/*.jsonl")
    old = tmp_path / "pod" / "result" / "log.jsonl"
    old.write_text('{"step": 1, "loss": 9}\n')
    pod = Pod(tmp_path / "pod", mlflow, lines)
    pod.write("result/log.jsonl", '{"step": 2, "loss": 8}\n')
    pod.send(final=True)
    assert mlflow.points("loss") == [(2, 8.0)]


def test_lines_of_json_give_nested_names_steps_and_times(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", mlflow, Collector("jsonl", source="logs/*.jsonl", prefix="run"))
    rows = [
        {"global_step": 4, "loss": 0.5, "eval": {"f1": 1}, "name": "x", "ok": True, "timestamp": 1.7e9},
        {"meta": {}, "grouplabel": "test", "etimes": {"iteration": {"type": "INT", "value": "7"}},
         "values": {"acc": {"type": "FLOAT", "value": "0.75"}}},
        [1], "text", {"no": "number"},
    ]  # fmt: skip
    pod.write("code/logs/a.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "{not json\n\n")
    pod.send(final=True)
    assert mlflow.metrics[0]["timestamp"] == 1_700_000_000_000
    assert mlflow.points("run/loss") == [(4, 0.5)]
    assert mlflow.points("run/eval/f1") == [(4, 1.0)]
    assert mlflow.points("run/test/acc") == [(7, 0.75)]
    assert pod.warnings.texts() == ("metrics[0]: a line was left: it is not JSON",)


def test_scalars_of_event_files_are_named_by_their_folder(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", mlflow, Collector("tensorboard", source="runs/*"))
    writer = SummaryWriter(str(pod.root / "code" / "runs" / "today"))
    writer.add_scalar("Loss/train", 0.5, 1)
    writer.add_text("notes", "hello", 1)
    writer.close()
    pod.send()
    assert mlflow.points("Loss/train") == [(1, 0.5)]
    writer = SummaryWriter(str(pod.root / "code" / "runs" / "today"), filename_suffix=".second")
    writer.add_scalar("Loss/train", 0.25, 2)
    writer.add_scalars("both", {"a": 1.0}, 2)
    writer.close()
    again = Pod(tmp_path / "pod", mlflow, Collector("tensorboard", source="runs/*"), first=False)
    again.send(final=True)
    assert mlflow.points("Loss/train") == [(1, 0.5), (2, 0.25)]
    assert any(name.startswith("both") for name in {item["key"] for item in mlflow.metrics})
    assert again.warnings.texts() == ()


@pytest.mark.parametrize(
    ("name", "expected"), [("a (%)/b", "test/a ___/b"), ("//a/../b", "test/a/b"), ("..", "test"), ("x" * 300, None)]
)
def test_names_become_those_that_mlflow_takes(name: str, expected: str | None) -> None:
    found = metric_name(Collector("tensorboard", prefix="test"), name)
    assert is_name(found)
    assert found == (expected or f"test/{name}"[:250])


def test_an_event_that_is_half_written_is_read_once_it_is_whole(tmp_path: Path, mlflow: FakeMlflow) -> None:
    writer = SummaryWriter(str(tmp_path / "made"))
    for step in range(3):
        writer.add_scalar("x", float(step), step)
    writer.close()
    content = next((tmp_path / "made").iterdir()).read_bytes()
    pod = Pod(tmp_path / "pod", mlflow, Collector("tensorboard", source="$LOG_DIR"))
    for at in range(0, len(content), 7):
        pod.write("logs/train/events.out.tfevents.1.host", content[at : at + 7])
        pod.send()
    assert mlflow.points("train/x") == [(0, 0.0), (1, 1.0), (2, 2.0)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
def test_no_file_is_so_damaged_that_it_stops_the_others(
    tmp_path_factory: pytest.TempPathFactory, mlflow: FakeMlflow, content: bytes
) -> None:
    pod = Pod(tmp_path_factory.mktemp("any") / "pod", mlflow, Collector("tensorboard", source="runs"), LOSS)
    pod.write("code/runs/tfevents.a", content)
    pod.print(content + b"\nstep 1: loss 2\n")
    mlflow.metrics.clear()
    pod.send(final=True)
    assert (1, 2.0) in mlflow.points("loss")


def test_a_collector_that_finds_nothing_is_named(tmp_path: Path, mlflow: FakeMlflow) -> None:
    wrong = Collector("regex", pattern="loss (?P<loss>[a-z]+)")
    nothing = (Collector("tensorboard", source="runs"), Collector("jsonl", source="a.jsonl"))
    pod = Pod(tmp_path / "pod", mlflow, LOSS, wrong, *nothing)
    pod.print("loss high\n")
    pod.send(final=True)
    assert pod.warnings.texts() == (
        "metrics[1]: group loss matched 'high', which is no number",
        "metrics[0]: no line of the program's output matched its pattern with a number for a metric",
        "metrics[1]: no line of the program's output matched its pattern with a number for a metric",
        "metrics[2]: no file that runs names had a number: it found no scalar in an event file",
        "metrics[3]: no file that a.jsonl names had a number in a line of JSON",
    )


def test_links_and_pipes_of_a_hostile_program_are_not_followed(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", mlflow, Collector("jsonl", source="*.jsonl"), Collector("tensorboard", source="runs"))
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "password": 5}\n')
    code = pod.root / "code"
    code.mkdir(exist_ok=True)
    (code / "a.jsonl").symlink_to(secret)
    (code / "runs").symlink_to(tmp_path)
    os.mkfifo(code / "b.jsonl")
    pod.write("code/c.jsonl", '{"step": 1, "loss": 5}\n')
    pod.send(final=True)
    assert [item["key"] for item in mlflow.metrics] == ["loss"]


def test_the_room_of_a_long_output_is_given_back(
    tmp_path: Path, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "FREED_BYTES", 1 << 20)
    pod = Pod(tmp_path / "pod", mlflow, LOSS)
    for part in range(5):
        pod.print(f"step {part}: loss {part}\n" + "x" * 79 + "\n" + ("y" * 99 + "\n") * 20_000)
        pod.send()
    file = pod.root / "io" / "output" / "stdout"
    assert file.stat().st_size > 10_000_000
    assert file.stat().st_blocks * 512 < 4_000_000
    again = Pod(tmp_path / "pod", mlflow, LOSS, first=False)
    pod.print("step 9: loss 9\n")
    again.send(final=True)
    assert [step for step, _ in mlflow.points("loss")] == [0, 1, 2, 3, 4, 9]
    assert again.warnings.texts() == ()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 400), max_size=8), restarts=st.sets(st.integers(0, 8)))
def test_each_point_comes_once_however_the_output_is_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], restarts: set[int]
) -> None:
    text = "".join(f"noise {n}\nstep {n}: loss {n}.5\n" for n in range(12)).encode()
    mlflow, root = FakeMlflow(), tmp_path_factory.mktemp("cut") / "pod"
    try:
        pod, last = Pod(root, mlflow, LOSS), 0
        for number, cut in enumerate([*sorted(min(cut, len(text)) for cut in cuts), len(text)]):
            pod.print(text[last:cut])
            last = cut
            pod.send()
            if number in restarts:
                pod = Pod(root, mlflow, LOSS, first=False)
        pod.send(final=True)
        assert mlflow.points("loss") == [(n, n + 0.5) for n in range(12)]
    finally:
        mlflow.close()
