"""Train a small transformer on text in shards, with learners that join, leave and die while the others train on.

    python train.py --epochs 1

Several learners are started as for jobs/elastic-cnn. The text is Python's own documentation: each module of the
standard library is a shard, which is read from an offset on, so that each piece is used once in an epoch. Two learners
hold the optimizer's state of each parameter, instead of all of them (`sharded`).
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import updraft_learner as updraft
from updraft_learner import elastic

MODULES = ("argparse", "ast", "asyncio", "collections", "datetime", "functools", "inspect", "json", "logging", "random")
PIECE = 64  # characters that are read to predict the next one of each
WIDTH, HEADS, LAYERS = 64, 4, 2
CHARACTERS = 128  # ASCII; others are shown as "?"


class SourceText:
    """Pieces of the sources of Python's standard library: a data set in shards."""

    def shards(self) -> tuple[str, ...]:
        return MODULES

    def open(self, shard: str, offset: int) -> Iterator[Tensor]:
        """Yield pieces [PIECE + 1] of a module's text, the first `offset` ones left out."""
        text = inspect.getsource(__import__(shard)).encode("ascii", "replace")
        for begin in range(offset * PIECE, len(text) - PIECE, PIECE):
            yield torch.tensor(list(text[begin : begin + PIECE + 1]))


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.places = nn.Embedding(PIECE, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(PIECE), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits [B, PIECE, CHARACTERS] of the characters that follow those of `text` [B, PIECE]."""
        embedded = self.characters(text) + self.places.weight
        logits: Tensor = self.head(self.layers(embedded, mask=self.mask, is_causal=True))
        return logits


def loss_of(model: nn.Module, pieces: Tensor) -> Tensor:
    """Return the mean cross-entropy of pieces [B, PIECE + 1]."""
    return cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(**updraft.params())
    config = parser.parse_args()
    torch.manual_seed(config.seed)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.7)
    example = torch.zeros(8, PIECE + 1, dtype=torch.int64)

    training = elastic.init(
        model,
        optimizer,
        SourceText(),
        batch=64,
        epochs=config.epochs,
        seed=config.seed,
        sharded=True,
        max_grad_norm=1.0,
        also={"scheduler": scheduler},
        after_step=scheduler.step,
        warm_up=lambda: loss_of(model, example),
        checkpoints=updraft.Checkpointer(),
    )
    for pieces in training:
        loss = loss_of(model, pieces)
        if training.step(loss) and training.rank == 0:
            updraft.log_metrics({"loss": loss.item(), "learners": training.learners}, step=training.steps)
            if training.steps % 20 == 0:
                print(f"step {training.steps}  loss {loss.item():.3f}  {training.learners} learners", flush=True)

    print(f"{training.outcome} after {training.steps} steps in {len(training.changes)} groups", flush=True)
    if training.outcome == "finished" and training.rank == 0:
        pieces = torch.stack(list(SourceText().open("textwrap", 0)))  # not in the training's text
        model.eval()
        with torch.no_grad():
            print(f"val_loss {loss_of(model, pieces).item():.4f}", flush=True)
        updraft.save_model(model, example[:, :-1])


if __name__ == "__main__":
    main()
