"""Who trains together: the coordinator's side of the protocol, without sockets, clock or PyTorch.

A *generation* is one group of learners in the order of their ranks; rank 0 leads it. The number of a generation is
never used twice, and it fences: nothing that belongs to one generation can reach another. There are two ways from one
generation to the next:

- *A change* (learners join or leave). The coordinator offers the next plan to everybody in it and in the old one. When
  all have confirmed that they hold it, it tells the leader, which says so in the next exchange of gradients. So all
  learners switch after the same step, and need no coordinator for that.
- *A round* (a learner is lost). Each survivor stops what it is in the middle of and reports its newest step. When all
  who can have reported, or the time is over, those who reported are the next generation; those with the newest step
  hold the state, and the others copy it. Who did not report is out for good, whatever it does later.
  So is one learner if all report again and again that a generation did not form: some of them do not reach each other.

`docs/design/0040-stop-free-resizing.md` has the invariants. `member_state` is the learner's side.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Any

NO_STATE = -1  # the step of a learner that has no state of this training yet

MOST_KEPT = 100  # pauses, and excluded learners
MOST_FRUITLESS = 3  # rounds in a row in which everybody reported, without a step in between

Message = dict[str, Any]
Sent = list[tuple[str, Message]]


@dataclass(frozen=True)
class Peer:
    """A learner: its name, which no other process ever has, and where its own rendezvous store listens."""

    name: str
    host: str
    port: int


def learner_of(name: str) -> int | None:
    """Return the number of a learner that the platform has started: its name begins with it. None: of another one."""
    number, dash, _ = name.partition("-")
    return int(number) if dash and number.isascii() and number.isdigit() else None


@dataclass(frozen=True)
class Generation:
    """One generation.

    Attributes:
        token: Random. With the number it is the prefix of the generation's keys in the store of rank 0.
        members: By rank.
        holders: Names of those who have the newest state when the generation forms; the others copy it.
    """

    generation: int
    token: str
    members: tuple[Peer, ...]
    holders: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.members)

    @property
    def leader(self) -> str:
        return self.members[0].name

    def as_json(self) -> Message:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Message) -> Generation:
        members = tuple(Peer(**each) for each in value["members"])
        return cls(int(value["generation"]), str(value["token"]), members, tuple(value["holders"]))


@dataclass
class Offer:
    """A change that is being agreed. Once it is `decided`, the leader may have begun it: it cannot be taken back."""

    plan: Generation
    missing: set[str]
    decided: bool = False


@dataclass
class Round:
    deadline: float = float("inf")  # set by the first report
    steps: dict[str, int] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)  # whom who reported has not met


class MembershipCoordinator:
    """The state of the coordinator. Each method returns the messages to send, after `saved()` is on disk.

    Args:
        first: How many learners begin the training; later ones join it.
        hang_seconds: A learner that keeps the others waiting for longer is lost.
        settle_seconds: A round gives each learner at least this time to report.
        saved: What `saved()` returned, of a coordinator that is started again.
        token: Makes the token of a plan.
    """

    def __init__(
        self,
        first: int = 1,
        *,
        hang_seconds: float = 60.0,
        settle_seconds: float = 5.0,
        saved: Message | None = None,
        token: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._first, self._hang_seconds, self._settle_seconds, self._token = first, hang_seconds, settle_seconds, token
        saved = saved or {}
        self.plan = Generation.from_json(saved["plan"]) if saved.get("plan") else None
        decided = saved.get("decided")
        self.offer = Offer(Generation.from_json(decided), set(), decided=True) if decided else None
        self.highest = int(saved.get("highest", 0))
        self.begun = bool(saved.get("begun"))  # a generation had formed: the learners' first state is not a state
        self.finished = bool(saved.get("finished"))
        self.lost = bool(saved.get("lost"))
        self.formed = bool(saved.get("formed"))
        self.excluded: list[str] = list(saved.get("excluded", ()))  # newest last
        self.pauses: dict[int, float] = {}  # the longest that a learner stood still for a generation, in seconds
        self._wanted: frozenset[int] | None = None
        self._fruitless = 0  # rounds in a row in which everybody reported, without a step in between
        self._round_step = NO_STATE - 1  # the newest step in the last of them
        self.round: Round | None = None
        self.waiting: dict[str, Peer] = {}
        self.leaving: set[str] = set()
        self._connected: set[str] = set()
        self._seen: set[str] = set()  # connected since this coordinator started

    def saved(self) -> Message:
        """Return what must survive the coordinator. What is missing here is said again by the learners."""
        return {
            "plan": self.plan.as_json() if self.plan else None,
            "decided": self.offer.plan.as_json() if self.offer and self.offer.decided else None,
            "highest": self.highest,
            "begun": self.begun,
            "formed": self.formed,
            "finished": self.finished,
            "lost": self.lost,
            "excluded": self.excluded,
        }

    def status(self) -> Message:
        state = "finished" if self.finished else "lost" if self.lost else "waiting" if self.plan is None else "training"
        if state == "training" and (self.round or self.offer or not self.formed):
            state = "resizing"
        return {
            "state": state,
            "generation": self.plan.generation if self.plan else 0,
            "members": list(self.plan.names) if self.plan else [],
            "waiting": sorted(self.waiting),
            "leaving": sorted(self.leaving),
        }

    def remove(self, name: str) -> tuple[str, Sent]:
        """Ask that a member leaves at the next switch. Return "ok", "retry" during another resize, or "refused"."""
        if self.plan is None or name not in self.plan.names or len(self.plan.members) < 2:
            return "refused", []
        if self.status()["state"] != "training":
            return "retry", []
        self.leaving.add(name)
        return "ok", self._consider()

    def lead_to(self, learners: Collection[int]) -> Sent:
        """Let these learners be the members as soon as they can: the others leave, or do not join.

        Args:
            learners: Their numbers, with which the names of learners begin that the platform has started.
        """
        self._wanted = frozenset(learners)
        if self.plan is None:
            self._first = len(self._wanted)
        else:
            self.leaving |= {name for name in self.plan.names if not self._is_wanted(name)}
        return self._consider()

    def _is_wanted(self, name: str) -> bool:
        number = learner_of(name)
        return self._wanted is None or number is None or number in self._wanted

    def receive(self, name: str, message: Message, now: float) -> Sent:
        """Take a message of a learner. `hello` is the first of each connection."""
        kind = message["type"]
        self._connected.add(name)  # again, if it was wrong that the learner was killed
        if kind == "hello":
            return self._hello(name, message, now)
        if kind == "confirm":
            return self._confirm(name, int(message["generation"]))
        if kind == "formed":
            plan = Generation.from_json(message["plan"])
            if (pause := message.get("pause_seconds")) is not None:
                self.pauses[plan.generation] = max(float(pause), self.pauses.get(plan.generation, 0.0))
                self.pauses = dict(sorted(self.pauses.items())[-MOST_KEPT:])
            return self._adopt(plan) + self._consider()
        if kind == "report":
            return self._report(name, message, now)
        if kind == "leave":
            self.leaving.add(name)
            return self._consider()
        if kind == "done":
            return self._done()
        return [(name, {"type": "fenced", "reason": f"the coordinator knows no message {kind!r}"})]

    def gone(self, name: str, now: float) -> Sent:
        """Take note that the connection of a learner ended. Alone this is no reason to exclude it."""
        self._connected.discard(name)
        sent: Sent = []
        if self.waiting.pop(name, None) and self.offer and not self.offer.decided and name in self.offer.plan.names:
            self.offer = None
            sent += self._consider()
        return sent + self._settle(now)

    def killed(self, name: str, now: float) -> Sent:
        """Take note that the process of a learner is dead, though its connections have not ended yet. The others need
        not find out for themselves, and nobody waits for its report."""
        if not self._belongs(name):
            return []
        self._seen.add(name)
        sent = self.gone(name, now)  # which may end a round, and leave the learner out
        others = any(each.name in self._connected for each in self._eligible())
        if self._belongs(name) and others and not (self.round or self.finished or self.lost):
            sent += self._begin_round()
        return sent

    def tick(self, now: float) -> Sent:
        return self._settle(now)

    def _belongs(self, name: str) -> bool:
        return any(name == each.name for each in self._eligible())

    def _eligible(self) -> tuple[Peer, ...]:
        """Everybody who may hold a state, or be about to copy it."""
        members = self.plan.members if self.plan else ()
        if self.offer and self.offer.decided:
            members += tuple(each for each in self.offer.plan.members if each not in members)
        return members

    def _hello(self, name: str, message: Message, now: float) -> Sent:
        self._seen.add(name)
        sent = self._adopt(Generation.from_json(message["plan"])) if message.get("plan") else []
        if self.lost:
            return [*sent, (name, {"type": "fenced", "reason": "every learner that had the state is lost"})]
        if message.get("leaving"):
            self.leaving.add(name)
        if not self._belongs(name):
            if message.get("leaving") and message.get("plan"):
                self.leaving.discard(name)
                return [*sent, (name, {"type": "left"})]
            if message.get("plan") or message["step"] != NO_STATE:
                return [*sent, (name, self._fenced())]
            if self.finished:
                return [*sent, (name, {"type": "finished"})]
            self.waiting[name] = Peer(**message["member"])
            if self.offer and name in self.offer.plan.names:
                sent.append((name, {"type": "offer", "plan": self.offer.plan.as_json()}))
            return sent + self._consider()
        if self.offer and name in self._names_of_change(self.offer):
            sent.append((name, {"type": "offer", "plan": self.offer.plan.as_json()}))
            if self.offer.decided and self.plan and name == self.plan.leader:
                sent.append((name, {"type": "go", "generation": self.offer.plan.generation}))
        if message.get("report"):
            return sent + self._report(name, message["report"], now)
        if self.round:
            sent.append((name, {"type": "broken", "generation": self.highest}))
        elif self.plan and name in self.plan.names:
            sent.append((name, {"type": "plan", "plan": self.plan.as_json()}))
        return sent + self._consider()

    def _fenced(self) -> Message:
        generation = self.plan.generation if self.plan else 0
        return {"type": "fenced", "reason": f"the others go on without this learner, in generation {generation}"}

    def _adopt(self, plan: Generation) -> Sent:
        """Take note that a learner has formed this generation, perhaps while there was no coordinator."""
        if self.plan and plan.generation < self.plan.generation:
            return []
        sent: Sent = []
        if self.plan is None or plan.generation > self.plan.generation:
            left = set(self.plan.names if self.plan else ()) - set(plan.names)
            sent = [(name, {"type": "left"}) for name in sorted(left & self._connected)]
            self.leaving -= left
            self.plan = plan
            self.round = None  # of the generation before; who still reports, does it for this one
        if self.offer and self.offer.plan.generation <= plan.generation:
            self.offer = None
        self.highest = max(self.highest, plan.generation)
        self.formed = self.begun = True
        for name in plan.names:
            self.waiting.pop(name, None)
        return sent

    def _consider(self) -> Sent:
        """Begin the training, or offer a change, if there is a reason and nothing is under way."""
        if self.finished or self.lost or self.round or self.offer:
            return []
        waiting = {name: each for name, each in self.waiting.items() if self._is_wanted(name)}
        if self.plan is None:
            if len(waiting) < self._first:
                return []
            members = tuple(waiting.values())
            for name in waiting:
                del self.waiting[name]
            return self._decree(members, (members[0].name,))
        staying = tuple(each for each in self.plan.members if each.name not in self.leaving)
        staying = staying or self.plan.members  # somebody must hand over the state: the others join first
        if not self.formed or (staying == self.plan.members and not waiting):
            return []
        self.highest += 1
        members = staying + tuple(waiting.values())
        plan = Generation(self.highest, self._token(), members, tuple(each.name for each in staying))
        self.offer = Offer(plan, set())
        self.offer.missing = self._names_of_change(self.offer)
        return [(name, {"type": "offer", "plan": plan.as_json()}) for name in sorted(self.offer.missing)]

    def _names_of_change(self, offer: Offer) -> set[str]:
        return {*offer.plan.names, *(self.plan.names if self.plan else ())}

    def _confirm(self, name: str, generation: int) -> Sent:
        offer = self.offer
        if offer is None or offer.plan.generation != generation or self.plan is None or offer.decided:
            return []
        offer.missing.discard(name)
        if offer.missing:
            return []
        offer.decided = True
        return [(self.plan.leader, {"type": "go", "generation": generation})]

    def _report(self, name: str, message: Message, now: float) -> Sent:
        if message.get("plan"):
            self._adopt(Generation.from_json(message["plan"]))
        if not self._belongs(name) or self.plan is None:
            return [(name, self._fenced())]
        sent: Sent = []
        if self.round is None:
            if message["generation"] < self.plan.generation and name in self.plan.names:  # it missed the answer
                return [(name, {"type": "plan", "plan": self.plan.as_json()})]
            sent = self._begin_round()
        assert self.round is not None
        if not self.round.steps:
            left = self._hang_seconds - float(message.get("waited", 0.0))
            self.round.deadline = now + max(self._settle_seconds, left)
        self.round.steps[name] = int(message["step"])
        self.round.missing[name] = tuple(map(str, message.get("missing", ())))
        return sent + self._settle(now)

    def _begin_round(self) -> Sent:
        """Ask everybody who may hold a state to report. The time begins with the first report: all of them may be in
        the middle of a long step."""
        self.round = Round()
        if self.offer and not self.offer.decided:
            self.offer = None
        broken = {"type": "broken", "generation": self.highest}
        return [(each.name, broken) for each in self._eligible() if each.name in self._connected]

    def _settle(self, now: float) -> Sent:
        """End the round, if everybody who can has reported, or its time is over."""
        if self.round is None or not self.round.steps:
            return []
        steps, eligible = self.round.steps, self._eligible()
        expected = [each.name for each in eligible if each.name in self._connected or each.name not in self._seen]
        if now < self.round.deadline and not all(name in steps for name in expected):
            return []
        if self.offer and not any(name in steps for name in self.offer.plan.names):
            return []  # only leavers reported: the others may have switched, and go on without them
        out = {each.name for each in eligible if each.name not in steps}
        if not out and (cut_off := self._cut_off(self.round)) is not None:
            out = {cut_off}
        survivors = tuple(each for each in eligible if each.name not in out)
        newest = max((steps[each.name] for each in survivors), default=NO_STATE)
        holders = tuple(each.name for each in survivors if steps[each.name] == newest)
        self.excluded = [*self.excluded, *(each.name for each in eligible if each.name in out)][-MOST_KEPT:]
        excluded = [each.name for each in eligible if each.name in out & self._connected]
        self.round = self.offer = None
        for each in eligible:  # newcomers that are in it, or are out
            self.waiting.pop(each.name, None)
        if newest == NO_STATE and self.begun:
            self.lost = True
            reason = {"type": "fenced", "reason": "every learner that had the state is lost"}
            return [(name, reason) for name in sorted(self._connected)]
        if newest == NO_STATE:
            holders = holders[:1]
        self.leaving &= {each.name for each in survivors}
        sent = self._decree(survivors, holders)
        return sent + [(name, self._fenced()) for name in excluded]

    def _cut_off(self, ended: Round) -> str | None:
        """Return who is left out of the next generation though everybody has reported: who does not reach the others.

        A learner without a state that was missed is left out at once, because nothing is lost with it. Otherwise
        generations are tried again first. Of several, it is who was missed by most; somebody with the newest step
        stays.
        """
        newest = max(ended.steps.values())
        if newest > self._round_step:
            self._fruitless = 0
        self._round_step = newest
        self._fruitless += 1
        votes = Counter(name for missing in ended.missing.values() for name in missing)
        names = [each.name for each in self._eligible()]
        holders = [name for name in names if ended.steps[name] == newest]
        found = [name for name in names if ended.steps[name] == NO_STATE < newest and votes[name]]
        if not found and self._fruitless >= MOST_FRUITLESS and len(names) > 1:
            found = [name for name in names if holders != [name]]
            self._fruitless -= 1  # the others get one try
        return max(reversed(found), key=lambda name: votes[name]) if found else None

    def _decree(self, members: tuple[Peer, ...], holders: tuple[str, ...]) -> Sent:
        """Make a generation of learners that all wait for it."""
        self.highest += 1
        self.plan = Generation(self.highest, self._token(), members, holders)
        self.formed = False
        return [(each.name, {"type": "plan", "plan": self.plan.as_json()}) for each in members]

    def _done(self) -> Sent:
        """Take note that everybody in the group has the last step: no newcomer is needed."""
        self.finished = True
        offered = set(self.offer.plan.names) - set(self.offer.plan.holders) if self.offer else set()
        newcomers = set(self.waiting) | offered
        self.waiting.clear()
        self.offer = None
        return [(name, {"type": "finished"}) for name in sorted(newcomers & self._connected)]
