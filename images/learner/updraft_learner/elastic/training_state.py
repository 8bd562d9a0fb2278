"""The state of an elastic training: what a checkpoint holds, what a newcomer copies, and what a lost step restores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from updraft_learner.elastic.learning_rate import GrownRate
from updraft_learner.elastic.optimizer_shards import OptimizerShards
from updraft_learner.elastic.samples import SampleSource


class TrainingState:
    """What this learner holds of the training.

    Args:
        model: Of this learner.
        optimizer: Of its parameters.
        also: More that belongs to the state, by name: objects with state_dict and load_state_dict.
        samples: Tell where the training stands in its data, and in which order they come.
        grown: What is measured for a grown batch.
        shards: Of the optimizer's state, if learners hold parts of it.

    Attributes:
        steps: Committed steps that the state includes.
        cursor: Where the next step's samples begin.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        also: Mapping[str, Any],
        samples: SampleSource,
        grown: GrownRate | None = None,
        shards: OptimizerShards | None = None,
    ) -> None:
        self.model, self.optimizer, self.also = model, optimizer, also
        self.grown, self.shards = grown, shards
        self.steps = 0
        self.cursor = samples.first()
        self._samples = samples
        self._buffers_of = [each._buffers for each in model.modules()]  # as they are now: a program may replace them

    def to_save(self, all_shards: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what belongs into a checkpoint.

        Args:
            all_shards: The optimizer's states of all learners, from `OptimizerShards.gather`. Without it, a learner
                that holds a part of them returns this part.
        """
        state = self._common()
        state["optimizer"] = self.optimizer.state_dict()
        if self.shards is not None:
            state["optimizer"]["state"] = {}
            state["shards"] = all_shards or self.shards.state_dict()
        return state

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take what `to_save` returned; if learners returned their parts, the list of these.

        Raises:
            ValueError: it is of a training with other data, batch, epochs or seed; or parts are missing, or they are
                not of the same step.
        """
        parts = [state] if isinstance(state, Mapping) else list(state)
        first = parts[0]
        if first["order"] != (own := self._samples.as_json()):
            raise ValueError(f"the state is of a training with {first['order']}, this learner has {own}")
        if len({int(each["steps"]) for each in parts}) > 1:
            raise ValueError(
                f"the parts of the checkpoint are of steps {sorted({int(each['steps']) for each in parts})}; "
                "give the parts of one step"
            )
        if ("shards" in first) != (self.shards is not None):
            raise ValueError("the state and this training must both be sharded, or none of them")
        self.optimizer.load_state_dict(first["optimizer"])
        if self.shards is not None:
            self.shards.load_state_dict(each["shards"] for each in parts)
        self._load_common(first)

    def to_copy(self) -> dict[str, Any]:
        """Return what another learner copies: the whole state, but the optimizer's own if it is in parts."""
        state, optimizer = self._common(), self.optimizer.state_dict()
        return {**state, "optimizer": {**optimizer, "state": {}} if self.shards else optimizer}

    def load_copied(self, state: Mapping[str, Any]) -> None:
        """Take what another learner's `to_copy` returned."""
        if self.shards is None:
            self.optimizer.load_state_dict(state["optimizer"])
        else:
            for group, given in zip(self.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
                group.update({name: value for name, value in given.items() if name != "params"})
        self._load_common(state)

    def copied_buffers(self) -> list[torch.Tensor]:
        """Return copies of the model's buffers, such as the averages of BatchNorm."""
        return [each.detach().clone() for each in self._buffers()]

    def restore_buffers(self, buffers: list[torch.Tensor]) -> None:
        """Take what `copied_buffers` returned."""
        for buffer, value in zip(self._buffers(), buffers, strict=True):
            buffer.copy_(value)

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the optimizer's parameters."""
        return [each.grad for group in self.optimizer.param_groups for each in group["params"] if each.grad is not None]

    def _buffers(self) -> list[torch.Tensor]:
        return [each for some in self._buffers_of for each in some.values() if each is not None]

    def _common(self) -> dict[str, Any]:
        """Return what all learners have: the state without the optimizer's."""
        return {
            "model": self.model.state_dict(),
            "also": {name: each.state_dict() for name, each in self.also.items()},
            "grown": self.grown.state_dict() if self.grown else {},
            "steps": self.steps,
            "cursor": self._samples.to_json(self.cursor),
            "order": self._samples.as_json(),
        }

    def _load_common(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for name, each in self.also.items():
            each.load_state_dict(state["also"][name])
        if self.grown is not None:
            self.grown.load_state_dict(state["grown"])
        self.steps = int(state["steps"])
        self.cursor = self._samples.from_json(state["cursor"])
