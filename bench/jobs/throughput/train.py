"""The loop of jobs/digits-cnn for a given time on one core: how many samples a second?

Runs on the platform and bare, the same way: it reports metrics each epoch and saves checkpoints as they fall due. The
answer is RESULT_DIR/speed.json; the first seconds, in which caches fill, do not count.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import updraft_learner as updraft

PARAMS = updraft.params()
if PARAMS.get("core") is not None and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(PARAMS["core"])})  # before PyTorch starts its threads

import torch  # noqa: E402
from digits import DigitsNet, augment  # noqa: E402
from torch import nn  # noqa: E402

SAMPLES, BATCH, WIDTH = 1408, 128, 48


def main() -> None:
    seconds, warm_up_seconds = float(PARAMS["seconds"]), float(PARAMS["warm_up_seconds"])
    torch.manual_seed(1)
    torch.set_num_threads(1)
    pixels, labels = torch.rand(SAMPLES, 1, 8, 8), torch.randint(0, 10, (SAMPLES,))
    model = DigitsNet(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    generator = torch.Generator().manual_seed(1)
    checkpoints = updraft.Checkpointer()

    epoch = saved = 0
    began: float | None = None
    cpu_began = 0.0
    counted: list[float] = []  # seconds of each epoch that counts
    start = time.monotonic()
    while began is None or time.monotonic() - began < seconds:
        if began is None and time.monotonic() - start >= warm_up_seconds:
            began, cpu_began, saved = time.monotonic(), time.process_time(), 0
        epoch_began = time.monotonic()
        epoch += 1
        model.train()
        losses = []
        for batch in torch.randperm(SAMPLES, generator=generator).split(BATCH):
            logits = model(augment(pixels[batch], generator))
            loss = nn.functional.cross_entropy(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        step = epoch * len(losses)
        updraft.log_metrics({"loss": torch.stack(losses).mean().item()}, step=step)
        updraft.progress(step=step, total=1_000_000, epoch=epoch)
        print(f"epoch {epoch}  {time.monotonic() - epoch_began:.3f} s")
        updraft.stop_requested()
        if checkpoints.due():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            saved += checkpoints.save(state, step)
        if began is not None:
            counted.append(time.monotonic() - epoch_began)
    assert began is not None
    span, cpu = time.monotonic() - began, time.process_time() - cpu_began
    checkpoints.save({"model": model.state_dict(), "epoch": epoch}, epoch * len(losses) + 1, block=True)
    speed: dict[str, Any] = {
        "samples": len(counted) * SAMPLES,
        "seconds": span,
        "cpu_seconds": cpu,
        "epoch_seconds": counted,
        "checkpoints": saved,
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }
    (updraft.result_dir() / "speed.json").write_text(json.dumps(speed), encoding="utf-8")
    print(f"{speed['samples'] / span:.1f} samples/s")


if __name__ == "__main__":
    main()
