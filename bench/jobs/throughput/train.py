"""The loop of jobs/digits-cnn on one core, for a given time; RESULT_DIR/batches.json says when each batch was done.

It reports metrics each epoch and saves checkpoints as they fall due, as any program of the platform does.
"""

from __future__ import annotations

import json
import os
import time

import updraft_learner as updraft

PARAMS = updraft.params()
if PARAMS.get("core") is not None and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(PARAMS["core"])})  # before PyTorch starts its threads

import torch  # noqa: E402
from digits import DigitsNet, augment  # noqa: E402
from torch import nn  # noqa: E402

SAMPLES, BATCH, WIDTH = 1408, 128, 48


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    pixels, labels = torch.rand(SAMPLES, 1, 8, 8), torch.randint(0, 10, (SAMPLES,))
    model = DigitsNet(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    generator = torch.Generator().manual_seed(1)
    checkpoints = updraft.Checkpointer()

    epoch = step = 0
    batches: list[tuple[float, float]] = []  # unix seconds, seconds of CPU time
    stored: list[float] = []
    until = time.monotonic() + float(PARAMS["seconds"])
    while time.monotonic() < until:
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
            batches.append((time.time(), time.process_time()))
        step += len(losses)
        updraft.log_metrics({"loss": torch.stack(losses).mean().item()}, step=step)
        updraft.progress(step=step, total=1_000_000, epoch=epoch)
        print(f"epoch {epoch}", flush=True)
        updraft.stop_requested()
        if checkpoints.due():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            if checkpoints.save(state, step):
                stored.append(time.time())
    checkpoints.save({"model": model.state_dict(), "epoch": epoch}, step + 1, block=True)
    told = {"samples": BATCH, "batches": batches, "checkpoints": stored}
    (updraft.result_dir() / "batches.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
