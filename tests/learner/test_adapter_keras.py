"""A Keras model with the adapter goes on after a kill and a halt, and ends as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.adapter_runs import Place, value

pytest.importorskip("keras", reason="runs in the environment of the image learner-tensorflow")
pytestmark = [pytest.mark.framework(name="tensorflow"), pytest.mark.timeout(300)]

PROGRAM = """
import time
import keras
import numpy as np
from updraft_learner.adapters import keras as adapter


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("batch", batch, flush=True)

    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        time.sleep(0.2)


keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(64, 3)).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
history = adapter.fit(model, x, y, batch_size=8, epochs=8, shuffle=False, verbose=0, callbacks=[Slow()])
print("steps:", int(model.optimizer.iterations))
print("weights:", [round(float(weight), 4) for weight in np.ravel(model.get_weights()[0])])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run prints that is never interrupted."""
    return Place(tmp_path_factory.mktemp("whole")).run(PROGRAM)


def test_a_killed_training_ends_with_the_same_weights(whole: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.killed(PROGRAM, at="epoch 5")
    printed = place.run(PROGRAM)
    assert "epoch 0\n" not in printed
    assert value(printed, "steps") == value(whole, "steps") == "64"
    assert value(printed, "weights") == value(whole, "weights")
    assert place.checkpoints()[-1] == "step-0000000064"
    points = place.metrics("loss")
    assert [step for step, _ in points][-1] == 64
    assert points[-1][1] < points[0][1]


def test_a_halt_saves_within_the_epoch_and_leaves(tmp_path: Path) -> None:
    place = Place(tmp_path, variables={"UPDRAFT_CHECKPOINT_SECONDS": "3600"})
    assert "stopped on request after step" in place.stopped(PROGRAM, at="epoch 5")
    assert len(place.checkpoints()) == 1
    printed = place.run(PROGRAM)
    assert "epoch 5\n" in printed
    assert "epoch 4\n" not in printed
    assert int(value(printed, "steps")) > 64 - 8  # the epoch that was interrupted begins again


def test_the_scalars_of_kerass_tensorboard_callback_are_read(tmp_path: Path) -> None:
    """TensorFlow 2 writes them as tensors; the sidecar reads them without the package `tensorboard`."""
    import keras
    import numpy as np

    from updraft_learner.sidecar.event_files import read_events

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    callback = keras.callbacks.TensorBoard(str(tmp_path / "logs"), histogram_freq=1)
    model.fit(np.ones((8, 3)), np.ones((8, 1)), epochs=3, verbose=0, callbacks=[callback])
    (file,) = (tmp_path / "logs" / "train").glob("*tfevents*")
    found = [point for point, _ in read_events(tmp_path, str(file.relative_to(tmp_path)), 0, 1 << 24) if point]
    losses = [(point.step, point.values["epoch_loss"]) for point in found if "epoch_loss" in point.values]
    assert [step for step, _ in losses] == [0, 1, 2]
    assert losses[2][1] < losses[0][1]
