"""What one learner knows of its group: the learner's side of `membership`, without sockets, clock or PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from updraft_learner.elastic.membership import NO_STATE, Generation, Message, Peer


class MemberState:
    """What a learner knows of its membership.

    Its owner sends the messages that methods return, and says `hello()` on each connection.

    Attributes:
        plan: The generation that this learner has formed; None before the first.
        step: The newest step in its state; NO_STATE before it has one.
        target: The generation to form now, which `membership` decided on without an exchange.
        broken: This generation and all before it are broken.
        fenced: Why this learner is out; None while it is not.
        finished: The training ended before this learner could join.
        left: The others have formed a generation without this learner, which asked for that.
    """

    def __init__(self, me: Peer) -> None:
        self.me = me
        self.plan: Generation | None = None
        self.step = NO_STATE
        self.target: Generation | None = None
        self.broken = 0
        self.fenced: str | None = None
        self.finished = self.left = self.leaving = False
        self._trying = 0  # the generation that is being formed, else that of `plan`
        self._offers: dict[int, Generation] = {}
        self._go = 0
        self._reported: Message | None = None  # until a plan answers it

    @property
    def generation(self) -> int:
        return self.plan.generation if self.plan else 0

    @property
    def rank(self) -> int:
        return self.plan.names.index(self.me.name) if self.plan else 0

    def hello(self) -> Message:
        return {
            "type": "hello",
            "name": self.me.name,
            "member": vars(self.me),
            "plan": self.plan.as_json() if self.plan else None,
            "step": self.step,
            "leaving": self.leaving,
            "report": self._reported,
        }

    def receive(self, message: Message) -> list[Message]:
        """Take a message of the coordinator. Return the answers."""
        kind = message["type"]
        if kind == "offer":
            plan = Generation.from_json(message["plan"])
            self._offers[plan.generation] = plan
            return [{"type": "confirm", "generation": plan.generation}]
        if kind == "plan":
            plan = Generation.from_json(message["plan"])
            # In the middle of a generation only an exchange, or a report, may end it.
            waits = self._reported or (self.plan is None and not self._trying)
            if waits and plan.generation > self._trying and self.me.name in plan.names:
                self.target, self._reported, self._trying = plan, None, plan.generation
        elif kind == "go":
            self._go = max(self._go, int(message["generation"]))
        elif kind == "broken":
            self.broken = max(self.broken, int(message["generation"]))
        elif kind == "fenced":
            self.fenced = str(message["reason"])
        elif kind == "finished":
            self.finished = True
        elif kind == "left":
            self.left = True
        return []

    def offered(self) -> Generation | None:
        """Return the change that a newcomer waits to be part of."""
        if self.plan is not None or not self._offers:
            return None
        newest = self._offers[max(self._offers)]
        return newest if newest.generation > max(self._trying, self.broken) else None

    def must_report(self) -> bool:
        """Return whether this newcomer was about to join a generation that broke."""
        return self.plan is None and self.broken > 0 and self._reported is None and self.target is None

    def flag(self) -> int:
        """Return what this learner adds to the exchange of gradients: how many generations further the leader wants to
        be after this step. 0 from everybody else."""
        if self.plan is None or self.plan.leader != self.me.name or self._go not in self._offers:
            return 0
        return max(0, self._go - self.plan.generation)

    def agreed(self, flag: int) -> Generation | None:
        """Return the plan to switch to after this step, from the sum of all flags."""
        return self._offers[self.generation + flag] if flag else None

    def is_broken(self) -> bool:
        return self.broken >= max(self._trying, self.generation, 1) or self.fenced is not None

    def trying(self, plan: Generation) -> None:
        """Begin to form `plan`."""
        self._trying, self.target = plan.generation, None

    def formed(self, plan: Generation, step: int) -> Message:
        """Become part of `plan`, with the state of `step`. Return the message that says so."""
        self.plan, self.step, self._trying, self._reported = plan, step, plan.generation, None
        self._offers = {number: each for number, each in self._offers.items() if number > plan.generation}
        return {"type": "formed", "plan": plan.as_json(), "step": step}

    def report(self, waited: float, missing: Sequence[str] = ()) -> Message:
        """Give up this generation, or the one that is being formed. Nothing may be committed in it from now on.

        Args:
            waited: For how many seconds this learner waited for the others before it gave up.
            missing: Names of those that this learner has not met, if that was the reason.
        """
        generation = self.broken = max(self._trying, self.generation, self.broken)
        self._reported = {
            "type": "report",
            "generation": generation,
            "plan": self.plan.as_json() if self.plan else None,
            "step": self.step,
            "waited": waited,
            "missing": list(missing),
        }
        return self._reported
