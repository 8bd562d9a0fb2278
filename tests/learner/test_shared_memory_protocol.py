"""The real server and learners of shared-memory training, in one process, with a crash in any of their writes.

A crash leaves a word as it was or as it becomes, and of an array any part changed, with anything in it. The server's
loop runs here as Python: what it writes between two words is what the compiler and the processor may reorder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

pytest.importorskip("numba", reason="needs the PyTorch learner environment")

from updraft_learner.shared import kernels
from updraft_learner.shared.memory import Array, Segment, SharedLayout
from updraft_learner.shared.optimizers import SGD, Adam
from updraft_learner.shared.publisher import Publisher
from updraft_learner.shared.server import Item, RangeServer

pytestmark = [pytest.mark.torch, pytest.mark.turn(2), pytest.mark.timeout(600)]
Optimizer = SGD | Adam
OPTIMIZERS: tuple[Optimizer, ...] = (
    SGD(lr=1.0),
    SGD(lr=1.0, weight_decay=0.1),
    SGD(lr=0.5, momentum=0.9),
    SGD(lr=0.5, momentum=0.9, weight_decay=0.01),
    Adam(lr=0.1, weight_decay=0.01),
)


def apply(optimizer: Optimizer, weights: Array, moments: tuple[Array, ...], gradient: Array, step: int) -> None:
    """Do an update in NumPy, in the order in which `kernels` does it."""
    real = np.float32
    if optimizer.weight_decay or isinstance(optimizer, Adam):
        gradient = gradient + real(optimizer.weight_decay) * weights
    if isinstance(optimizer, SGD):
        if moments:
            moments[0][:] = real(optimizer.momentum) * moments[0] + gradient
        weights -= real(optimizer.lr) * (moments[0] if moments else gradient)
        return
    mean, square = moments
    keep_mean, keep_square = optimizer.betas
    mean[:] = real(keep_mean) * mean + real(1 - keep_mean) * gradient
    square[:] = real(keep_square) * square + real(1 - keep_square) * gradient * gradient
    root = real(1 / math.sqrt(1 - keep_square**step))
    weights -= real(optimizer.lr / (1 - keep_mean**step)) * mean / (np.sqrt(square) * root + real(optimizer.eps))


class Crash(Exception):
    """The process is dead."""


class FragileSegment(Segment):
    """Shared memory whose writer dies in the write that `fuse` counts down to."""

    def __init__(self, layout: SharedLayout) -> None:
        super().__init__(layout, bytearray(layout.bytes))
        self.fuse: int | None = None
        self.stored_by_a_crash: bool | None = None  # the word in whose store the writer dies; None: by chance
        self.chance = Random(0)
        self.writes = 0
        self.stored: list[tuple[int, int]] = []

    def _burns(self) -> bool:
        self.writes += 1
        if self.fuse is None:
            return False
        self.fuse -= 1
        return self.fuse < 0

    def store(self, word: int, value: int) -> None:
        burns = self._burns()
        stored = self.chance.random() < 0.5 if self.stored_by_a_crash is None else self.stored_by_a_crash
        if not burns or stored:
            super().store(word, value)
            self.stored.append((word, value))
        if burns:
            raise Crash

    def change(self, targets: tuple[Array, ...], act: Callable[..., None]) -> None:
        before = self.values.copy()
        act(*targets)
        if self._burns():
            self.tear(before)
            raise Crash

    def apply(self, *arguments: Any) -> None:
        kernels.apply.py_func(FragileWords(self), self.values, *arguments)  # type: ignore[attr-defined]

    def tear(self, before: Array) -> None:
        """Let a crash leave any part of what was written since then."""
        for place in np.flatnonzero(before.view(np.int32) != self.values.view(np.int32)):
            what = self.chance.random()
            if what < 0.4:
                self.values[place] = before[place]
            elif what < 0.6:
                self.values[place] = self.chance.choice((np.nan, -7.0, 1e30))


class FragileWords:
    """The words, for the server's loop: the process may die before a store, with what it wrote since the last one torn,
    or after it."""

    def __init__(self, memory: FragileSegment) -> None:
        self._memory = memory
        self._before = memory.values.copy()

    def __getitem__(self, word: int) -> int:
        return self._memory.load(word)

    def __setitem__(self, word: int, value: int) -> None:
        memory = self._memory
        held = memory.load(word)
        try:
            memory.store(word, value)
        except Crash:
            if memory.load(word) == held:
                memory.tear(self._before)
            raise
        self._before = memory.values.copy()


class SharedMemoryMachine(RuleBasedStateMachine):
    """Learners publish, servers apply, and each may die in any write. The oracle is the optimizer on plain arrays."""

    @initialize(
        learners=st.integers(1, 3),
        ranges=st.integers(1, 2),
        elements=st.integers(1, 11),
        staleness=st.sampled_from([None, 0, 1, 3]),
        optimizer=st.sampled_from(OPTIMIZERS),
    )
    def begin(self, learners: int, ranges: int, elements: int, staleness: int | None, optimizer: SGD | Adam) -> None:
        self.layout = SharedLayout(elements, optimizer.moments, learners, ranges, chunk=3)
        self.memory = FragileSegment(self.layout)
        self.memory.weights[:] = np.arange(elements)
        self.staleness, self.optimizer = staleness, optimizer
        self.servers = [self._server(each) for each in range(ranges)]
        self.publishers = [Publisher(self.memory, each, staleness) for each in range(learners)]
        self.gradients: dict[tuple[int, int], Array | None] = {}
        self.seen = 0
        self.orders: list[list[tuple[int, int]]] = [[] for _ in range(ranges)]
        self.words = {
            self.layout.applied(range_, each): (range_, each) for range_ in range(ranges) for each in range(learners)
        }

    def _server(self, number: int) -> RangeServer:
        return RangeServer(self.memory, number, self.optimizer, synchronous=self.staleness is None)

    def _able(self) -> list[int]:
        return [who for who, each in enumerate(self.publishers) if each.may_start() and each.may_publish()]

    def _busy(self) -> list[int]:
        return [number for number, each in enumerate(self.servers) if each._choose() is not None]

    @precondition(lambda self: self._able())
    @rule(
        who=st.integers(0, 2),
        seed=st.integers(0, 1 << 20),
        bad=st.sampled_from([False, False, True]),
        fuse=st.none() | st.integers(0, 4),
    )
    def push(self, who: int, seed: int, bad: bool, fuse: int | None) -> None:
        able = self._able()
        who = able[who % len(able)]
        publisher = self.publishers[who]
        number = publisher.pushed + 1
        gradient = np.random.default_rng(seed).integers(-8, 8, self.layout.elements).astype(np.float32)

        def write(slot: Array) -> bool:
            slot[:] = np.nan if bad else gradient
            return not bad

        publisher.start()
        self.memory.fuse, self.memory.chance = fuse, Random(seed)
        try:
            publisher.publish(write)
        except Crash:
            self.publishers[who] = Publisher(self.memory, who, self.staleness)
        self.memory.fuse = None
        if self.publishers[who].pushed == number:
            self.gradients[who, number] = None if bad else gradient

    @precondition(lambda self: self._busy())
    @rule(number=st.integers(0, 1), seed=st.integers(0, 1 << 20), fuse=st.integers(0, 40))
    def serve(self, number: int, seed: int, fuse: int) -> None:
        """Turn, and after a crash begin with the recovery, which crashes too if the fuse is not burnt."""
        busy = self._busy()
        number = busy[number % len(busy)]
        self.memory.fuse, self.memory.chance = fuse, Random(seed)
        for _ in range(3):
            try:
                self.servers[number].turn()
                break
            except Crash:
                self.servers[number] = self._server(number)
                self.memory.fuse = self.memory.chance.choice((None, 0, 1, 2, 3, 5, 8))
                try:
                    self.servers[number].recover()
                except Crash:
                    self.memory.fuse = None
                    self.servers[number] = self._server(number)
                    self.servers[number].recover()
        self.memory.fuse = None

    @precondition(lambda self: hasattr(self, "memory"))
    @invariant()
    def each_range_has_each_gradient_once(self) -> None:
        for word, value in self.memory.stored[self.seen :]:
            if word in self.words:
                range_, learner = self.words[word]
                if (learner, value) not in self.orders[range_]:  # a successor repeats the store
                    self.orders[range_].append((learner, value))
        self.seen = len(self.memory.stored)
        for range_, order in enumerate(self.orders):
            for learner in range(self.layout.learners):
                numbers = [number for each, number in order if each == learner]
                assert numbers == list(range(1, self.memory.load(self.layout.applied(range_, learner)) + 1))
            self._compare(range_, order)

    def _compare(self, range_: int, order: list[tuple[int, int]]) -> None:
        part = slice(*self.layout.bounds[range_])
        weights = np.arange(self.layout.elements, dtype=np.float32)[part]
        moments = tuple(np.zeros_like(weights) for _ in range(self.layout.moments))
        step = 0
        for gradients in self._updates(order):
            given = [each[part] for each in gradients if each is not None]
            if given:
                step += 1
                total = given[0].copy()
                for each in given[1:]:
                    total += each
                apply(self.optimizer, weights, moments, total * np.float32(1 / len(given)), step)
        assert self.memory.load(self.layout.updates(range_)) == step
        for mine, theirs in zip((self.memory.weights, *self.memory.moments), (weights, *moments), strict=True):
            assert mine[part].tobytes() == theirs.tobytes()

    def _updates(self, order: list[tuple[int, int]]) -> list[list[Array | None]]:
        if self.staleness is not None:
            return [[self.gradients[each]] for each in order]
        learners = range(self.layout.learners)
        return [
            [self.gradients[each, number] for each in learners]
            for number in range(1, len(order) // self.layout.learners + 1)
        ]

    def teardown(self) -> None:
        """Without crashes, all that was pushed is applied: nobody is stuck."""
        if not hasattr(self, "memory"):
            return
        most = max(publisher.pushed for publisher in self.publishers) + 2
        for _ in range(10_000):
            moved = sum(server.turn() for server in self.servers) > 0
            for who, publisher in enumerate(self.publishers):
                if publisher.pushed < most and publisher.may_start() and publisher.may_publish():
                    publisher.start()
                    publisher.publish(lambda slot: bool(slot.fill(1) or True))
                    self.gradients[who, publisher.pushed] = np.ones(self.layout.elements, np.float32)
                    moved = True
            if not moved:
                break
        self.each_range_has_each_gradient_once()
        assert {publisher.pushed for publisher in self.publishers} == {most}
        assert all(self.memory.least_applied(each) == most for each in range(self.layout.learners))
        if self.staleness is not None:
            bound = (self.layout.learners - 1) * (2 * self.staleness + 1) + 2
            assert max(self.memory.load(self.layout.stalest(each)) for each in range(self.layout.ranges)) <= bound


TestSharedMemory = SharedMemoryMachine.TestCase
TestSharedMemory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("staleness", [None, 1])
@pytest.mark.parametrize("stored", list(product((False, True), repeat=2)))
def test_a_crash_in_each_write_and_in_each_of_its_recovery_changes_nothing(
    optimizer: Optimizer, staleness: int | None, stored: tuple[bool, bool]
) -> None:
    expected, _ = _two_crashes(optimizer, staleness, None, None, stored)
    first = 0
    while True:
        second = 0
        while True:
            memory, gone = _two_crashes(optimizer, staleness, first, second, stored)
            assert memory.weights.tobytes() == expected.weights.tobytes()
            assert all(a.tobytes() == b.tobytes() for a, b in zip(memory.moments, expected.moments, strict=True))
            bells = memory.layout.bell(0)  # they count who was woken
            assert memory.words[:bells].tobytes() == expected.words[:bells].tobytes()
            if gone < 2:
                break
            second += 1
        if gone < 1:
            break
        first += 1
    assert first > 10


def _two_crashes(
    optimizer: Optimizer, staleness: int | None, first: int | None, second: int | None, stored: tuple[bool, bool]
) -> tuple[FragileSegment, int]:
    """Two gradients of two learners, applied by a server that dies in its write number `first`, and its successor in
    its write number `second`; return the memory and how many died."""
    layout = SharedLayout(5, optimizer.moments, 2, chunk=3)
    memory = FragileSegment(layout)
    for number in range(2):
        for learner in range(2):
            gradient = np.arange(5, dtype=np.float32) + number - learner
            publisher = Publisher(memory, learner, staleness if staleness is not None else 2)
            publisher.publish(lambda slot, gradient=gradient: bool(np.copyto(slot, gradient) or True))  # type: ignore[misc]
    fuses, gone = [first, second], 0
    while True:
        server = RangeServer(memory, 0, optimizer, synchronous=staleness is None)
        memory.fuse = fuses[gone] if gone < 2 else None
        memory.chance = Random(gone)
        memory.stored_by_a_crash = stored[gone] if gone < 2 else None
        try:
            server.recover()
            # A successor begins with another learner than the dead server would have: the same one decides here.
            server._next = memory.version(0) % 2
            while server.turn():
                pass
        except Crash:
            gone += 1
            continue
        return memory, gone


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("learners", [1, 2, 3, 5])
@pytest.mark.parametrize("torn", [False, True])
def test_the_compiled_loop_does_what_the_same_code_does_as_python(
    optimizer: Optimizer, learners: int, torn: bool
) -> None:
    layout = SharedLayout(1000, optimizer.moments, learners, ranges=2, chunk=96)
    memories = Segment(layout, bytearray(layout.bytes)), FragileSegment(layout)
    low, high = layout.bounds[1]
    for memory in memories:
        chance = np.random.default_rng(0)
        memory.values[:] = np.abs(chance.standard_normal(memory.values.size, np.float32))
        for slots in memory.slots:
            for slot in slots:
                slot[:] = chance.standard_normal(slot.size, np.float32)
                slot[::7] = -0.0
        for learner in range(learners):
            memory.store(layout.pushed(learner), 1)
        if torn:  # in its second chunk
            memory.store(layout.intent_update(1), 1)
            memory.store(layout.progress(1), 3)
            memory.store(layout.intent(1), Item(None, 1).intent())
            memory.weights[low + 96 : low + 192] = np.nan
        server = RangeServer(memory, 1, optimizer, synchronous=True)
        assert server.recover() == torn
        assert server.turn() != torn
    compiled, python = memories
    assert compiled.values.tobytes() == python.values.tobytes()
    bells = layout.bell(0)
    assert compiled.words[:bells].tobytes() == python.words[:bells].tobytes()
    assert compiled.load(layout.progress(1)) == 2 * -(-(high - low) // 96)
