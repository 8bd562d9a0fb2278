"""Scaling that real PyTorch programs report: with DistributedDataParallel over gloo, and alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

from updraft_learner import scaling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).with_name("scaling_ranks.py")


def lines(root: Path, ranks: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(root), str(ranks)], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in (root / "rank-0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_program_reports_its_noise_and_its_times(tmp_path: Path, ranks: int) -> None:
    found = lines(tmp_path, ranks)
    (times,) = (line["scaling"] for line in found if "timings" in line.get("scaling", {}))
    assert [batch for batch, _ in times["timings"]] == [4, 64]
    assert all(0 < seconds < 1 for _, seconds in times["timings"])
    assert times["gradient_bytes"] == 40
    assert [size for size, _ in times.get("exchange", [])] == ([] if ranks == 1 else list(scaling.EXCHANGE_BYTES))
    # The gradient of a sample at zero is -2 y x: with 10 weights of 1 and noise of 1, its mean is -2 w, and
    # E|y x|^2 = E[y^2] * 10 + 2 * 10 = 11 * 10 + 20 = 130. So the scale is (130 - 10) / 10 = 12 samples.
    noise = [line["scaling"]["noise"] for line in found if "noise" in line.get("scaling", {})]
    assert noise[-1] == pytest.approx(12, rel=0.25)
    shown = [line["metrics"]["gradient_noise_scale"] for line in found if "metrics" in line]
    assert shown == noise
