"""How an attempt ended, and what a person reads about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from updraft.kubernetes.pod_status import pod_facts
from updraft.lifecycle import State
from updraft.lifecycle.membership import Membership
from updraft.manifest import Failure
from updraft.recovery.facts import PodFacts, stage_of
from updraft.recovery.matching import decisive
from updraft.recovery.outcome import Action, FailureClass, Outcome, judge, with_checkpoint
from updraft_learner.contract import STAGING_FAILED


def pod(
    learner: int = 1,
    *,
    phase: str = "Running",
    main: dict[str, Any] | None = None,
    sidecar: dict[str, Any] | None = None,
    gpus: int = 0,
    metadata: dict[str, Any] | None = None,
    **status: Any,
) -> PodFacts:
    limits = {"cpu": "1", "nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "1"}
    return pod_facts(
        {
            "metadata": {"name": f"p-{learner}", "labels": {"updraft.dev/learner": str(learner)}, **(metadata or {})},
            "spec": {"nodeName": f"node-{learner}", "containers": [{"name": "base", "resources": {"limits": limits}}]},
            "status": {
                "phase": phase,
                "initContainerStatuses": [{"name": "updraft-sidecar", "state": sidecar or {"running": {}}}],
                "containerStatuses": [{"name": "base", "state": main or {"running": {}}}],
                **status,
            },
        }
    )


def ended(code: int, reason: str = "Error", at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}


def verdict(
    *pods: PodFacts,
    marked: bool = True,
    tails: dict[int, list[str]] | None = None,
    learners: int | None = None,
    rules: tuple[Failure, ...] = (),
) -> Outcome:
    everyone = range(1, (learners or len(pods)) + 1)
    outcome = judge(
        pods,
        membership=Membership.first(len(everyone)),
        markers={n: {"t": 1} if marked else None for n in everyone},
        tails=tails or {},
        memory="2048 MiB",
        rules=rules,
    )
    assert outcome is not None
    return outcome


def test_done_needs_every_exit_code_and_every_completion_marker() -> None:
    good = [pod(1, phase="Succeeded", main=ended(0)), pod(2, phase="Succeeded", main=ended(0))]
    assert verdict(*good).cause is FailureClass.DONE
    assert verdict(*good, marked=False).cause is FailureClass.INFRASTRUCTURE


def test_the_programs_failure_shows_its_last_words() -> None:
    outcome = verdict(pod(main=ended(1), phase="Failed"), tails={1: ["epoch 1", "ValueError: no labels", ""]})
    assert outcome.cause is FailureClass.PROGRAM
    assert outcome.reason == "learner 1: the program exited with 1: epoch 1 | ValueError: no labels"


def test_a_kill_by_memory_says_what_to_raise() -> None:
    outcome = verdict(pod(main=ended(137, "OOMKilled"), phase="Failed"))
    assert outcome.cause is FailureClass.PROGRAM
    assert "2048 MiB" in outcome.reason
    assert "resources.memory" in outcome.reason


def test_a_signal_is_named() -> None:
    assert "139 (SIGSEGV)" in verdict(pod(main=ended(139))).reason


def test_the_learner_that_failed_is_named_not_the_peers_that_were_stopped() -> None:
    stopped = pod(1, main=ended(143, at="2026-01-01T00:00:01Z"))
    guilty = pod(2, main=ended(3, at="2026-01-01T00:00:02Z"))
    assert verdict(stopped, guilty).reason.startswith("learner 2: the program exited with 3")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (65, FailureClass.DATA),
        (64, FailureClass.CONFIGURATION),
        (74, FailureClass.INFRASTRUCTURE),
        (1, FailureClass.INFRASTRUCTURE),
    ],
)
def test_staging_fails_with_the_cause_that_its_exit_code_names(code: int, cause: FailureClass) -> None:
    outcome = verdict(pod(main=ended(code)), tails={1: [f"{STAGING_FAILED}the tree is gone"]})
    assert (outcome.cause, outcome.reason) == (cause, "learner 1: staging failed: the tree is gone")


def test_staging_is_told_from_the_programs_own_end_by_its_first_line() -> None:
    said = [f"{STAGING_FAILED}or so I say", "ValueError"]
    assert verdict(pod(main=ended(1)), tails={1: ["epoch 1", *said]}).label == "program.exit"
    silent = {"terminated": {"exitCode": 65, "message": f"{STAGING_FAILED}no such tree\n"}}  # its log was not read
    assert verdict(pod(main=silent)).label == "stage.data"


def test_an_evicted_pod_is_infrastructure_whatever_its_exit_code() -> None:
    outcome = verdict(pod(phase="Failed", main=ended(137), reason="Evicted", message="low on memory"))
    assert (outcome.cause, outcome.reason) == (FailureClass.INFRASTRUCTURE, "learner 1: Evicted: low on memory")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 2000"),
        ("NodeAffinity", "Predicate NodeAffinity failed"),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
    ],
)
@pytest.mark.parametrize("states", [{"containerStatuses": None, "initContainerStatuses": None}, {}])
def test_a_pod_that_its_node_refuses_is_infrastructure_in_the_nodes_words(
    reason: str, message: str, states: dict[str, Any]
) -> None:
    waiting = {"waiting": {"reason": "PodInitializing"}}
    refused = pod(2, phase="Failed", sidecar=waiting, main=waiting, reason=reason, message=message, **states)
    outcome = verdict(pod(1), refused, marked=False)
    assert (outcome.cause, outcome.reason) == (FailureClass.INFRASTRUCTURE, f"learner 2: {reason}: {message}")


def test_a_pod_that_failed_without_a_word_is_infrastructure_even_while_its_peers_live() -> None:
    silent = pod(2, phase="Failed", containerStatuses=None, initContainerStatuses=None)
    outcome = verdict(pod(1), silent, marked=False)
    assert (outcome.cause, outcome.reason) == (
        FailureClass.INFRASTRUCTURE,
        "learner 2: its pod failed, and the node does not say why",
    )


def test_a_pod_that_failed_in_staging_keeps_the_cause_of_its_exit_code() -> None:
    outcome = verdict(pod(phase="Failed", main=ended(65)), tails={1: [f"{STAGING_FAILED}gone"]})
    assert outcome.cause is FailureClass.DATA


def test_an_image_that_cannot_be_pulled_is_a_configuration_error_with_the_nodes_message() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "unknown image x; known: y"}}
    outcome = verdict(pod(phase="Pending", main=waiting))
    assert outcome.cause is FailureClass.CONFIGURATION
    assert "unknown image x" in outcome.reason


def test_a_pod_that_is_gone_without_a_marker_is_infrastructure() -> None:
    outcome = judge([], membership=Membership.first(1), markers={1: None}, tails={}, memory="1 MiB")
    assert outcome is not None
    assert outcome.cause is FailureClass.INFRASTRUCTURE


def test_a_pod_that_is_gone_is_no_success_although_it_left_a_marker() -> None:
    outcome = judge([], membership=Membership.first(1), markers={1: {"t": 1}}, tails={}, memory="1 MiB")
    assert outcome is not None
    assert (outcome.cause, outcome.reason) == (
        FailureClass.INFRASTRUCTURE,
        "learner 1: its pod is gone, and how its program ended was not seen",
    )


def test_there_is_no_outcome_while_all_is_well_and_a_pod_lives() -> None:
    pods = [pod(1), pod(2, phase="Succeeded", main=ended(0))]
    assert judge(pods, membership=Membership.first(2), markers={1: None, 2: {"t": 1}}, tails={}, memory="1 MiB") is None


def test_the_state_shown_is_the_least_advanced_learners() -> None:
    waiting = pod(2, phase="Pending", sidecar={"waiting": {}}, main={"waiting": {}})
    staging = pod(2, phase="Pending", main={"waiting": {}})
    behind_the_gate = pod(2, containerStatuses=[{"name": "base", "state": {"running": {}}, "started": False}])
    running, done = pod(1), pod(2, main=ended(0))
    assert stage_of([running], Membership.first(2))[0] is State.DEPLOYING
    assert stage_of([running, waiting], Membership.first(2))[0] is State.DEPLOYING
    assert stage_of([running, staging], Membership.first(2))[0] is State.DOWNLOADING
    assert stage_of([running, behind_the_gate], Membership.first(2)) == (
        State.DOWNLOADING,
        "1 of 2 learners stage code and data",
    )
    assert stage_of([running, done], Membership.first(2))[0] is State.PROCESSING
    assert stage_of([pod(1, main=ended(0))], Membership.first(1))[0] is State.STORING


def test_a_pod_that_finds_no_room_shows_the_schedulers_words() -> None:
    unscheduled = pod(
        phase="Pending",
        sidecar={"waiting": {}},
        main={"waiting": {}},
        conditions=[{"type": "PodScheduled", "status": "False", "message": "1 Insufficient cpu."}],
    )
    assert stage_of([unscheduled], Membership.first(1)) == (State.DEPLOYING, "learner 1: 1 Insufficient cpu.")


# --- label, action, node -------------------------------------------------------------------------------------------


def told(outcome: Outcome) -> tuple[str, FailureClass, Action, str | None]:
    return outcome.label, outcome.cause, outcome.action, outcome.node


def disruption(reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]}


ELSEWHERE = (FailureClass.INFRASTRUCTURE, Action.ELSEWHERE, "node-1")


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (pod(phase="Failed", main=ended(137), reason="Evicted", message="low"), ("node.evicted", *ELSEWHERE)),
        (pod(phase="Failed", main=ended(143), reason="NodeLost"), ("node.lost", *ELSEWHERE)),
        (pod(phase="Failed", main=ended(143), reason="Terminated"), ("node.shutdown", *ELSEWHERE)),
        (pod(phase="Failed", main=ended(137), reason="Preempting"), ("node.preempted", *ELSEWHERE)),
        (pod(phase="Failed", containerStatuses=None, reason="OutOfnvidia.com/gpu"), ("node.full", *ELSEWHERE)),
        (
            pod(
                phase="Failed",
                containerStatuses=None,
                reason="UnexpectedAdmissionError",
                message="Allocate failed due to no healthy devices present; cannot allocate unhealthy devices",
            ),
            ("gpu.refused", *ELSEWHERE),
        ),
        (pod(phase="Failed", containerStatuses=None, reason="UnexpectedAdmissionError"), ("node.refused", *ELSEWHERE)),
        (pod(phase="Failed", containerStatuses=None), ("pod.failed", *ELSEWHERE)),
        (
            pod(phase="Failed", main=ended(143), **disruption("PreemptionByScheduler", "preempted by pod x")),
            ("pod.preempted", FailureClass.PREEMPTED, Action.RELAUNCH, "node-1"),
        ),
        (pod(phase="Failed", main=ended(1), **disruption("EvictionByEvictionAPI")), ("node.drained", *ELSEWHERE)),
        (pod(phase="Failed", main=ended(137), **disruption("DeletionByPodGC")), ("node.removed", *ELSEWHERE)),
        (pod(phase="Failed", main=ended(137), **disruption("ScaleDown")), ("node.disrupted", *ELSEWHERE)),
        (
            pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, **disruption("DeletionByTaintManager")),
            ("node.lost", *ELSEWHERE),
        ),
        (
            pod(phase="Failed", main=ended(75), **disruption("EvictionByEvictionAPI")),
            ("job.preempted", FailureClass.PREEMPTED, Action.RELAUNCH, "node-1"),
        ),
        (
            pod(main=ended(128, "StartError"), phase="Failed"),
            ("container.start", FailureClass.CONFIGURATION, Action.STOP, "node-1"),
        ),
    ],
)  # fmt: skip
def test_what_happened_to_a_pod_names_its_row(observed: PodFacts, expected: tuple[Any, ...]) -> None:
    assert told(verdict(observed)) == expected


@pytest.mark.parametrize(
    "message",
    [  # as pkg/kubelet/eviction/helpers.go writes them
        'Usage of EmptyDir volume "job" exceeds the limit "20Gi". ',
        "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi. ",
        'Container base exceeded its local ephemeral storage limit "20Gi". ',
    ],
)
@pytest.mark.parametrize("main", [ended(137), ended(143), None], ids=["killed", "stopped", "unseen"])
def test_a_learner_over_its_disk_is_told_the_limit_and_the_field(message: str, main: dict[str, Any] | None) -> None:
    program = {"containerStatuses": None} if main is None else {"main": main}
    outcome = verdict(pod(phase="Failed", reason="Evicted", message=message, **program))
    assert told(outcome) == ("pod.disk_limit", FailureClass.PROGRAM, Action.RELAUNCH, "node-1")
    assert outcome.reason == (
        f"learner 1: Evicted: {message.strip()} "
        "(the learner wrote more to its disk than its limit: raise resources.disk, or keep fewer files)"
    )


@pytest.mark.parametrize(
    "message",
    [
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi. Container base "
        "was using 5Gi, request is 0, has larger consumption of ephemeral-storage. ",
        "The node had condition: [DiskPressure]. ",
    ],
)
def test_a_node_without_disk_is_no_fault_of_the_learner(message: str) -> None:
    outcome = verdict(pod(phase="Failed", main=ended(137), reason="Evicted", message=message))
    assert told(outcome) == ("node.evicted", *ELSEWHERE)


def test_a_pod_is_lost_while_the_cluster_removes_it_and_nobody_sees_its_end() -> None:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert pod(metadata=gone, **disruption("DeletionByTaintManager")).lost
    assert pod(metadata=gone).lost  # a person did it, and the node's runtime has lost the program's end
    assert not pod(phase="Failed", metadata=gone).lost
    assert not pod(**disruption("DeletionByTaintManager")).lost
    assert not pod(metadata=gone, main=ended(143), **disruption("DeletionByTaintManager")).lost


def test_a_pod_that_is_asked_to_leave_and_goes_on_has_not_failed() -> None:
    leaving = pod(1, **disruption("EvictionByEvictionAPI"))
    assert judge([leaving], membership=Membership.first(1), markers={1: None}, tails={}, memory="1 MiB") is None
    done = pod(1, phase="Succeeded", main=ended(0), **disruption("EvictionByEvictionAPI"))
    assert verdict(done).ok


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ('failed to do request: Head "https://r/v2/": net/http: TLS handshake timeout', "image.unreachable"),
        ("failed to authorize: unexpected status: 504 Gateway Time-out", "image.unreachable"),
        ("dial tcp 10.0.0.1:443: connect: connection refused", "image.unreachable"),
        ("dial tcp: lookup r.example on 10.0.0.10:53: no such host", "image.registry_unknown"),
        ("toomanyrequests: You have reached your pull rate limit", "image.unreachable"),
        ("failed to extract layer: write /x: no space left on device", "node.disk_full"),
        ('failed to resolve reference "r/x:1": r/x:1: not found', "image.missing"),
        ("pull access denied, repository does not exist or may require authorization", "image.missing"),
        ('Back-off pulling image "r/x:1": ErrImagePull: rpc error: code = NotFound', "image.missing"),
        ('Back-off pulling image "r/x:1": ErrImagePull: dial tcp: i/o timeout', "image.unreachable"),
        ('Back-off pulling image "registry:5000/x:1"', "image.unexplained"),
    ],
)  # fmt: skip
def test_an_image_that_is_not_there_is_told_from_a_registry_that_is_not(message: str, label: str) -> None:
    reason = "ImagePullBackOff" if message.startswith("Back-off") else "ErrImagePull"
    outcome = verdict(pod(phase="Pending", main={"waiting": {"reason": reason, "message": message}}))
    cause = FailureClass.CONFIGURATION if label == "image.missing" else FailureClass.INFRASTRUCTURE
    assert (outcome.label, outcome.cause) == (label, cause)
    assert outcome.reason == f"learner 1 cannot start: {reason}: {message}"


@pytest.mark.parametrize(
    ("reason", "message", "label"),
    [
        ("CreateContainerConfigError", 'secret "x" not found', "container.config"),
        ("CreateContainerError", "context deadline exceeded", "container.slow"),
        ("InvalidImageName", "couldn't parse image reference", "image.missing"),
    ],
)
def test_a_container_that_cannot_be_made(reason: str, message: str, label: str) -> None:
    outcome = verdict(pod(phase="Pending", main={"waiting": {"reason": reason, "message": message}}))
    assert outcome.label == label


@pytest.mark.parametrize(
    ("code", "said", "label", "action"),
    [
        (64, "", "stage.configuration", Action.STOP),
        (65, "", "stage.data", Action.STOP),
        (66, "", "checkpoint.damaged", Action.OLDER_CHECKPOINT),
        (74, "the store answers 503", "store.unreachable", Action.RELAUNCH),
        (74, "no space left on the pod's disk while writing x", "node.disk_full", Action.ELSEWHERE),
        (1, "", "stage.failed", Action.RELAUNCH),
    ],
)
def test_staging_names_its_row(code: int, said: str, label: str, action: Action) -> None:
    outcome = verdict(pod(main=ended(code)), tails={1: [f"{STAGING_FAILED}{said}"]})
    assert (outcome.label, outcome.action) == (label, action)


# --- which learner counts ------------------------------------------------------------------------------------------

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:5"


def test_a_peers_lost_connection_does_not_hide_the_first_cause_although_it_ended_first() -> None:
    peer = pod(1, main=ended(1, at="2026-01-01T00:00:01Z"), phase="Failed")
    guilty = pod(2, main=ended(3, at="2026-01-01T00:00:02Z"), phase="Failed")
    outcome = verdict(peer, guilty, tails={1: ["Traceback (most recent call last):", "  x", GLOO], 2: ["no labels"]})
    assert told(outcome) == ("program.exit", FailureClass.PROGRAM, Action.RELAUNCH, "node-2")
    assert [f.label for f in outcome.evidence.failures] == ["program.exit", "network.gloo"]


def test_lost_connections_alone_are_infrastructure() -> None:
    tails = {n: ["Traceback (most recent call last):", GLOO] for n in (1, 2)}
    both = [pod(n, main=ended(1), phase="Failed") for n in (2, 1)]  # as they were seen to end
    outcome = verdict(*both, tails=tails)
    assert told(outcome) == ("network.gloo", FailureClass.INFRASTRUCTURE, Action.RELAUNCH, "node-2")
    assert outcome.reason == (f"learner 2: the program exited with 1: {GLOO} (gloo lost a peer or the network to it)")


def test_a_pod_that_is_gone_explains_its_peers_failure() -> None:
    left = pod(2, main=ended(1), phase="Failed")
    outcome = verdict(left, learners=2, marked=False, tails={2: ["ValueError: peer 1 does not answer"]})
    assert told(outcome) == ("pod.gone", FailureClass.INFRASTRUCTURE, Action.RELAUNCH, None)


def test_a_pod_that_is_gone_with_a_marker_does_not_hide_its_peers_failure() -> None:
    outcome = verdict(pod(2, main=ended(1), phase="Failed"), learners=2, tails={2: ["ValueError: x"]})
    assert outcome.label == "program.exit"


def test_memory_explains_more_than_a_kill_and_a_kill_more_than_a_lost_connection() -> None:
    killed = pod(1, main=ended(137, at="2026-01-01T00:00:01Z"), phase="Failed")
    hungry = pod(2, main=ended(137, "OOMKilled", at="2026-01-01T00:00:09Z"), phase="Failed")
    cut_off = pod(3, main=ended(1, at="2026-01-01T00:00:00Z"), phase="Failed")
    tails = {3: ["Traceback (most recent call last):", GLOO]}
    assert verdict(killed, hungry, cut_off, tails=tails).label == "program.out_of_memory"
    killed_only = judge(
        [killed, replace_learner(cut_off, 2)],
        membership=Membership.first(2),
        markers={},
        tails={2: tails[3]},
        memory="1",
    )
    assert killed_only is not None
    assert (killed_only.label, killed_only.cause) == ("container.killed", FailureClass.INFRASTRUCTURE)


def replace_learner(facts: PodFacts, learner: int) -> PodFacts:
    return replace(facts, learner=learner)


# --- what the log says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", "program.cuda_oom"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "gpu.ecc"),
        ("NVRM: Xid (PCI:0000:c1:00): 79, pid=0, GPU has fallen off the bus.", "gpu.xid"),
        ("NVRM: Xid (PCI:0000:03:00): 31, pid=1234, name=python3, MMU Fault", "program.exit"),
        ("RuntimeError: CUDA error: device-side assert triggered", "program.cuda"),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "gpu.lost"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1287, remote error", "network.nccl"),
        ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "program.nccl_usage"),
        ("[E1121 ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: Work", "network.timeout"),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms", "network.rendezvous"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
         "workers are out of shared memory.", "program.shared_memory"),
        ("RuntimeError: unable to write to file </torch_1_2>: No space left on device (28)", "program.shared_memory"),
        ("botocore.exceptions.ClientError: An error occurred (SignatureDoesNotMatch)", "credentials.refused"),
        ("KeyError: 'label'", "program.exit"),
    ],
)  # fmt: skip
def test_the_last_lines_name_their_row(line: str, label: str) -> None:
    outcome = verdict(pod(main=ended(1), phase="Failed", gpus=1), tails={1: ["epoch 3", line]})
    assert outcome.label == label
    assert line[:60] in outcome.reason


@pytest.mark.parametrize(("gpus", "label"), [(0, "program.no_gpu"), (1, "gpu.driver")])
def test_a_missing_gpu_is_the_jobs_fault_only_if_it_asked_for_none(gpus: int, label: str) -> None:
    tails = {1: ["RuntimeError: No CUDA GPUs are available"]}
    assert verdict(pod(main=ended(1), phase="Failed", gpus=gpus), tails=tails).label == label


def test_a_connection_that_the_program_got_over_explains_nothing() -> None:
    tail = [
        "WARNING: ConnectionResetError: [Errno 104] Connection reset by peer, trying again",
        "epoch 1",
        "Traceback (most recent call last):",
        '  File "/updraft/code/train.py", line 3, in <module>',
        "    raise ValueError('CUDA out of memory')  # a source line is no evidence",
        "ValueError: no labels",
        "[W1121 ProcessGroupGloo.cpp:1] Warning: Connection closed by peer",
    ]
    assert decisive(tail) == ("Traceback (most recent call last):", "ValueError: no labels")
    assert verdict(pod(main=ended(1), phase="Failed"), tails={1: tail}).label == "program.exit"


def test_a_chain_of_tracebacks_is_read_whole_and_an_earlier_one_not_at_all() -> None:
    head = "Traceback (most recent call last):"
    chain = "The above exception was the direct cause of the following exception:"
    tail = [
        head,
        "  a",
        "MemoryError",
        "going on",
        head,
        "  b",
        "OSError: b",
        "",
        chain,
        "",
        head,
        "  c",
        "RuntimeError: c",
    ]
    assert decisive(tail) == (head, "OSError: b", chain, head, "RuntimeError: c")


def test_the_prefix_of_a_rank_is_not_in_the_way() -> None:
    tail = ["[rank1]: Traceback (most recent call last):", "[rank1]:   File x", f"[rank1]: {GLOO}"]
    assert decisive(tail) == ("Traceback (most recent call last):", GLOO)


def test_a_launcher_that_reports_its_worker_does_not_hide_the_workers_words() -> None:
    head = "Traceback (most recent call last):"
    tail = [
        head,
        "  x",
        "MemoryError",
        head,
        "  y",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    ]
    assert verdict(pod(main=ended(1), phase="Failed"), tails={1: tail}).label == "program.memory"


# --- the manifest's own rows ---------------------------------------------------------------------------------------


def row(**fields: Any) -> Failure:
    whole = {"cause": "infrastructure", "action": "relaunch", "text": "The licenses are in use.", **fields}
    return Failure.model_validate(whole)


FAILED = pod(main=ended(42), phase="Failed")


def test_a_row_of_the_manifest_comes_before_ours() -> None:
    rules = (row(exit_code=41), row(exit_code=42, action="relaunch_elsewhere"), row(contains="MemoryError"))
    outcome = verdict(FAILED, tails={1: ["MemoryError"]}, rules=rules)
    assert told(outcome) == ("failures.2", *ELSEWHERE)
    assert outcome.reason == "learner 1: The licenses are in use. (the program exited with 42: MemoryError)"


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        (row(contains="loss is nan"), True),
        (row(contains="loss is NaN"), False),
        (row(contains="loss.*nan"), False),
        (row(exit_code=42, contains="loss is nan"), True),
        (row(exit_code=43, contains="loss is nan"), False),
    ],
)
def test_text_is_text_and_both_conditions_must_hold(rule: Failure, met: bool) -> None:
    outcome = verdict(FAILED, tails={1: ["step 3: loss is nan", "bye"]}, rules=(rule,))
    assert (outcome.label == "failures.1") is met


def test_a_row_of_the_manifest_says_nothing_about_nodes_or_about_success() -> None:
    everything = (row(exit_code=137), row(contains="epoch"))
    evicted = pod(phase="Failed", main=ended(137), reason="Evicted")
    assert verdict(evicted, tails={1: ["epoch"]}, rules=everything).label == "node.evicted"
    assert verdict(pod(phase="Succeeded", main=ended(0)), tails={1: ["epoch"]}, rules=everything).ok


@pytest.mark.parametrize(
    ("ran_seconds", "cause"),
    [(0, FailureClass.DONE), (65, FailureClass.DONE), (179, FailureClass.DONE), (180, FailureClass.PROGRAM)],
)
def test_a_program_fails_for_want_of_a_checkpoint_only_if_one_was_due(ran_seconds: float, cause: FailureClass) -> None:
    done = verdict(pod(phase="Succeeded", main=ended(0)))
    assert with_checkpoint(done, None, ran_seconds, 60.0).cause is cause
    assert with_checkpoint(done, "step-7", ran_seconds, 60.0).evidence.final_checkpoint == "step-7"


def test_a_missing_checkpoint_is_told_with_what_to_do() -> None:
    outcome = with_checkpoint(verdict(pod(phase="Succeeded", main=ended(0))), None, 3600.0, 60.0)
    assert (outcome.label, outcome.action) == ("program.no_checkpoint", Action.STOP)
    assert outcome.reason == (
        "the manifest asks for a checkpoint every 60 s, but the program wrote none in 3600 s: call "
        "updraft_learner.Checkpointer, or write a folder with a COMPLETE file below $CHECKPOINT_DIR, or remove "
        "`checkpoints` from the manifest"
    )
