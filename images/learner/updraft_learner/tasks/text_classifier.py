"""The program of jobs with `task: text-classification`, which `text_classification` starts.

A small classifier of hashed words and pairs of words, as fastText has it, trained through shared memory with small
batches. The hyper-parameters are fixed: with small batches and a small learning rate one choice serves all data
(docs/design/0039-shared-memory.md).
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import torch
from torch import Tensor, nn

import updraft_learner as updraft
from updraft_learner import shared
from updraft_learner.tasks.texts import BUCKETS, TOKENS, Texts, UnusableDataError, encode, read

BATCH = 4  # texts of one learner's step
WIDTH = 32
LEARNING_RATE = 0.001
EPOCHS = 10
LEAST_STEPS = 1500  # of all learners together: a small file is read more often
SEED = 1
UNUSABLE = 65  # the exit code; the manifest of the task gives it its meaning


class TextClassifier(nn.Module):  # type: ignore[misc]
    """The mean of the vectors of a text's words, and a linear layer.

    Args:
        labels: How many labels there are.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(BUCKETS, WIDTH)
        self.out = nn.Linear(WIDTH, labels)
        nn.init.uniform_(self.vectors.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [N, labels] of tokens [N, TOKENS], as `texts.encode` makes them."""
        used = (tokens > 0).unsqueeze(2).to(self.vectors.weight.dtype)  # [N, TOKENS, 1]
        mean = (self.vectors(tokens) * used).sum(1) / used.sum(1).clamp(min=1.0)
        scores: Tensor = self.out(mean)
        return scores


def main() -> int:
    """Train, validate on the texts that are held out, and hand over the model. Return the exit code."""
    try:
        texts = read(updraft.data_dir(), **columns())
    except UnusableDataError as exc:
        print(f"The data cannot be used: {exc}", file=sys.stderr, flush=True)
        return UNUSABLE
    learners = shared.learners_asked()
    steps = max(LEAST_STEPS, EPOCHS * len(texts.training) // BATCH) // learners
    print(
        f"{len(texts.training):,} texts to train on, {len(texts.validation):,} held out, {len(texts.names)} labels; "
        f"{steps:,} steps of {learners} learners with {BATCH} texts each",
        flush=True,
    )
    torch.manual_seed(SEED)
    model = TextClassifier(len(texts.names))
    print(
        shared.train(
            model,
            learn,
            steps=steps,
            optimizer=shared.Adam(lr=LEARNING_RATE),
            learners=learners,
            checkpoints=updraft.Checkpointer(),
        )
    )
    metrics = judged(model, texts)
    print(metrics, flush=True)
    updraft.log_metrics(metrics, step=steps)
    (updraft.result_dir() / "labels.json").write_text(json.dumps(texts.names, ensure_ascii=False))
    examples, _ = tensors(texts.validation[:8])
    updraft.save_model(model, examples, metrics=metrics)
    return 0


def learn(learner: shared.SharedLearner) -> None:
    """Train as one of the learners, on texts that are drawn by the numbers of the step and of the learner."""
    texts = read(updraft.data_dir(), **columns())
    tokens, labels = tensors(texts.training)
    for step in learner.steps():
        chosen = torch.randint(len(labels), (BATCH,), generator=_generator(step, learner.number))
        loss = nn.functional.cross_entropy(learner.model(tokens[chosen]), labels[chosen])
        loss.backward()
        learner.push()
        if step % 50 == 0:
            learner.log_metrics({"loss": loss.item()}, step=step)


def columns() -> dict[str, str]:
    """Return the names of the columns, if the manifest's params give some."""
    return {name: str(value) for name, value in updraft.params().items() if name in ("text", "label")}


def tensors(rows: tuple[tuple[str, int], ...]) -> tuple[Tensor, Tensor]:
    """Return tokens [N, TOKENS] and labels [N]."""
    tokens = torch.tensor([encode(words) for words, _ in rows], dtype=torch.int64).reshape(-1, TOKENS)
    return tokens, torch.tensor([label for _, label in rows], dtype=torch.int64)


def judged(model: nn.Module, texts: Texts) -> dict[str, float]:
    """Return loss and accuracy on the texts that are held out, and the accuracy of always saying the most common
    label."""
    tokens, labels = tensors(texts.validation)
    model.eval()
    with torch.no_grad():
        logits: Tensor = model(tokens)
    commonest = Counter(label for _, label in texts.training).most_common(1)[0][0]
    return {
        "val_loss": nn.functional.cross_entropy(logits, labels).item(),
        "val_accuracy": (logits.argmax(1) == labels).float().mean().item(),
        "val_accuracy_of_commonest": (labels == commonest).float().mean().item(),
    }


def _generator(step: int, learner: int) -> torch.Generator:
    return torch.Generator().manual_seed((SEED * 1_000_003 + step) * 1_009 + learner)
