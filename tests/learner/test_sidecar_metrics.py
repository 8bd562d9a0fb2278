"""From the metrics file and the journal to MLflow: each point once, in order, whatever is killed or away."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner.sidecar_fakes import FailingStore, FakeMlflow, FillingDisk, make_paths

from updraft_learner.mlflow_rest import ServerUnavailable
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.forward import Forwarder
from updraft_learner.record.journal import Journal, JournalPosition
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.followed import READ_BYTES
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.system import parse_gpus
from updraft_learner.sidecar.tail import MetricsTail
from updraft_learner.store import StorageError


class Chain:
    """Tail, recorder, journal and forwarder over one folder; a new Chain is a restarted sidecar."""

    def __init__(self, root: Path, mlflow: FakeMlflow, learner: int = 1, disk: PodDisk = POD_DISK) -> None:
        if not root.exists():
            make_paths(root)
        self.root, self.warnings = root, Warnings()
        self.journal = Journal(root / ".sidecar" / "journal", disk=disk)
        self.recorder = Recorder(self.journal, self.warnings, learner=learner)
        self.tail = MetricsTail(root, self.journal, self.recorder, self.warnings)
        self.forwarder = Forwarder(self.journal, mlflow.client(), self.warnings, root / ".sidecar" / "forward.json")

    def append(self, *lines: dict[str, Any] | str, end: str = "\n") -> None:
        with (self.root / "io" / "metrics.jsonl").open("a") as file:
            for line in lines:
                file.write((line if isinstance(line, str) else json.dumps(line)) + end)

    def send(self) -> None:
        while self.forwarder.step():
            pass

    def record(self) -> list[dict[str, Any]]:
        entries = [entry for entry, _ in self.journal.read(JournalPosition())]
        return [{key: value for key, value in entry.items() if key not in ("read_at", "n")} for entry in entries]


def loss(step: int, value: float = 1.0, t: float = 100.0) -> dict[str, Any]:
    return {"t": t, "step": step, "metrics": {"loss": value}}


def once(verdict: int | str) -> Callable[[str, str, dict[str, Any]], int | str | None]:
    """The first batch meets this, the rest goes well."""
    verdicts = [verdict]
    return lambda method, path, body: verdicts.pop() if path == "runs/log-batch" and verdicts else None


def test_points_keep_their_time_and_step(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(3, 0.5, t=1732.125), {"t": 1, "tags": {"a": "b"}, "params": {"lr": 0.1, "name": "x"}})
    chain.tail.poll()
    chain.send()
    assert mlflow.metrics == [{"key": "loss", "value": 0.5, "timestamp": 1732125, "step": 3}]
    assert (mlflow.params, mlflow.tags) == ({"lr": "0.1", "name": "x"}, {"a": "b"})
    assert (chain.forwarder.sent, chain.forwarder.pending) == (1, 0)


def test_other_learners_have_names_of_their_own(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow, learner=2)
    chain.append({"step": 1, "metrics": {"loss": 1.0}, "params": {"lr": "1"}})
    chain.tail.poll()
    chain.send()
    assert mlflow.points("learner_2/loss") == [(1, 1.0)]
    assert mlflow.params == {"learner_2/lr": "1"}


BAD = {
    "not json": "it is not JSON",
    "[1]": "it is no object",
    '{"metrics": {"a": 1}}': "`step` is missing",
    '{"step": 1.5, "metrics": {"a": 1}}': "`step` is no whole number",
    '{"step": Infinity, "metrics": {"a": 1}}': "`step` is missing or no whole number",
    '{"step": 1, "metrics": {"a": "high"}}': "`metric a` is no number",
    '{"step": 1, "metrics": {"a": true}}': "`metric a` is no number",
    '{"step": 1, "metrics": 5}': "`metrics` is no object",
    '{"step": 1, "t": "now", "metrics": {"a": 1}}': "`t` is no number",
    '{"step": 1, "metrics": {"a": 1' + "0" * 400 + "}}": "`metric a` is too large",
    "[" * 100_000: "it is not JSON",
}


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_counted_and_the_next_one_read(tmp_path: Path, mlflow: FakeMlflow, line: str) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(line, loss(1), "")
    chain.tail.poll()
    assert chain.recorder.bad_lines == 1
    assert BAD[line] in chain.warnings.texts()[0]
    assert [entry["step"] for entry in chain.record()] == [1]


def test_an_endless_line_is_skipped(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append("x" * (2 * READ_BYTES + 10), loss(1))
    chain.tail.poll()
    assert chain.recorder.bad_lines == 1
    assert [entry["step"] for entry in chain.record()] == [1]


def test_half_a_line_waits_for_its_end(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    text = json.dumps(loss(1))
    chain.append(text[:20], end="")
    chain.tail.poll()
    assert chain.record() == []
    chain.append(text[20:], end="")
    chain.tail.poll()
    assert chain.record() == []
    chain.tail.poll(final=True)
    assert [entry["step"] for entry in chain.record()] == [1]


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1), loss(2))
    chain.tail.poll()
    (chain.root / "io" / "metrics.jsonl").unlink()
    chain.append(loss(3))
    chain.tail.poll()
    again = Chain(chain.root, mlflow)
    again.append(loss(4))
    again.tail.poll()
    assert [entry["step"] for entry in again.record()] == [1, 2, 3, 4]


def test_a_link_to_another_file_is_not_read(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    (tmp_path / "secret").write_text(json.dumps(loss(1)) + "\n")
    (chain.root / "io" / "metrics.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        chain.tail.poll()
    assert chain.record() == []


def test_progress_and_last_values_are_known(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1, 2.0), loss(2, float("inf")), {"progress": {"step": 2, "total": 9, "epoch": 1, "other": "x"}})
    chain.tail.poll()
    assert chain.recorder.progress() == {"step": 2, "total": 9, "epoch": 1}
    assert chain.recorder.last_metrics() == {"loss": "Infinity"}


def test_nan_is_recorded_marked_and_sent_but_infinity_is_not_sent(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1, float("nan")), loss(2, float("-inf")), loss(3, 1.0))
    chain.tail.poll()
    chain.send()
    assert [entry["metrics"]["loss"] for entry in chain.record() if "metrics" in entry] == ["NaN", "-Infinity", 1.0]
    assert mlflow.points("loss") == [(1, "NaN"), (3, 1.0)]
    assert mlflow.tags == {"updraft.warning.nan": "metric loss at step 1 is NaN"}
    assert chain.recorder.nan == 2


def test_a_server_without_nan_gets_the_rest(tmp_path: Path, mlflow: FakeMlflow) -> None:
    def behave(method: str, path: str, body: dict[str, Any]) -> int | None:
        return 400 if any(item["value"] == "NaN" for item in body.get("metrics", ())) else None

    mlflow.behave = behave
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1), loss(2, float("nan")), loss(3))
    chain.tail.poll()
    chain.send()
    assert mlflow.points("loss") == [(1, 1.0), (3, 1.0)]
    assert chain.forwarder.refused == 0


def test_one_point_per_step_reaches_mlflow_and_all_are_in_the_record(tmp_path: Path, mlflow: FakeMlflow) -> None:
    mlflow.metrics = [
        {"key": "loss", "value": 9.0, "timestamp": 1, "step": step} for step in range(8)
    ]  # attempt before
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(*(loss(step, step / 2) for step in (6, 7, 8, 8, 9)))
    chain.tail.poll()
    chain.send()
    assert mlflow.points("loss")[8:] == [(8, 4.0), (9, 4.5)]
    assert chain.forwarder.duplicates == 3
    assert len(chain.record()) == 5


@pytest.mark.parametrize("verdict", ["drop", "drop after", 500, 503, 429])
def test_an_unclear_answer_doubles_nothing(tmp_path: Path, mlflow: FakeMlflow, verdict: int | str) -> None:
    mlflow.behave = once(verdict)
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(*(loss(step) for step in range(10)))
    chain.tail.poll()
    with pytest.raises(ServerUnavailable):
        chain.send()
    assert chain.forwarder.pending == 10
    chain.append(loss(10))
    chain.tail.poll()
    chain.send()
    assert mlflow.points("loss") == [(step, 1.0) for step in range(11)]
    assert (chain.forwarder.pending, chain.forwarder.duplicates) == (0, 0)


def test_a_sidecar_killed_before_it_noted_the_answer_doubles_nothing(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(*(loss(step) for step in range(5)))
    chain.tail.poll()
    chain.forwarder._save = lambda: None  # type: ignore[method-assign]
    chain.send()
    again = Chain(chain.root, mlflow)
    assert again.forwarder.pending == 5
    again.append(loss(5))
    again.tail.poll()
    again.send()
    assert mlflow.points("loss") == [(step, 1.0) for step in range(6)]
    assert again.forwarder.pending == 0


def test_what_mlflow_refuses_does_not_hold_up_the_rest(tmp_path: Path, mlflow: FakeMlflow) -> None:
    def behave(method: str, path: str, body: dict[str, Any]) -> int | None:
        bad = [*body.get("metrics", ()), *body.get("params", ())] if path == "runs/log-batch" else []
        return 400 if any(item["key"].startswith("bad") for item in bad) else None

    mlflow.behave = behave
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(*({"step": step, "metrics": {f"m{step}": 1.0}} for step in range(7)))
    chain.append({"step": 1, "metrics": {"bad metric": 1.0}, "params": {"bad": "1", "good": "2"}, "tags": {"t": "3"}})
    chain.tail.poll()
    chain.send()
    assert {item["key"] for item in mlflow.metrics} == {f"m{step}" for step in range(7)}
    assert (mlflow.params, mlflow.tags) == ({"good": "2"}, {"t": "3"})
    assert sorted(chain.warnings.texts()) == ["MLflow refused 'bad metric': as told", "MLflow refused 'bad': as told"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_run_keeps_everything(tmp_path: Path, mlflow: FakeMlflow, status: int) -> None:
    mlflow.behave = lambda *_: status
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1))
    chain.tail.poll()
    with pytest.raises(ServerUnavailable, match="MLflow refuses"):
        chain.send()
    assert chain.forwarder.pending == 1


def test_batches_stay_within_mlflows_limits(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append({"step": 1, "metrics": {f"m{n}": n for n in range(2500)}})
    chain.append({"params": {f"p{n}": "x" * 4000 for n in range(250)}})
    chain.tail.poll()
    chain.send()
    batches = mlflow.sent("runs/log-batch")
    assert len(mlflow.metrics) == 2500
    assert len(mlflow.params) == 250
    assert all(len(batch["metrics"]) <= 1000 and len(batch["params"]) <= 100 for batch in batches)
    assert all(len(json.dumps(batch)) < 1_000_000 for batch in batches)


def test_calls_are_made_in_their_turn(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1))
    chain.tail.poll()
    chain.recorder.record([chain.recorder.call_entry("runs/log-inputs", {"run_id": "run1"})])
    chain.append(loss(2))
    chain.tail.poll()
    chain.send()
    writes = [path for method, path, _ in mlflow.calls if method == "POST"]
    assert writes == ["runs/log-batch", "runs/log-inputs", "runs/log-batch"]


def test_the_servers_password_is_sent_to_the_server_and_shown_nowhere(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1))
    chain.tail.poll()
    chain.send()
    assert mlflow.authorization == {"Basic dXNlcjpodXNo"}
    assert "hush" not in repr(vars(chain.forwarder)["_server"])


def test_chunks_are_uploaded_once_and_forgotten_when_sent(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain, store = Chain(tmp_path / "pod", mlflow), FailingStore(tmp_path / "s3")
    chain.append(loss(1))
    chain.tail.poll()
    chain.journal.roll()
    chain.journal.upload(store, "chunks")
    assert store.written == []  # too young
    chain.journal.roll(force=True)
    store.fails = lambda *_: True
    with pytest.raises(StorageError):
        chain.journal.upload(store, "chunks")
    store.fails = lambda *_: False
    chain.journal.upload(store, "chunks")
    chain.journal.prune(chain.forwarder.position)
    assert store.written == ["chunks/00000001.jsonl"]
    assert len(chain.record()) == 1  # not sent yet
    chain.send()
    chain.journal.prune(chain.forwarder.position)
    again = Chain(chain.root, mlflow)
    again.append(loss(2))
    again.tail.poll()
    again.journal.roll(force=True)
    again.journal.upload(store, "chunks")
    again.send()
    assert store.written == ["chunks/00000001.jsonl", "chunks/00000002.jsonl"]
    lines = [json.loads(line) for key in store.written for line in (store.get_bytes(key) or b"").splitlines()]
    assert [(line["n"], line["step"]) for line in lines] == [(1, 1), (2, 2)]
    assert mlflow.points("loss") == [(1, 1.0), (2, 1.0)]


def test_a_line_cut_by_a_kill_is_dropped_and_read_again(tmp_path: Path, mlflow: FakeMlflow) -> None:
    chain = Chain(tmp_path / "pod", mlflow)
    chain.append(loss(1), loss(2))
    chain.tail.poll()
    segment = chain.root / ".sidecar" / "journal" / "00000001.jsonl"
    segment.write_bytes(segment.read_bytes()[:-10])
    again = Chain(chain.root, mlflow)
    again.tail.poll()
    assert [entry["step"] for entry in again.record()] == [1, 2]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["write", "poll", "send", "roll", "kill", "lose", "cut", "full", "room"]), max_size=25))
def test_whatever_happens_each_point_arrives_once(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> None:
    root = tmp_path_factory.mktemp("any") / "pod"
    mlflow, store, disk = FakeMlflow(), FailingStore(root.parent / "s3"), FillingDisk()
    try:
        chain, written = Chain(root, mlflow, disk=disk), 0
        for event in events:
            if event == "write":
                chain.append(*(loss(step) for step in range(written, written + 3)))
                written += 3
            elif event == "poll":
                chain.tail.poll()
            elif event == "send":
                chain.send()
            elif event == "roll":
                chain.journal.roll(force=True)
                chain.journal.upload(store, "c")
                chain.journal.prune(chain.forwarder.position)
            elif event == "kill":
                chain = Chain(root, mlflow, disk=disk)
            elif event in ("full", "room"):
                disk.full = event == "full"
            else:
                mlflow.behave = once("drop after" if event == "lose" else "drop")
                with suppress(ServerUnavailable):
                    chain.send()
                mlflow.behave = lambda *_: None
        disk.full = False
        chain.tail.poll()
        chain.journal.write_held()
        chain.send()
        chain.journal.upload(store, "c")
        chain.journal.upload_rest(store, "c")
        assert mlflow.points("loss") == [(step, 1.0) for step in range(written)]
        lines = [
            json.loads(line) for item in store.list("c/") for line in (store.get_bytes(item.key) or b"").splitlines()
        ]
        assert [(line["n"], line["step"]) for line in lines] == [(step + 1, step) for step in range(written)]
        assert (chain.forwarder.pending, chain.journal.held_entries) == (0, 0)
    finally:
        mlflow.close()


def test_gpu_values_as_the_driver_prints_them() -> None:
    text = "0, 87, 2000, 80000, 301.50\n1, [N/A], 0, 80000, [Not Supported]\nNo devices were found\n"
    assert parse_gpus(text) == {
        "gpu_0_utilization_percentage": 87.0,
        "gpu_0_memory_usage_megabytes": 2097.2,
        "gpu_0_memory_usage_percentage": 2.5,
        "gpu_0_power_usage_watts": 301.5,
        "gpu_1_memory_usage_megabytes": 0.0,
        "gpu_1_memory_usage_percentage": 0.0,
    }
