"""The loop of jobs/digits-cnn on one core, in turns with another process that runs it too: how many samples a second?

Runs on the platform and bare, the same way: it reports metrics each epoch and saves checkpoints as they fall due. The
two share a core and work in turns of some seconds, so that both meet the same moods of the machine. The answer is
RESULT_DIR/turns.json.
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
from turns import my_turns  # noqa: E402

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
    turns = []
    for number in my_turns(str(PARAMS["pipes"]), int(PARAMS["side"]), int(PARAMS["turns"])):
        began, cpu_began, epochs, saved = time.monotonic(), time.process_time(), 0, 0
        while time.monotonic() - began < float(PARAMS["turn_seconds"]):
            epoch_began = time.monotonic()
            epoch += 1
            epochs += 1
            model.train()
            losses = []
            for batch in torch.randperm(SAMPLES, generator=generator).split(BATCH):
                logits = model(augment(pixels[batch], generator))
                loss = nn.functional.cross_entropy(logits, labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            step += len(losses)
            updraft.log_metrics({"loss": torch.stack(losses).mean().item()}, step=step)
            updraft.progress(step=step, total=1_000_000, epoch=epoch)
            print(f"epoch {epoch}  {time.monotonic() - epoch_began:.3f} s")
            updraft.stop_requested()
            if checkpoints.due():
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                saved += checkpoints.save(state, step)
        span, cpu = time.monotonic() - began, time.process_time() - cpu_began
        turns.append(
            {"turn": number, "samples": epochs * SAMPLES, "seconds": span, "cpu_seconds": cpu, "checkpoints": saved}
        )
    checkpoints.save({"model": model.state_dict(), "epoch": epoch}, step + 1, block=True)
    (updraft.result_dir() / "turns.json").write_text(json.dumps(turns), encoding="utf-8")


if __name__ == "__main__":
    main()
