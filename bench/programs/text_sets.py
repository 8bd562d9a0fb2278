"""The program of the figure `small_batches`: `python text_sets.py JSON`, in the PyTorch learner's environment.

Trains the classifier of `task: text-classification` on text sets that this file makes, each with one learning rate for
all sets and all batches, and as many texts in all. Prints the accuracy on held-out texts, by batch and set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from random import Random

import torch
from torch import Tensor, nn

from updraft_learner.tasks.text_classifier import LEARNING_RATE, TextClassifier
from updraft_learner.tasks.texts import encode

TEXTS, HELD_OUT = 1600, 400
Rows = list[tuple[str, int]]


def _words(number: int, prefix: str) -> list[str]:
    return [f"{prefix}{each}" for each in range(number)]


def _padded(chance: Random, chosen: list[str], length: int, common: list[str]) -> str:
    words = [*chosen, *chance.choices(common, k=length - len(chosen))]
    chance.shuffle(words)
    return " ".join(words)


def sentiment(chance: Random) -> tuple[str, int]:
    """Return a text with one of two labels; a few words of 40 tell, and one of four speaks against."""
    label = chance.randrange(2)
    sides = (_words(60, "bad"), _words(60, "good"))
    chosen = [*chance.choices(sides[label], k=3), *chance.choices(sides[1 - label], k=1)]
    return _padded(chance, chosen, 40, _words(400, "w")), label


def topics(chance: Random) -> tuple[str, int]:
    """Return a text with one of twenty labels with 30 words each, which neighbours share in part."""
    label = chance.randrange(20)
    own = [f"t{20 * label + each}" for each in range(30)]
    return _padded(chance, chance.choices(own, k=6), 30, _words(300, "w")), label


def orders(chance: Random) -> tuple[str, int]:
    """Return a text with one of two labels, of which only the order of two words tells."""
    label = chance.randrange(2)
    pair = chance.choice([("ask", "pay"), ("send", "take"), ("open", "shut"), ("come", "leave")])
    first, second = pair if label else pair[::-1]
    words = chance.choices(_words(100, "w"), k=12)
    place = chance.randrange(len(words))
    return " ".join([*words[:place], first, second, *words[place:]]), label


def rare(chance: Random) -> tuple[str, int]:
    """Return a text with one of five labels, the rarest of which has one text in fifty."""
    label = chance.choices(range(5), weights=(50, 30, 12, 6, 2))[0]
    return _padded(chance, chance.choices(_words(40, f"c{label}x"), k=3), 20, _words(200, "w")), label


def noisy(chance: Random) -> tuple[str, int]:
    """Return a text with one of four labels, a tenth of which is drawn anew."""
    label = chance.randrange(4)
    text = _padded(chance, chance.choices(_words(50, f"n{label}x"), k=4), 25, _words(300, "w"))
    return text, chance.randrange(4) if chance.random() < 0.1 else label


SETS: dict[str, Callable[[Random], tuple[str, int]]] = {
    "sentiment": sentiment,
    "topics": topics,
    "orders": orders,
    "rare": rare,
    "noisy": noisy,
}


def made(name: str, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the tokens and labels of the texts to train on, and then those of the texts that are held out."""
    chance = Random(f"{name} {seed}")
    rows = [SETS[name](chance) for _ in range(TEXTS + HELD_OUT)]
    tokens = torch.tensor([encode(text) for text, _ in rows])
    labels = torch.tensor([label for _, label in rows])
    return (tokens[:TEXTS], labels[:TEXTS]), (tokens[TEXTS:], labels[TEXTS:])


def accuracy(name: str, batch: int, epochs: int, seed: int) -> float:
    """Return the accuracy on held-out texts after so many epochs with batches of this size."""
    (tokens, labels), (held_tokens, held_labels) = made(name, seed)
    torch.manual_seed(seed)
    model = TextClassifier(int(labels.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    for _ in range(epochs):
        for chosen in torch.randperm(TEXTS).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens[chosen]), labels[chosen]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(held_tokens).argmax(1) == held_labels).float().mean().item()


def main(batches: list[int], epochs: int, seeds: int) -> dict[str, dict[str, list[float]]]:
    torch.set_num_threads(1)
    return {
        str(batch): {name: [accuracy(name, batch, epochs, seed) for seed in range(seeds)] for name in SETS}
        for batch in batches
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(main(asked["batches"], asked["epochs"], asked["seeds"])))
