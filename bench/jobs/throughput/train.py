"""Trains one of three models on one core for a given time; RESULT_DIR/batches.json says when each batch was done.

It reports metrics each epoch and saves checkpoints as they fall due, as any program of the platform does.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import updraft_learner as updraft

PARAMS = updraft.params()
if PARAMS.get("core") is not None and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(PARAMS["core"])})  # before PyTorch starts its threads

EPOCH = 11  # batches
Model = tuple[int, Iterator[float], Callable[[updraft.Checkpointer, int], bool]]  # batch size, losses, save


def cnn() -> Model:
    """Return the network and the augmentation of jobs/digits-cnn."""
    import torch
    from digits import DigitsNet, augment
    from torch import nn

    samples, batch_size, width = 1408, 128, 48
    torch.set_num_threads(1)
    torch.manual_seed(1)
    pixels, labels = torch.rand(samples, 1, 8, 8), torch.randint(0, 10, (samples,))
    model = DigitsNet(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    generator = torch.Generator().manual_seed(1)

    def losses() -> Iterator[float]:
        while True:
            for batch in torch.randperm(samples, generator=generator).split(batch_size):
                loss = nn.functional.cross_entropy(model(augment(pixels[batch], generator)), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss.item()

    def save(checkpoints: updraft.Checkpointer, step: int) -> bool:
        return checkpoints.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)

    return batch_size, losses(), save


def transformer() -> Model:
    """Return a decoder of two layers on random tokens."""
    import torch
    from torch import nn

    vocabulary, context, batch_size, width = 1000, 32, 8, 128
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    embed, head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.ModuleList([embed, layers, head])
    mask = nn.Transformer.generate_square_subsequent_mask(context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def losses() -> Iterator[float]:
        while True:
            tokens = torch.randint(0, vocabulary, (batch_size, context + 1))
            logits = head(layers(embed(tokens[:, :-1]), mask=mask, is_causal=True))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    def save(checkpoints: updraft.Checkpointer, step: int) -> bool:
        return checkpoints.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)

    return batch_size, losses(), save


def sklearn() -> Model:
    """Train a linear classifier that learns batch by batch."""
    import numpy as np
    from sklearn.linear_model import SGDClassifier

    samples, batch_size, features = 4096, 512, 64
    random = np.random.default_rng(1)
    pixels, labels = random.random((samples, features)), random.integers(0, 10, samples)
    model = SGDClassifier(loss="log_loss", random_state=0)
    classes = np.arange(10)

    def losses() -> Iterator[float]:
        while True:
            for begin in range(0, samples, batch_size):
                span = slice(begin, begin + batch_size)
                model.partial_fit(pixels[span], labels[span], classes=classes)
                yield float(np.abs(model.coef_).mean())

    def write(folder: Path) -> None:
        np.savez(folder / "model.npz", coef=model.coef_, intercept=model.intercept_)

    def save(checkpoints: updraft.Checkpointer, step: int) -> bool:
        return checkpoints.save(step=step, writer=write)

    return batch_size, losses(), save


MODELS: dict[str, Callable[[], Model]] = {"cnn": cnn, "transformer": transformer, "sklearn": sklearn}


def main() -> None:
    batch_size, losses, save = MODELS[str(PARAMS.get("model", "cnn"))]()
    checkpoints = updraft.Checkpointer()
    step = 0
    batches: list[tuple[float, float]] = []  # unix seconds, seconds of CPU time
    stored: list[float] = []
    until = time.monotonic() + float(PARAMS["seconds"])
    while time.monotonic() < until:
        for _ in range(EPOCH):
            loss = next(losses)
            batches.append((time.time(), time.process_time()))
        step += EPOCH
        if step % (10 * EPOCH) == 0:
            updraft.log_metrics({"loss": loss}, step=step)
            updraft.progress(step=step, total=1_000_000)
            print(f"step {step}", flush=True)
        updraft.stop_requested()
        if checkpoints.due() and save(checkpoints, step):
            stored.append(time.time())
    checkpoints.wait()
    told: dict[str, Any] = {"samples": batch_size, "batches": batches, "checkpoints": stored}
    (updraft.result_dir() / "batches.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
