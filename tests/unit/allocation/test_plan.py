from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.allocation import Capacity, GangRequest, Grant, Impossible, Node, Plan, Waiting, fits, plan_admissions
from updraft.allocation.packing import holds_one

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def request(
    job_id: str,
    minute: int = 0,
    learners: int = 1,
    cpus: float = 1,
    memory_mib: int = 0,
    gpus: int = 0,
    gpu_type: str | None = None,
) -> GangRequest:
    return GangRequest(job_id, learners, cpus, memory_mib, gpus, gpu_type, NOON + timedelta(minutes=minute))


def grants(*requests: GangRequest) -> list[Grant]:
    return [Grant(r, NOON) for r in requests]


TWO_CPUS = Capacity((Node("local", 2, 4096),))


def test_an_empty_queue_gives_an_empty_plan() -> None:
    assert plan_admissions([], [], TWO_CPUS) == Plan()


def test_five_gangs_of_two_on_two_cpus_run_one_after_the_other() -> None:
    queue = [request(f"job-{i}", i, learners=2) for i in range(5)]
    order: list[str] = []
    while queue:
        plan = plan_admissions(queue, [], TWO_CPUS)
        assert plan.granted == (queue[0].job_id,)
        order += plan.granted
        running, queue = grants(queue[0]), queue[1:]
        assert plan_admissions(queue, running, TWO_CPUS).granted == ()
    assert order == [f"job-{i}" for i in range(5)]


def test_waiting_jobs_are_told_their_place_their_need_and_whom_they_follow() -> None:
    plan = plan_admissions([request("b", 1, learners=2), request("c", 2, cpus=0.5)], grants(request("a", 0)), TWO_CPUS)
    assert plan == Plan(
        waiting=(
            Waiting("b", 1, "1st in the queue; needs 2 x 1 CPU; 1 of 2 CPUs free"),
            Waiting(
                "c", 2, "2nd in the queue; needs 1 x 0.5 CPUs; 1 of 2 CPUs free, 4 GiB of 4 GiB memory free; behind b"
            ),
        )
    )


def test_a_gang_larger_than_everything_fails_at_once_and_does_not_block_the_line() -> None:
    plan = plan_admissions([request("huge", 0, learners=3), request("small", 1)], [], TWO_CPUS)
    assert plan == Plan(
        granted=("small",),
        impossible=(
            Impossible(
                "huge",
                "needs 3 x 1 CPU, more than all nodes together can hold (local: 2 CPUs, 4 GiB); "
                "ask for at most 2 such, or for smaller ones",
            ),
        ),
    )


def test_an_accelerator_that_no_node_has_is_impossible_and_names_what_exists() -> None:
    capacity = Capacity((Node("n1", 8, 8192, 2, "a100"), Node("n2", 8, 8192, 2, "l4")))
    plan = plan_admissions([request("x", gpus=1, gpu_type="h100")], [], capacity)
    assert plan.impossible == (
        Impossible("x", "needs 1 x 1 CPU + 1 h100 GPU, but no node has h100; there is a100, l4: ask for one of these"),
    )
    plan = plan_admissions([request("x", gpus=1)], [], TWO_CPUS)
    assert plan.impossible == (Impossible("x", "needs 1 x 1 CPU + 1 GPU, but no node has a GPU; ask for 0 GPUs"),)


def test_a_lost_node_makes_jobs_wait_not_fail() -> None:
    capacity = Capacity((Node("n1", 8, 8192, ready=False),))
    plan = plan_admissions([request("x", cpus=4)], [], capacity)
    assert plan == Plan(waiting=(Waiting("x", 1, "1st in the queue; needs 1 x 4 CPUs; no node is ready"),))
    assert plan_admissions([request("x")], [], Capacity(())).waiting[0].job_id == "x"


def test_a_learner_is_never_split_over_nodes() -> None:
    capacity = Capacity((Node("n1", 2, 4096), Node("n2", 2, 4096)))
    plan = plan_admissions([request("x", cpus=3)], [], capacity)
    assert [i.job_id for i in plan.impossible] == ["x"]
    assert plan_admissions([request("x", cpus=1.5, learners=2)], [], capacity).granted == ("x",)


def test_cpu_work_leaves_accelerator_nodes_to_those_who_need_them() -> None:
    capacity = Capacity((Node("gpu", 2, 4096, 1, "a100"), Node("cpu", 2, 4096)))
    plan = plan_admissions(
        [request("cpu-job", 0, cpus=2), request("gpu-job", 1, cpus=2, gpus=1, gpu_type="a100")], [], capacity
    )
    assert plan.granted == ("cpu-job", "gpu-job")


def test_a_node_that_is_kept_for_gpus_is_no_room_for_others() -> None:
    capacity = Capacity((Node("gpu", 8, 8192, 2, "a100", gpus_only=True), Node("cpu", 2, 4096)))
    running = grants(request("a", 0, cpus=2), request("g", 0, cpus=1, gpus=1))
    queue = [request("b", 1), request("wide", 2, cpus=4), request("gpu-job", 3, cpus=4, gpus=1)]
    assert plan_admissions(queue, running, capacity) == Plan(
        granted=("gpu-job",),  # b can use no node that it takes
        waiting=(Waiting("b", 1, "1st in the queue; needs 1 x 1 CPU; 0 of 2 CPUs free"),),
        impossible=(
            Impossible(
                "wide",
                "needs 1 x 4 CPUs, more than all nodes together can hold (gpu: 8 CPUs, 8 GiB, 2 a100s, for jobs with "
                "GPUs only, cpu: 2 CPUs, 4 GiB); no node holds one: ask for smaller learners",
            ),
        ),
    )


