"""A language model of some million parameters, as people train it: imports, a corpus to encode, a state to restore.

Runs on the platform and bare, the same way, until it is asked to stop. Its start and each step are noted with their
times in the file of BENCH_STEPS, which the platform does not know of.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path


def note(step: int) -> None:
    with Path(os.environ["BENCH_STEPS"]).open("a") as file:
        file.write(json.dumps({"t": time.time(), "step": step, "pid": os.getpid()}) + "\n")


note(0)  # before anything that takes time

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import updraft_learner as updraft  # noqa: E402

TEXTS, WORDS, VOCABULARY = int(os.environ["BENCH_TEXTS"]), 1_200_000, 8_000
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 8, 256, 4, 4


class Model(nn.Module):
    """A decoder: tokens [N, T] to logits [N, T, V]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.place = nn.Parameter(torch.zeros(1, CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens) + self.place, mask=self.mask, is_causal=True))


def corpus(number: int) -> str:
    """Text with the frequencies of a natural one; made here, so that nothing is downloaded."""
    rng = random.Random(number)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(3 * VOCABULARY)]
    return " ".join(rng.choices(words, weights=[1 / (rank + 1) for rank in range(len(words))], k=WORDS))


def encode(text: str) -> Tensor:
    words = text.split()
    known = {word: number for number, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1))}
    return torch.tensor([known.get(word, VOCABULARY - 1) for word in words])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokens = torch.cat([encode(corpus(number)) for number in range(TEXTS)])
    model = Model(VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    checkpoints = updraft.Checkpointer()
    step = 0
    if (restored := checkpoints.restore()) is not None:
        state, step = restored
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print(f"goes on after step {step}", flush=True)
    while not updraft.stop_requested():
        starts = torch.randint(0, len(tokens) - CONTEXT - 1, (BATCH,))
        batch = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        note(step)
        updraft.log_metrics({"loss": loss.item()}, step=step)
        if checkpoints.due():
            checkpoints.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
    checkpoints.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step, block=True)
    updraft.preempted_exit()


if __name__ == "__main__":
    main()
