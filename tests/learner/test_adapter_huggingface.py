"""A Trainer with the adapter goes on after a kill and a halt, and ends as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.adapter_runs import Place, ended, value

pytest.importorskip("transformers", reason="runs in the environment of the image learner-huggingface")
pytestmark = [pytest.mark.framework(name="huggingface"), pytest.mark.timeout(300)]

PROGRAM = """
import time
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from updraft_learner.adapters import huggingface


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 20, (8,), generator=random)
        return {"input_ids": ids, "labels": int(ids[0] > 9)}


class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print("step", state.global_step, flush=True)
        time.sleep(0.05)


torch.manual_seed(1)
model = BertForSequenceClassification(BertConfig(
    vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    hidden_dropout_prob=0.1,
))
arguments = TrainingArguments(
    "output", max_steps=24, per_device_train_batch_size=4, logging_steps=4, save_strategy="no", report_to="none",
    disable_tqdm=True, use_cpu=True, save_total_limit=2, seed=3,
)
trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[Slow()])
huggingface.train(trainer)
if trainer.is_world_process_zero():
    print("steps:", trainer.state.global_step)
    print("weights:", [round(float(weight), 5) for weight in model.classifier.weight.flatten()])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run prints that is never interrupted."""
    return Place(tmp_path_factory.mktemp("whole")).run(PROGRAM)


def test_a_killed_training_ends_with_the_same_weights(whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.killed(PROGRAM, at="step 11")
    printed = place.run(PROGRAM)
    assert "step 1\n" not in printed
    assert value(printed, "steps") == "24"
    assert value(printed, "weights") == value(whole, "weights")
    assert place.checkpoints()[-1] == "step-0000000024"


def test_a_halt_saves_the_last_step_and_leaves(whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path, variables={"UPDRAFT_CHECKPOINT_SECONDS": "3600"})
    assert "stopped on request after step" in place.stopped(PROGRAM, at="step 11")
    assert len(place.checkpoints()) == 1
    assert value(place.run(PROGRAM), "weights") == value(whole, "weights")


def test_the_trainers_own_checkpoints_are_taken_and_its_metrics_are_live(tmp_path: Path) -> None:
    place = Place(tmp_path, variables={"UPDRAFT_CHECKPOINT_SECONDS": "3600"})
    place.run(PROGRAM.replace('save_strategy="no"', 'save_strategy="steps", save_steps=10'))
    assert place.checkpoints() == ["step-0000000010", "step-0000000020", "step-0000000024"]
    assert [step for step, _ in place.metrics("loss")] == [4, 8, 12, 16, 20, 24]


def test_two_processes_save_and_stop_together(tmp_path: Path) -> None:
    place = Place(tmp_path, variables={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631"})
    stopping = PROGRAM.replace("time.sleep(0.05)", "time.sleep(0.4)")
    first, second = place.start(stopping, processes=2)
    assert first.stdout is not None
    seen = ""
    for line in first.stdout:
        seen += line
        if line.startswith("step 4"):
            first.terminate()  # only one process is told; the other must not wait for it for ever
            break
    assert "stopped on request" in seen + ended(first, 75)
    ended(second, 75)
    first, second = place.start(PROGRAM, processes=2)
    assert value(ended(first, 0), "steps") == "24"
    ended(second, 0)
