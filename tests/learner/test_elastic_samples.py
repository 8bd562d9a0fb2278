"""Which samples a learner uses, and sums in an order of their own: pure parts of elastic training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import hypothesis.strategies as st
from hypothesis import given

from updraft_learner.elastic.optimizer_placement import assign, keeps, transfers
from updraft_learner.elastic.ordered_sum import OrderedSum, subtrees
from updraft_learner.elastic.sample_order import DataCursor, SampleOrder, bounds
from updraft_learner.elastic.shard_order import ShardOrder
from updraft_learner.elastic.shard_reader import ShardReader


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=2, max_size=2))
def test_a_sum_has_the_same_bits_with_any_number_of_learners(ranks: int, numbers: list[int]) -> None:
    values = [1.0 / (3 + 7 * rank) * 10.0 ** (rank % 17 - 8) for rank in range(ranks)]
    totals = []
    for learners in numbers:
        whole = OrderedSum(ranks)
        for learner in range(learners):
            begin, end = bounds(ranks, learner, learners)
            own = OrderedSum(ranks)
            for rank in range(begin, end):
                own.add(rank, values[rank])
            assert sorted(own.nodes) == sorted(subtrees(begin, end))
            whole.nodes.update(own.nodes)
        totals.append(whole.total())
    assert totals[0] == totals[1]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 8), st.lists(st.integers(1, 9), min_size=1))
def test_virtual_ranks_and_a_grown_batch_use_each_sample_once(
    length: int, batch: int, virtual_ranks: int, learners: list[int]
) -> None:
    for order in (SampleOrder(length, batch, 2, 1, virtual_ranks), SampleOrder(length, batch, 2, 1, grows=True)):
        cursor, step = DataCursor(), 0
        used: dict[int, Counter[int]] = defaultdict(Counter)
        while not order.finished(cursor):
            number = learners[step % len(learners)]
            assert order.drawn(cursor, number) == len(order.draw(cursor, number))
            for rank in range(number):
                parts = order.parts(cursor, rank, number)
                assert order.used(cursor, rank, number) == tuple(part for part, mine in parts.items() if mine)
                for indices in parts.values():
                    used[cursor.epoch].update(indices)
            cursor, step = order.after(cursor, number), step + 1
        assert used == {epoch: Counter(range(length)) for epoch in range(2)}


def test_the_order_never_changes_since_checkpoints_rely_on_it() -> None:
    order = SampleOrder(10, 10, 2, seed=3)
    assert [order.draw(DataCursor(epoch)) for epoch in range(2)] == [
        (3, 5, 7, 8, 9, 4, 2, 1, 6, 0),
        (8, 6, 4, 0, 7, 5, 9, 1, 2, 3),
    ]


class InMemory:
    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def shards(self) -> range:
        return range(len(self._lengths))

    def open(self, shard: int, offset: int) -> Iterator[tuple[int, int]]:
        for number in range(offset, self._lengths[shard]):
            yield shard, number


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(0, 3),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_each_sample_of_shards_is_used_once_whoever_reads_it_and_whatever_is_rolled_back(
    lengths: list[int], lanes: int, virtual_ranks: int, ahead: int, learners: list[int], committed: list[bool]
) -> None:
    data = InMemory(lengths)
    order = ShardOrder(len(lengths), min(lanes, len(lengths)), 6, 2, 3, virtual_ranks)
    readers = [ShardReader(order, data, list, ahead) for _ in range(4)]
    cursor, step = readers[0].first(), 0
    used: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    while not readers[0].finished(cursor):
        number = learners[step % len(learners)]
        batches, facts = [], []
        for rank in range(number):
            readers[rank].regroup(rank, number)
            for part in readers[rank].parts(cursor):
                batch, weight = readers[rank].get(cursor, part)
                batches += batch or []
                assert weight == len(batch or [])
            facts.append(readers[rank].facts())
        step += 1
        if committed[step % len(committed)] or not any(committed):
            used[cursor.epoch].update(batches)
            summed = [sum(each) for each in zip(*facts, strict=True)]
            assert readers[0].divisor(summed) == len(batches)
            following = readers[0].after(cursor, summed)
            assert readers[0].from_json(readers[0].to_json(following)) == following
            cursor = following
    for reader in readers:
        reader.close()
    once = Counter((shard, number) for shard, length in enumerate(lengths) for number in range(length))
    assert used == dict.fromkeys(range(2), once)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 5), st.data())
def test_two_learners_hold_each_parameter_after_any_change(
    sizes: list[int], before: int, after: int, data: st.DataObject
) -> None:
    everything = set(range(len(sizes)))
    owners = assign(sizes, [everything] * before)
    held = [keeps(owners, learner, before) for learner in range(before)] + [set() for _ in range(after)]
    lost = data.draw(st.integers(0, before - 1)) if before > 1 else None
    members = [learner for learner in range(len(held)) if learner != lost]
    holders = [held[learner] for learner in members]
    assert set().union(*holders) == everything
    owners = assign(sizes, holders)
    kept = [keeps(owners, number, len(members)) for number in range(len(members))]
    wanted = {number: kept[number] - holders[number] for number in range(len(members))}
    for (source, to), indices in transfers(sizes, holders, wanted).items():
        assert set(indices) <= holders[source]
        assert source != to
        wanted[to] -= set(indices)
    assert not any(wanted.values())
    copies = Counter(index for some in kept for index in some)
    assert set(copies.values()) == {min(2, len(members))}
    loads = [sum(sizes[index] for index, owner in enumerate(owners) if owner == each) for each in range(len(members))]
    assert max(loads) <= -(-sum(sizes) // len(members)) + max(sizes)
