"""The optimizer's state in parts: each parameter's is held by two learners, however many there are.

One of the two owns the parameter: it computes its new value and sends that to all. The other one mirrors it. The mirror
receives nothing for that: it has the same summed gradient, and computes the same update. So both copies are equal after
each step, and the loss of one learner loses nothing.

A step is applied once the new values of all parameters have arrived. If a learner is lost before, a learner keeps both
versions of what it holds: perhaps another one has applied the step, and then everybody must. The next generation tells.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch

from updraft_learner.elastic.errors import StateLost
from updraft_learner.elastic.group import Group, pack, unpack
from updraft_learner.elastic.optimizer_placement import assign, keeps, transfers


class OptimizerShards:
    """What this learner holds of the optimizer's state.

    Args:
        optimizer: Any whose update of a parameter needs only the gradient and the state of that parameter.

    Attributes:
        held: The parameters, by index, whose state is here.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        self._sizes = [each.numel() for each in self._parameters]
        self.held: set[int] = set(range(len(self._parameters)))
        self._owners: list[int] = [0] * len(self._parameters)
        self._kept = self.held  # of what is held, what this generation has given to this learner
        self._ahead: dict[int, dict[str, Any]] = {}  # the held states one step further

    def settle(self, holds: bool, steps_before: int, steps: int) -> None:
        """Choose the version that goes on, once this learner has the newest state but for the optimizer's.

        Args:
            holds: It had that state before.
            steps_before: How many steps were in its own state.
            steps: How many are in the newest one.
        """
        if not holds and steps:  # before the first step, everybody's is empty
            if steps == steps_before + 1 and self._ahead:
                for index, state in self._ahead.items():
                    self._optimizer.state[self._parameters[index]] = state
            else:
                self._forget(self.held)
        self._ahead = {}

    def distribute(self, group: Group, rank_of_learner: list[int]) -> int:
        """Give each parameter an owner and a mirror, and send them its state. All ranks of the group call it. States
        that are no longer needed here are kept until `begin_step`, because a learner may be lost before.

        Args:
            rank_of_learner: The ranks in this group of those that are to hold the states, in the order of their ranks
                in the generation that follows.

        Returns:
            How many bytes this learner received.

        Raises:
            Broken: a learner is lost; what was held before still is.
            StateLost: no learner holds a state that is needed.
        """
        mine = torch.zeros(len(self._parameters), dtype=torch.uint8)
        mine[sorted(self.held)] = 1
        holders = [set(each.nonzero().flatten().tolist()) for each in group.gather(mine)]
        if lost := set(range(len(self._parameters))).difference(*holders):
            raise StateLost(
                f"the optimizer's state of {len(lost)} of {len(self._parameters)} parameters is lost: both learners "
                "that held it are. Start the learners again from a checkpoint"
            )
        owners = assign(self._sizes, [holders[rank] for rank in rank_of_learner])
        kept_by = [keeps(owners, number, len(rank_of_learner)) for number in range(len(rank_of_learner))]
        wanted = {rank: kept_by[number] - holders[rank] for number, rank in enumerate(rank_of_learner)}
        given = transfers(self._sizes, holders, wanted)
        parts = [self._packed(given.get((group.rank, to), [])) for to in range(group.size)]
        sizes = [each[group.rank] for each in group.gather(torch.tensor([each.numel() for each in parts]))]
        received = group.exchange(parts, [int(each) for each in sizes])
        for content in received:
            if content.numel():
                states = unpack(content)
                self._hold(states)
                self.held |= set(states)
        self._owners = owners
        number = rank_of_learner.index(group.rank) if group.rank in rank_of_learner else None
        self._kept = set() if number is None else kept_by[number]
        return sum(each.numel() for each in received)

    def gather(self, group: Group) -> dict[str, Any] | None:
        """Return the state of all parameters on rank 0, for a checkpoint; None on others. All ranks of the group call
        it between two steps. Raises Broken."""
        owned = [index for index, owner in enumerate(self._owners) if owner == group.rank]
        nothing = self._packed([])
        given = [self._packed(owned, "cpu") if group.rank else nothing, *[nothing] * (group.size - 1)]
        sizes = [int(each[0]) if group.rank == 0 else 0 for each in group.gather(torch.tensor([given[0].numel()]))]
        received = group.exchange(given, sizes)
        if group.rank:
            return None
        found = self.state_dict()
        for content in received:
            if content.numel():
                found["states"].update(unpack(content))
        return found

    def begin_step(self) -> None:
        """Take note that everybody has formed this generation: its gradients are summed. Gradients of what is not held
        here are cleared, so that the optimizer leaves these parameters alone."""
        self._forget(self.held - self._kept)
        for index, parameter in enumerate(self._parameters):
            if index not in self.held:
                parameter.grad = None

    def update(self, group: Group) -> None:
        """Update the parameters. Raises Broken: then they and the optimizer's state are as they were."""
        before = {index: self._parameters[index].detach().clone() for index in self.held}
        states = {index: copy.deepcopy(self._optimizer.state.get(self._parameters[index])) for index in self.held}
        self._optimizer.step()
        arriving = [self._new_values(owner, group.rank) for owner in range(group.size)]
        try:
            group.broadcast([(each, owner) for owner, some in enumerate(arriving) for each in some])
        except BaseException:
            for index, value in before.items():
                parameter = self._parameters[index]
                parameter.copy_(value)
                self._ahead[index] = self._optimizer.state.pop(parameter, {})
                if (state := states[index]) is not None:
                    self._optimizer.state[parameter] = state
            raise
        for owner, some in enumerate(arriving):
            if owner != group.rank:
                self._store(owner, some)

    def state_dict(self) -> dict[str, Any]:
        """Return what this learner holds, for its part of a checkpoint."""
        states = {index: dict(self._optimizer.state.get(self._parameters[index], {})) for index in sorted(self.held)}
        return {"parameters": len(self._parameters), "states": states}

    def load_state_dict(self, parts: Iterable[dict[str, Any]]) -> None:
        """Take all parts of a checkpoint. Raises ValueError if they are not complete."""
        states: dict[int, dict[str, Any]] = {}
        for part in parts:
            if part["parameters"] != len(self._parameters):
                raise ValueError(
                    f"the checkpoint has {part['parameters']} parameters, the optimizer {len(self._parameters)}"
                )
            states.update(part["states"])
        if missing := set(range(len(self._parameters))) - set(states):
            raise ValueError(
                f"the optimizer's state of {len(missing)} parameters is in none of the given parts of the checkpoint; "
                "give the parts of all learners of one step"
            )
        self._hold(copy.deepcopy(states))
        self.held = self._kept = set(states)

    def _hold(self, states: dict[int, dict[str, Any]]) -> None:
        """Take the states of parameters, to the devices where torch's load_state_dict puts them."""
        options = {parameter: group for group in self._optimizer.param_groups for parameter in group["params"]}
        for index, state in states.items():
            parameter = self._parameters[index]
            # Only then the number of steps is where the parameter is.
            stays = () if options[parameter].get("fused") or options[parameter].get("capturable") else ("step",)
            self._optimizer.state[parameter] = {
                name: value.to(parameter.device) if isinstance(value, torch.Tensor) and name not in stays else value
                for name, value in state.items()
            }

    def _packed(self, indices: list[int], device: str | None = None) -> torch.Tensor:
        """Return the states of parameters as bytes, which become tensors on `device`, or where they are now."""
        if not indices:
            return torch.empty(0, dtype=torch.uint8)
        states = {index: dict(self._optimizer.state.get(self._parameters[index], {})) for index in indices}
        if device is not None:
            for state in states.values():
                state.update(
                    {name: value.to(device) for name, value in state.items() if isinstance(value, torch.Tensor)}
                )
        return pack(states)

    def _owned(self, owner: int) -> dict[torch.dtype, list[torch.Tensor]]:
        found: dict[torch.dtype, list[torch.Tensor]] = {}
        for index, parameter in enumerate(self._parameters):
            if self._owners[index] == owner:
                found.setdefault(parameter.dtype, []).append(parameter)
        return found

    def _new_values(self, owner: int, rank: int) -> list[torch.Tensor]:
        """Return the parameters of an owner, flat; on other ranks room for them."""
        flat = []
        for dtype, some in self._owned(owner).items():
            if owner == rank:
                flat.append(torch.cat([each.detach().cpu().reshape(-1) for each in some]))
            else:
                flat.append(torch.empty(sum(each.numel() for each in some), dtype=dtype))
        return flat

    def _store(self, owner: int, flat: list[torch.Tensor]) -> None:
        for values, some in zip(flat, self._owned(owner).values(), strict=True):
            for parameter, value in zip(some, values.split([each.numel() for each in some]), strict=True):
                parameter.copy_(value.view(parameter.shape))

    def _forget(self, indices: Iterable[int]) -> None:
        for index in set(indices):
            self._optimizer.state.pop(self._parameters[index], None)
            self.held = self.held - {index}
