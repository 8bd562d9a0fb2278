"""`init` makes an elastic training: it checks what the user gives, and builds the parts."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, default_collate

from updraft_learner import contract
from updraft_learner.checkpoint import Checkpointer
from updraft_learner.elastic import exchange
from updraft_learner.elastic.alive import AliveLock
from updraft_learner.elastic.learning_rate import GrownRate
from updraft_learner.elastic.optimizer_shards import OptimizerShards
from updraft_learner.elastic.prefetcher import Prefetcher
from updraft_learner.elastic.sample_order import SampleOrder
from updraft_learner.elastic.samples import SampleSource
from updraft_learner.elastic.saving import Saving
from updraft_learner.elastic.shard_order import ShardOrder
from updraft_learner.elastic.shard_reader import ShardReader, Shards
from updraft_learner.elastic.state_transfer import warm_up as warm_up_transfer
from updraft_learner.elastic.training import Training
from updraft_learner.elastic.training_state import TrainingState

HANG_SECONDS = 60.0
MOST_LANES = 16  # by default


def init(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    batch: int,
    epochs: int,
    seed: int = 0,
    grow: str | None = None,
    virtual_ranks: int = 0,
    sharded: bool = False,
    max_grad_norm: float | None = None,
    also: Mapping[str, Any] | None = None,
    after_step: Callable[[], object] | None = None,
    warm_up: Callable[[], torch.Tensor] | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    ahead: int = 2,
    workers: int = 0,
    checkpoints: Checkpointer | None = None,
    lanes: int | None = None,
    hang_seconds: float | None = None,
    address: str | None = None,
    name: str | None = None,
) -> Training:
    """Prepare this learner; the others train on meanwhile. It joins them when its loop begins.

    Args:
        model: The model itself, not DistributedDataParallel's replica. All learners get the parameters of one.
        optimizer: Of the parameters whose gradients are exchanged.
        data: A map-style data set: `len(data)` and `data[index]`, the same on all learners. Or one in shards:
            `data.shards()`, and `data.open(shard, offset)`, which yields the samples of a shard from an offset on.
        batch: Samples of one step, all learners together. It stays the same, however many they are; see `grow`.
        epochs: How often each sample is used.
        seed: Of the order of the samples. Like batch and epochs, it must be the same on all learners.
        grow: "linear", "sqrt" or "adascale": the batch is that of one learner, so a step has more samples if there are
            more learners, and the learning rate of each update is multiplied: by their number, by its square root, or
            by AdaScale's gain, which is measured.
        virtual_ranks: Compute each step in so many parts, whatever the number of learners: the training has the same
            bits with any of them, and with any change of it. A learner then has several parts of each step, one after
            the other. PyTorch's random numbers, those of `random` and of NumPy are a function of the seed, the step and
            the part; a data set that uses them needs `workers`. BatchNorm's averages are those of part 0. All learners
            must compute alike: the same kind of processor, the same number of threads. 0: each learner computes one.
        sharded: Hold the optimizer's state of each parameter on two learners instead of all of them. For optimizers
            that update a parameter from its own gradient and state, as most of torch.optim's do.
        max_grad_norm: Scale the gradient of the whole batch down to this norm before each update, if it is longer, as
            torch.nn.utils.clip_grad_norm_ does.
        also: More that belongs to the training state, by name: objects with state_dict and load_state_dict, such as a
            learning-rate scheduler. They change in `after_step`, and only there.
        after_step: Is called after each committed step on each learner, such as `scheduler.step`.
        warm_up: Returns a loss of any input of the usual shape. It is called once, so that the first step is as fast
            as the others; it changes nothing.
        collate: Makes a batch of a list of samples.
        ahead: How many steps' samples are fetched ahead.
        workers: Processes that fetch samples; 0: threads do, which suits data sets that wait more than they compute.
        checkpoints: Go on from its newest checkpoint, save the training state as often as it says, and once more when
            the platform asks the job to stop, which then ends the program. Rank 0 saves, whichever learner that is;
            with `sharded`, it collects the optimizer's state from the others, and needs the memory for that.
        lanes: How many shards are read at the same time, by all learners together, if the data set is in shards. A
            learner has no samples if there are more learners than lanes. By default 16, if there are as many shards
            and the batch is as large.
        hang_seconds: A learner that keeps the others waiting for longer is lost. Longer than any step takes. By
            default UPDRAFT_ELASTIC_HANG_SECONDS, else 60.
        address: Of the coordinator, "host:port"; by default UPDRAFT_ELASTIC. Without one this learner trains alone.
        name: Of this learner, never used before; by default one is made.

    Raises:
        TypeError: the data or the model are of a kind that cannot be elastic; the message says what to use.
        ValueError: a number is out of range.
    """
    _refuse(model, data)
    exchange.check(optimizer)
    if grow is not None and virtual_ranks:
        raise ValueError("grow and virtual_ranks exclude each other: with virtual ranks the batch is fixed")
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"max_grad_norm is {max_grad_norm}; it must be above 0, or None for no limit")
    if workers < 0:
        raise ValueError(f"workers is {workers}; it must be at least 0")
    grown = GrownRate(grow, batch) if grow is not None else None
    samples: SampleSource
    if _is_in_shards(data):
        if grown is not None or workers:
            option = "grow" if grown is not None else "workers"
            raise ValueError(f"{option} does not go with a data set in shards; leave it out")
        number = len(data.shards())
        lanes = min(MOST_LANES, number, batch) if lanes is None else min(lanes, number)
        shard_order = ShardOrder(number, lanes, batch, epochs, seed, virtual_ranks)
        samples = ShardReader(shard_order, data, collate, ahead)
    else:
        order = SampleOrder(len(data), batch, epochs, seed, virtual_ranks, grows=grown is not None)
        samples = Prefetcher(order, data, collate, ahead, workers)
    started_by_platform = address is None and contract.ELASTIC_ENV in os.environ
    address = address or os.environ.get(contract.ELASTIC_ENV) or None
    if hang_seconds is None:
        hang_seconds = float(os.environ.get(contract.ELASTIC_HANG_ENV) or HANG_SECONDS)
    alive = os.environ.get(contract.ALIVE_ENV)
    name = name or f"{os.environ.get('LEARNER_ID') or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    state = TrainingState(
        model, optimizer, dict(also or {}), samples, grown, OptimizerShards(optimizer) if sharded else None
    )
    _warm_up_alone(state, warm_up)
    saving = None
    if checkpoints is not None:
        saving = Saving(checkpoints)
        if (saved := saving.restored()) is not None:
            state.load(saved)
    return Training(
        state,
        samples,
        hang_seconds,
        name=name,
        address=address,
        after_step=after_step,
        virtual_ranks=virtual_ranks,
        max_grad_norm=max_grad_norm,
        saving=saving,
        alive=AliveLock(Path(alive), address, name) if alive and address else None,
        exits=started_by_platform,
    )


def _warm_up_alone(state: TrainingState, warm_up: Callable[[], torch.Tensor] | None) -> None:
    """Do what is slow the first time, on a group of this learner alone."""
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    alone.allreduce([torch.zeros(1)]).wait()
    warm_up_transfer(state.to_copy())
    if warm_up is None:
        return
    before = state.copied_buffers()
    warm_up().backward()
    state.optimizer.zero_grad()
    with torch.no_grad():
        state.restore_buffers(before)


def _is_in_shards(data: Any) -> bool:
    return isinstance(data, Shards) and not hasattr(data, "__getitem__")


def _refuse(model: Any, data: Any) -> None:
    if isinstance(model, DistributedDataParallel):
        raise TypeError("give the model itself, not DistributedDataParallel's replica: step() exchanges the gradients")
    if _is_in_shards(data):
        return
    if isinstance(data, DataLoader):
        raise TypeError("give the data set itself, not its DataLoader: the training draws the batches")
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"{type(data).__name__} is an IterableDataset: nobody can tell which of its samples are used already. Give "
            "it the methods shards() and open(shard, offset), which yields the samples of a shard from an offset on; "
            "or give a map-style data set (__len__ and __getitem__); or do without updraft_learner.elastic: the "
            "platform then resizes by checkpoint and relaunch"
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(data).__name__} has no length or no index; give a map-style data set, or one with shards() and "
            "open(shard, offset)"
        )
