"""What a learner's program gets: the model with the newest weights for each step, and `push` for its gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat

import numpy as np

from updraft_learner import metrics
from updraft_learner.shared.errors import InvalidSharedModel, ProgramFailed
from updraft_learner.shared.memory import Array, Segment
from updraft_learner.shared.publisher import Publisher
from updraft_learner.shared.waiting import wait_until

if TYPE_CHECKING:
    import torch

NonFinite = Literal["skip", "refuse"]
Bits = np.ndarray[Any, np.dtype[np.int32]]
MOST_SKIPPED = 100  # gradients of a learner in a row


class SharedLearner:
    """One of the processes that compute gradients. `train` makes it and hands it to the program.

    Attributes:
        number: Which learner this is, from 0.
        learners: How many there are.
        model: The model in this process. Each step begins with the newest weights in its trainable parameters. Change
            none of them: in synchronous training they are the shared weights, and the process would be killed.

    Example:
        def learn(learner: shared.SharedLearner) -> None:
            samples, labels = load()
            for step in learner.steps():
                first = (step * learner.learners + learner.number) * 16 % len(samples)
                loss = cross_entropy(learner.model(samples[first : first + 16]), labels[first : first + 16])
                loss.backward()
                learner.push()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        memory: Segment,
        number: int,
        steps: int,
        staleness: int | None,
        nonfinite: NonFinite = "skip",
        weights: Array | None = None,
    ) -> None:
        import torch

        self.model = model
        self.number = number
        self.learners = memory.layout.learners
        self._memory = memory
        self._steps = steps
        self._nonfinite = nonfinite
        self._publisher = Publisher(memory, number, staleness)
        self._named = trainable(model)
        self._parameters = list(self._named.values())
        self._shapes = [each.shape for each in self._parameters]
        # The parameters are views of one array. In synchronous training these are the weights themselves, which the
        # server changes only while all learners wait; otherwise one copy of them fetches all.
        self._pulled = None if weights is not None else np.empty(memory.layout.elements, np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the array is read-only on purpose
            flat = torch.from_numpy(self._pulled if weights is None else weights)
        for each, view in zip(self._parameters, self._views(flat), strict=True):
            each.data = view
        self._bell = memory.bells[number]
        ends = list(accumulate(each.numel() for each in self._parameters))
        self._slots = [np.split(slot.view(np.int32), ends[:-1]) for slot in memory.slots[number]]
        self._in_a_row = 0
        self._open = False

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        views, place = [], 0
        for shape in self._shapes:
            size = math.prod(shape)
            views.append(flat[place : place + size].view(shape))
            place += size
        return views

    def steps(self) -> Iterator[int]:
        """Yield the numbers of the steps of this learner that are left, from 0; call `push` once in each.

        A learner that was killed goes on with the step whose gradient it had not pushed. Choose the samples of a step
        by its number, and no sample is lost or used twice. The gradients are None and the weights are new when a step
        begins.

        Raises:
            ProgramFailed: a step ended without `push`.
        """
        while (step := self._publisher.pushed) < self._steps:
            wait_until(self._publisher.may_start, self._bell)
            self._publisher.start()
            if self._pulled is not None:
                np.copyto(self._pulled, self._memory.weights)
            for each in self._parameters:
                each.grad = None
            self._open = True
            yield step
            if self._open:
                raise ProgramFailed(f"step {step} of learner {self.number} ended without push()")

    def push(self) -> bool:
        """Publish the gradients that the backward pass of this step left in the parameters.

        The gradient is averaged over the samples of this step, as the usual losses do. A parameter without a gradient
        counts as one of zeros.

        Returns:
            False if the gradient is not finite (NaN or infinite) and was skipped; the step counts all the same.

        Raises:
            InvalidSharedModel: a parameter has another shape than before, or was replaced.
            ProgramFailed: `push` was called before in this step; or a gradient is not finite and
                `train(nonfinite="refuse")` was chosen, or this is the hundredth in a row.
        """
        if not self._open:
            raise ProgramFailed(f"learner {self.number} called push() outside a step, or twice in one")
        self._require_same_parameters()
        wait_until(self._publisher.may_publish, self._bell)
        number = self._publisher.pushed + 1
        good = self._publisher.publish(lambda _: self._write(self._slots[number % len(self._slots)]))
        self._open = False
        self._in_a_row = 0 if good else self._in_a_row + 1
        if self._in_a_row >= MOST_SKIPPED:
            raise ProgramFailed(
                f"the last {MOST_SKIPPED} gradients of learner {self.number} are not finite; try a smaller lr"
            )
        return good

    def log_metrics(self, values: Mapping[str, SupportsFloat], *, step: int) -> None:
        """Record metrics of this learner at `step`: "loss" as "process_0/loss" of learner 0.

        Args:
            values: Numbers by name, as for `updraft_learner.log_metrics`.
            step: The step that `steps` yielded.

        Raises:
            TypeError: a value is not a number.

        Example:
            learner.log_metrics({"loss": loss}, step=step)
        """
        metrics.log_metrics({f"process_{self.number}/{name}": value for name, value in values.items()}, step=step)

    def _write(self, parts: list[Bits]) -> bool:
        """Copy the gradients into the parts of a slot; return whether they are to be applied."""
        from updraft_learner.shared.kernels import copy_finite

        good = True
        for part, each in zip(parts, self._parameters, strict=True):
            if each.grad is None:
                part.fill(0)
            elif not copy_finite(part, each.grad.detach().contiguous().view(-1).numpy().view(np.int32)):
                good = False
        if good:
            return True
        if self._nonfinite == "refuse":
            name = next(
                name for name, each in self._named.items() if each.grad is not None and not each.grad.isfinite().all()
            )
            raise ProgramFailed(
                f"the gradient of parameter {name!r} is not finite in step {self._publisher.pushed} of learner "
                f"{self.number}, and nonfinite='refuse' allows none"
            )
        return False

    def _require_same_parameters(self) -> None:
        missing = False
        for each, shape in zip(self._parameters, self._shapes, strict=True):
            missing = missing or each.grad is None
            if each.shape != shape:
                name = next(name for name, other in self._named.items() if other is each)
                raise InvalidSharedModel(
                    f"parameter {name!r} has the shape {tuple(each.shape)}, and had {tuple(shape)} when training began;"
                    " shapes must stay the same"
                )
        if missing:  # replaced parameters leave the old ones without a gradient
            now = dict(self.model.named_parameters())
            for name, each in self._named.items():
                if now.get(name) is not each:
                    raise InvalidSharedModel(
                        f"parameter {name!r} was replaced or removed while training; change it in place"
                    )


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that are trained, by name: those that require a gradient, each once.

    Raises:
        InvalidSharedModel: there are none; or one is not float32, not on the CPU, shares its memory with another one,
            or belongs to a module that keeps running statistics.
    """
    import torch

    found = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not found:
        raise InvalidSharedModel("the model has no parameter that requires a gradient")
    spans = []
    for name, each in found.items():
        if each.dtype != torch.float32:
            raise InvalidSharedModel(f"parameter {name!r} is {each.dtype}; it must be torch.float32")
        if each.device.type != "cpu":
            raise InvalidSharedModel(f"parameter {name!r} is on {each.device}; it must be on cpu")
        if not each.is_contiguous():
            raise InvalidSharedModel(f"parameter {name!r} has strides {each.stride()}; it must be contiguous")
        spans.append((each.data_ptr(), each.data_ptr() + each.numel() * each.element_size(), name))
    spans.sort()
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise InvalidSharedModel(
                f"parameters {name!r} and {other!r} share memory; let both modules use one parameter, or copy one"
            )
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.max_norm is not None:
            raise InvalidSharedModel(
                f"module {name!r} has max_norm, so it changes its weights itself; only the optimizer may change them"
            )
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise InvalidSharedModel(
                f"module {name!r} is a {type(module).__name__} with running statistics, which learners do not share; "
                "use GroupNorm or LayerNorm, or track_running_stats=False"
            )
    return found
