"""Tell the platform how an elastic job scales: how long steps take with several batches, how long the exchange of
gradients takes, and how noisy the gradients are. docs/howto/elastic.md shows how to use it.

The gradient noise scale is that of McCandlish et al., An Empirical Model of Large-Batch Training (2018), appendix A.1:
from the squared norms `s` of gradients over `b` samples and `S` of gradients over `B > b` samples,
`|G|^2 = (B S - b s) / (B - b)` and `tr = (s - S) / (1/b - 1/B)`; the scale is `tr / |G|^2`, each averaged over steps.

Importing this needs only the standard library. PyTorch is imported by what needs it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from updraft_learner import metrics, runtime
from updraft_learner.contract import BATCH_ENV, LR_SCALE_ENV

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

SMOOTHING = 0.95  # of the averages: about the last 20 estimates
LEAST_ESTIMATES = 10  # before a scale is reported
REPORT_SECONDS = 5.0
PAIR_EVERY = 10  # steps, from one estimate to the next
EXCHANGE_BYTES = (64 << 10, 8 << 20)
TIMED = 5  # steps of each batch, and exchanges of each size, after one that is not timed
MOST_BATCHES = 16


def batch_size(default: int) -> int:
    """Return how many samples this learner trains on in one step: its share of the global batch that the platform
    chose; `default` if the job does not let it choose, and outside the platform.

    Calling this also tells the platform that the program follows the batch.

    Raises:
        ValueError: the variable UPDRAFT_BATCH is not a multiple of the number of learners, which the platform ensures.

    Example:
        loader = DataLoader(data, batch_size=updraft.batch_size(64))
    """
    value = os.environ.get(BATCH_ENV)
    if not value:
        return default
    learners = runtime.world_size()
    share, rest = divmod(int(value), learners)
    if rest or share < 1:
        raise ValueError(f"{BATCH_ENV} is {value!r}, which {learners} learners cannot share in equal parts")
    metrics.append({"scaling": {"follows_batch": 1}})
    return share


def lr_scale() -> float:
    """Return the factor of the learning rate that goes with the batch of the platform; 1 where it chooses none.

    Example:
        optimizer = SGD(model.parameters(), lr=0.1 * updraft.lr_scale())
    """
    return float(os.environ.get(LR_SCALE_ENV) or 1.0)


def analyze(
    model: torch.nn.Module, step: Callable[[int], Any], batches: Sequence[int], *, most_seconds: float = 30.0
) -> None:
    """Measure how the job scales, in its first seconds, and tell the platform: the time of a step of this learner alone
    with each batch, and the time of the exchange of gradients, if there are several learners.

    The steps are timed in the job's first attempt only; all learners must call this. Outside the platform it does
    nothing.

    Args:
        model: Its trainable parameters are what learners exchange.
        step: Does the computation of one step on so many samples: forward and backward. It must not exchange gradients:
            call the model itself, not DistributedDataParallel's replica. The gradients are discarded.
        batches: Of one learner, in samples; at most 16.
        most_seconds: After this time no further batch is measured.

    Raises:
        ValueError: a batch is below 1, or there are none or more than 16.

    Example:
        scaling.analyze(model, lambda n: loss(model(pixels[:n]), labels[:n]).backward(), (8, 32, 128))
    """
    if not 1 <= len(batches) <= MOST_BATCHES or min(batches) < 1:
        raise ValueError(f"batches are {list(batches)!r}; give 1 to {MOST_BATCHES} numbers of samples, each at least 1")
    if not os.environ.get("UPDRAFT_METRICS_FILE"):
        return
    exchanged = [each for each in model.parameters() if each.requires_grad]
    found: dict[str, Any] = {"gradient_bytes": sum(each.numel() * each.element_size() for each in exchanged)}
    if runtime.attempt() == 1:
        found["timings"] = _timings(step, batches, most_seconds)
        model.zero_grad(set_to_none=True)
    if exchange := _exchange():
        found["exchange"] = exchange
    metrics.append({"scaling": found})


def _timings(step: Callable[[int], Any], batches: Sequence[int], most_seconds: float) -> list[list[float]]:
    began = time.monotonic()
    found: list[list[float]] = []
    for batch in sorted(set(batches)):
        if found and time.monotonic() - began > most_seconds:
            break
        found.append([float(batch), _median_seconds(lambda batch=batch: step(batch))])  # type: ignore[misc]
    return found


def _exchange() -> list[list[float]]:
    """Return how long an all-reduce of each number of bytes takes; nothing without a group of several processes."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return []
    import torch

    device = torch.device("cuda", torch.cuda.current_device()) if distributed.get_backend() == "nccl" else None
    found: list[list[float]] = []
    for size in EXCHANGE_BYTES:
        values = torch.zeros(size // 4, dtype=torch.float32, device=device)
        found.append([float(size), _median_seconds(lambda values=values: distributed.all_reduce(values))])  # type: ignore[misc]
    return found


def _median_seconds(act: Callable[[], Any]) -> float:
    samples = []
    for number in range(TIMED + 1):
        began = time.perf_counter()
        act()
        _synchronize()
        if number:
            samples.append(time.perf_counter() - began)
    return median(samples)


def _synchronize() -> None:
    """Wait for the GPU, which computes behind the program's back."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


class NoiseAverage:
    """The gradient noise scale from squared norms of gradients over few and over more samples."""

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._smoothing = smoothing
        self._trace = self._square = 0.0
        self.estimates = 0

    def add(self, small: float, large: float, small_batch: int, large_batch: int) -> None:
        """Add an estimate. Ignored, if a norm is not finite: a step that overflowed.

        Args:
            small: The squared norm of a gradient over `small_batch` samples.
            large: That of a gradient over `large_batch` samples, which is larger.
        """
        if not (math.isfinite(small) and math.isfinite(large)) or not 0 < small_batch < large_batch:
            return
        square = (large_batch * large - small_batch * small) / (large_batch - small_batch)
        trace = (small - large) / (1 / small_batch - 1 / large_batch)
        self._square = self._smoothing * self._square + (1 - self._smoothing) * square
        self._trace = self._smoothing * self._trace + (1 - self._smoothing) * trace
        self.estimates += 1

    def scale(self) -> float | None:
        """Return the scale in samples; None: there are too few estimates, or the gradient is lost in their noise."""
        if self.estimates < LEAST_ESTIMATES or self._square <= 0 or self._trace <= 0:
            return None
        return self._trace / self._square

    def state_dict(self) -> dict[str, float]:
        """Return the average, for a checkpoint."""
        return {"trace": self._trace, "square": self._square, "estimates": self.estimates}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from what `state_dict` returned."""
        self._trace, self._square = float(state["trace"]), float(state["square"])
        self.estimates = int(state["estimates"])


class GradientNoise:
    """Measures the gradient noise scale of a PyTorch program, and reports it as the metric `gradient_noise_scale`.

    With DistributedDataParallel (`watch`), the gradients of the learners are compared with their average. A single
    learner compares the gradients of two steps that follow each other, and keeps a copy of the first. Both happen at
    each tenth step.

    Args:
        batch: How many samples this learner's gradient is over.

    Example:
        noise = scaling.GradientNoise(batch)
        noise.watch(replica)  # a DistributedDataParallel, before the first step
        ...
        loss.backward()
        noise.update(model, step=step)
        optimizer.step()
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.average = NoiseAverage()
        self._learners = 1
        self._group: Any = None
        self._norms: list[tuple[torch.Tensor, torch.Tensor]] = []  # of this step, by bucket
        self._before: list[torch.Tensor | None] | None = None
        self._updates = 0
        self._reported = -math.inf

    def watch(self, replica: DistributedDataParallel) -> None:
        """Compare the gradients of the learners of this replica. This takes the place of a communication hook of the
        program's own: DistributedDataParallel allows one. Does nothing if there is a single learner."""
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self._group = replica.process_group
        self._learners = dist.get_world_size(self._group)
        if self._learners < 2:
            return

        def hook(group: Any, bucket: Any) -> Any:
            if self._updates % PAIR_EVERY:
                return allreduce_hook(group, bucket)
            local = bucket.buffer().detach().double().square().sum()

            def averaged(future: Any) -> Any:
                values = future.value()
                values = values[0] if isinstance(values, list | tuple) else values
                self._norms.append((local, values.detach().double().square().sum()))
                return values

            return allreduce_hook(group, bucket).then(averaged)

        hook.__annotations__.clear()  # torch checks them, and does not know them as text
        replica.register_comm_hook(replica.process_group, hook)

    def update(self, model: torch.nn.Module, *, step: int) -> None:
        """Use the gradients of this step. Each learner calls it after each backward pass, before the optimizer clears
        the gradients."""
        if self._learners > 1:
            if self._norms:
                small, large = self._summed()
                self.average.add(small, large, self._batch, self._batch * self._learners)
        else:
            self._compare(model)
        self._updates += 1
        scale = self.average.scale()
        if scale is None or runtime.rank() != 0 or time.monotonic() - self._reported < REPORT_SECONDS:
            return
        self._reported = time.monotonic()
        if metrics.append({"scaling": {"noise": scale}}):
            metrics.log_metrics({"gradient_noise_scale": scale}, step=step)

    def _summed(self) -> tuple[float, float]:
        """Return the squared norm of a learner's gradient, on average, and that of the gradient of all."""
        import torch.distributed as dist

        local, whole = (sum(norms) for norms in zip(*self._norms, strict=True))
        self._norms.clear()
        dist.all_reduce(local, group=self._group)
        return float(local) / self._learners, float(whole)

    def _compare(self, model: torch.nn.Module) -> None:
        gradients = [each.grad for each in model.parameters()]
        if self._before is None:
            if self._updates % PAIR_EVERY == 0:
                self._before = [None if each is None else each.detach().clone() for each in gradients]
            return
        both = zip(self._before, gradients, strict=True)
        pairs = [(a, b.detach()) for a, b in both if a is not None and b is not None]
        self._before = None
        small = sum(float(a.double().square().sum() + b.double().square().sum()) for a, b in pairs) / 2
        large = sum(float(((a.double() + b.double()) / 2).square().sum()) for a, b in pairs)
        self.average.add(small, large, self._batch, 2 * self._batch)