def test_jobs_with_gpus_on_open_nodes_are_counted_for_those_without() -> None:
    closed, open_ = Node("closed", 4, 4096, 1, gpus_only=True), Node("open", 4, 4096, 1)
    running = grants(request("g", cpus=4, gpus=1), request("h", cpus=4, gpus=1))
    assert plan_admissions([request("c", 1)], running, Capacity((closed, open_))) == Plan(
        waiting=(Waiting("c", 1, "1st in the queue; needs 1 x 1 CPU; 0 of 4 CPUs free"),)
    )
    away = Capacity((closed, Node("away", 4, 4096, ready=False)))
    assert (
        plan_admissions([request("c", 1)], [], away)
        .waiting[0]
        .reason.endswith("no node is ready but for jobs with GPUs")
    )


def test_a_crowded_packing_that_greedy_orders_miss_is_found_by_the_search() -> None:
    # 7 MiB = 4 + 3 and 10 MiB = 4 + 5: the gang of two has to be split over the nodes.
    nodes = (Node("a", 10, 7), Node("b", 10, 10))
    gangs = [(2, 3, 4), (1, 1, 3), (1, 3, 5)]
    assert fits([request(f"j{i}", learners=n, cpus=c, memory_mib=m) for i, (n, c, m) in enumerate(gangs)], nodes)


nodes_strategy = st.lists(
    st.tuples(
        st.integers(1, 8),
        st.integers(256, 8192),
        st.integers(0, 4),
        st.sampled_from([None, "a100", "l4"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda rows: Capacity(
        tuple(
            Node(f"n{i}", cpus, memory, gpus, kind if gpus else None, ready or i == 0)
            for i, (cpus, memory, gpus, kind, ready) in enumerate(rows)
        )
    )
)
requests_strategy = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 4.0]),
        st.integers(0, 4096),
        st.integers(0, 2),
        st.sampled_from([None, "a100", "l4"]),
        st.integers(0, 5),
    ),
    max_size=8,
).map(
    lambda rows: [
        request(f"job-{i}", minute, learners, cpus, memory, gpus, kind if gpus else None)
        for i, (learners, cpus, memory, gpus, kind, minute) in enumerate(rows)
    ]
)


def in_order(queue: list[GangRequest]) -> list[GangRequest]:
    return sorted(queue, key=lambda r: (r.requested_at, r.job_id))


@given(requests_strategy, nodes_strategy)
@settings(max_examples=200, deadline=None)
def test_every_job_gets_one_answer_and_passes_none_that_could_use_its_nodes(
    queue: list[GangRequest], capacity: Capacity
) -> None:
    plan = plan_admissions(queue, [], capacity)
    waiting = [w.job_id for w in plan.waiting]
    impossible = [i.job_id for i in plan.impossible]
    assert sorted([*plan.granted, *waiting, *impossible]) == sorted(r.job_id for r in queue)
    in_turn = [r for r in in_order(queue) if r.job_id not in impossible]
    assert [r.job_id for r in in_turn if r.job_id in waiting] == waiting
    for number, passing in enumerate(in_turn):
        for passed in in_turn[:number] if passing.job_id in plan.granted else ():
            shared = any(holds_one(node, passing) and holds_one(node, passed) for node in capacity.nodes)
            assert passed.job_id in plan.granted or not shared
    assert [w.place for w in plan.waiting] == list(range(1, len(waiting) + 1))


@given(requests_strategy, nodes_strategy)
@settings(max_examples=200, deadline=None)
def test_what_is_granted_never_exceeds_what_is_ready(queue: list[GangRequest], capacity: Capacity) -> None:
    plan = plan_admissions(queue, [], capacity)
    granted = [r for r in queue if r.job_id in plan.granted]
    assert fits(granted, capacity.ready)
    for i in range(3):
        whole = sum(node.amounts[i] for node in capacity.ready)
        assert sum(r.amounts[i] * r.learners for r in granted) <= whole


@given(requests_strategy, nodes_strategy)
@settings(max_examples=100, deadline=None)
def test_nobody_starves(queue: list[GangRequest], capacity: Capacity) -> None:
    """When every running job ends in turn and all nodes are ready, every possible job starts, after those that came
    before it and can use the same nodes."""
    whole = Capacity(tuple(Node(n.name, n.cpus, n.memory_mib, n.gpus, n.gpu_type) for n in capacity.nodes))
    running: list[Grant] = []
    started: list[str] = []
    left = list(queue)
    while left:
        plan = plan_admissions(left, running, whole)
        done = {*plan.granted, *(i.job_id for i in plan.impossible)}
        started += plan.granted
        assert done or running, "nothing runs and nothing starts"
        running = [*running, *grants(*[r for r in left if r.job_id in plan.granted])][1:]
        left = [r for r in left if r.job_id not in done]
    in_turn = [r for r in in_order(queue) if r.job_id in started]
    for number, request_ in enumerate(in_turn):
        for later in in_turn[number + 1 :]:
            if any(holds_one(node, request_) and holds_one(node, later) for node in whole.nodes):
                assert started.index(request_.job_id) < started.index(later.job_id)
