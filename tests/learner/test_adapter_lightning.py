"""A Lightning Trainer with the adapter goes on after a kill and a halt, and ends as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.adapter_runs import Place, value

pytest.importorskip("lightning", reason="runs in the environment of the image learner-lightning")
pytestmark = [pytest.mark.framework(name="lightning"), pytest.mark.timeout(300)]

PROGRAM = """
import time
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from updraft_learner.adapters import lightning


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss)
        print("batch", self.global_step, flush=True)
        time.sleep(0.02)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Loader(DataLoader):
    "A loader that knows where it is, as torchdata's StatefulDataLoader does."

    at = begin = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]

    def __iter__(self):
        batches = list(super().__iter__())[self.begin :]
        self.at, self.begin = self.begin, 0
        for batch in batches:
            self.at += 1
            yield batch


pl.seed_everything(1, verbose=False)
x = torch.randn(40, 3)
rows = TensorDataset(x, x.sum(1, keepdim=True))
trainer = pl.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=1,
)
model = Model()
lightning.fit(trainer, model, Loader(rows, 4), DataLoader(rows, 40))
print("steps:", trainer.global_step)
print("weights:", [round(float(weight), 5) for weight in model.layer.weight.flatten()])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run prints that is never interrupted."""
    return Place(tmp_path_factory.mktemp("whole")).run(PROGRAM)


def test_a_killed_training_ends_with_the_same_weights(whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.killed(PROGRAM, at="batch 25")
    printed = place.run(PROGRAM)
    assert "batch 1\n" not in printed
    assert value(printed, "steps") == "40"
    assert value(printed, "weights") == value(whole, "weights")
    assert place.checkpoints()[-1] == "step-0000000040"


def test_a_halt_saves_the_last_step_and_leaves(whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path, variables={"UPDRAFT_CHECKPOINT_SECONDS": "3600"})
    assert "stopped on request after step" in place.stopped(PROGRAM, at="batch 25")
    assert len(place.checkpoints()) == 1
    assert value(place.run(PROGRAM), "weights") == value(whole, "weights")


def test_metrics_of_training_and_validation_are_live(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(PROGRAM)
    assert [step for step, _ in place.metrics("loss")][:3] == [1, 2, 3]
    assert {step for step, _ in place.metrics("val_loss")} >= {10, 20, 30, 40}
    assert [path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".tmp")] == []
