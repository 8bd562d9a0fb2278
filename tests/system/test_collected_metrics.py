"""Metrics of programs that know neither Updraft nor MLflow: taken from what they print and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pages
import pytest
import yaml
from system_helpers import Stack, pretty
from tensorboardX import SummaryWriter

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]

# It copies the event file in two pieces: a learner of scikit-learn has no library that writes one.
PROGRAM = """
import json, logging, os, pathlib, shutil, sys, time
logging.basicConfig(level=logging.INFO)
content = pathlib.Path("made.bin").read_bytes()
folder = pathlib.Path("runs/first/train")
folder.mkdir(parents=True)
with open(folder / "events.out.tfevents.1.host", "wb") as file:
    file.write(content[:60])
    file.flush()
    for step in range(5):
        print(f"step {step} loss {1 / (step + 1):.4f}")
        logging.info("val at %d: acc=%s", step, step / 10)
        with open(os.environ["RESULT_DIR"] + "/log.jsonl", "a") as log:
            log.write(json.dumps({"iteration": step, "lr": 0.1 * step, "eval": {"f1": 1.0}}) + "\\n")
        time.sleep(0.3)
    file.write(content[60:])
print("the last: loss 0.5", flush=True)
"""
MORE = [
    {"type": "regex", "pattern": "the last: loss %{FLOAT:final}"},
    {"type": "regex", "pattern": "never printed %{FLOAT:never}"},
]


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "framework": {"name": "sklearn"},
        "code": ".",
        "command": "python train.py",
        "resources": {"learners": 1, "cpus": 0.5, "memory": "512MiB"},
        **fields,
    }


def test_what_a_program_prints_and_writes_becomes_metrics(stack: Stack, code: Path, tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path / "made"))
    for step in range(4):
        writer.add_scalar("Loss", 1.0 / (step + 1), step)
    writer.close()
    (code / "made.bin").write_bytes(next((tmp_path / "made").iterdir()).read_bytes())
    (code / "train.py").write_text(PROGRAM)
    (shown,) = [block.text for block in pages.blocks("docs/howto/metrics.md") if block.language == "yaml"]
    manifest = yaml.safe_load(shown)
    manifest["metrics"] += MORE
    detail = stack.end(job_id := stack.submit(manifest, base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    names = ["loss", "val/accuracy", "final", "train/Loss", "file/lr", "file/eval/f1"]
    history = stack.client.metrics(job_id, *names).history
    points = {name: [(point.step, point.value) for point in history[name]] for name in names}
    assert [step for step, _ in points["loss"]] == [0, 1, 2, 3, 4]
    assert points["val/accuracy"] == [(step, step / 10) for step in range(5)]
    assert points["final"] == [(0, 0.5)]
    assert points["train/Loss"] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3)), (3, 0.25)]
    assert [step for step, _ in points["file/lr"]] == [0, 1, 2, 3, 4]
    assert points["file/eval/f1"][-1] == (4, 1.0)
    assert "step 4 loss 0.2000" in stack.log(job_id)
    assert "val at 4: acc=0.4" in stack.log(job_id)
    assert "metrics[5]: no line of the program&#39;s output matched" in stack.job_page(job_id)


def test_a_program_that_is_asked_to_stop_or_fails_ends_as_without_it(stack: Stack, code: Path) -> None:
    metrics = [{"type": "regex", "pattern": "step %{INT:step}: %{FLOAT:x}"}]
    (code / "train.py").write_text(
        "import signal, sys, time\n"
        "def stop(*_):\n    print('step 99: 99', flush=True); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('step 1: 1', flush=True)\n"
        "while len(sys.argv) == 1: time.sleep(0.1)\n"
        "sys.exit('step 2: 2')\n"
    )
    stopped = stack.submit(job("stopped", metrics=metrics), base=code)
    failed = stack.submit(job("failed", metrics=metrics, command="python train.py fail"), base=code)
    until_printed(stack, stopped)
    assert stack.run("cancel", stopped, "--wait", timeout_seconds=240).returncode == 0
    assert stack.client.metrics(stopped).last["x"] == 99  # the program was told, and its last words were read
    detail = stack.end(failed)
    assert detail.state == "FAILED", pretty(detail)
    assert "step 2: 2" in detail.reason
    assert detail.metrics["x"] == 2


def until_printed(stack: Stack, job_id: str) -> str:
    """The program's first line; the wait is bounded by the test's."""
    for line in stack.client.logs(job_id, follow=True):
        if line.line.startswith("step"):
            return str(line.line)
    raise AssertionError("the program printed nothing")
