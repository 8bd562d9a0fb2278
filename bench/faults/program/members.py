"""A training whose learners join and leave while the others train (`updraft_learner.elastic`), beside the hash chain of
`chain.py`. The chain is part of the training state, so the result proves that each step had effect once in the final
model.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

os.environ |= {"RANK": str(int(os.environ["LEARNER_ID"]) - 1), "WORLD_SIZE": "1"}  # what the chain names files after

import chain
import torch

import updraft_learner as updraft
from updraft_learner import elastic

BATCH, SAMPLES = 8, 64


class Chain:
    """The digest and the lineage, as a part of the training state."""

    def __init__(self, witness: chain.Witness) -> None:
        self._witness = witness
        self.step, self.digest = 0, hashlib.sha256(chain.JOB.encode()).hexdigest()
        self.lineage: list[list[int]] = []

    def advance(self) -> None:
        """Note a committed step."""
        if not self.lineage or self.lineage[-1][0] != chain.ATTEMPT:
            self.lineage = [*self.lineage, [chain.ATTEMPT, self.step, self.step]]
        self.step += 1
        self.digest = chain.made_step(self.step, self.digest, self.lineage, self._witness)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "digest": self.digest, "lineage": [list(part) for part in self.lineage]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.digest = int(state["step"]), str(state["digest"])
        self.lineage = [list(part) for part in state["lineage"]]


def main() -> None:
    params, witness = chain.begin()
    steps, step_seconds = int(params["steps"]), float(params["step_seconds"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    inputs = torch.randn(SAMPLES, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs @ torch.arange(4.0))
    model = torch.nn.Linear(4, 1)
    made = Chain(witness)
    training = elastic.init(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        data,
        batch=BATCH,
        epochs=steps * BATCH // SAMPLES,
        also={"chain": made},
        after_step=made.advance,
        checkpoints=updraft.Checkpointer(float(params["checkpoint_seconds"])),
    )
    witness.tell(event="restored", step=made.step)
    print(f"attempt {chain.ATTEMPT}, learner {chain.RANK + 1}: joins, with step {made.step}", flush=True)
    for x, y in training:
        time.sleep(step_seconds)
        if training.step(torch.nn.functional.mse_loss(model(x).squeeze(1), y)) and training.rank == 0:
            chain.append_metrics(made.step, steps)
    if training.rank == 0:
        chain.finish(made.step, made.digest, made.lineage, witness)


if __name__ == "__main__":
    main()
