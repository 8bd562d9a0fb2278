"""List the catalogue's rows about pods, nodes, images, staging and the gang. The first row that fits is taken.

The reasons and messages are those of Kubernetes: the kubelet (pkg/kubelet/lifecycle/predicate.go, pkg/kubelet/images),
the node's eviction and shutdown managers, and the documented reasons of the condition DisruptionTarget.
"""

from __future__ import annotations

from updraft.recovery.failure_class import Action, FailureClass
from updraft.recovery.failure_rule import FailureRule, Precedence, Where
from updraft_learner.contract import ExitCode

LOCAL = "tests/conformance/test_failures_for_real.py"
NODES = "tests/cluster/test_cluster_nodes.py"
JOBS = "tests/cluster/test_cluster_jobs.py"
API_FAULTS = "tests/cluster/test_cluster_api_faults.py"
KUBELET = "kubernetes/kubernetes pkg/kubelet"
DISRUPTIONS = "kubernetes.io: Disruptions, pod disruption conditions"

# The registry does not answer, or not now. If it answers (not found, denied), a person has to fix the cause.
UNREACHABLE = (
    "timeout", "timed out", "deadline exceeded", "connection refused", "connection reset", "no route to host",
    "network is unreachable", "tls handshake", "x509:", "tls: ", "temporary failure in name resolution",
    "server misbehaving", "unexpected eof", "context canceled", "too many requests", "toomanyrequests",
    "registryunavailable", "500 internal server error", "502 bad gateway", "503 service unavailable", "504 gateway",
    "registry is unavailable",
)  # fmt: skip
IMAGE_WAITS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")

POD_ROWS = (
    FailureRule("pod.disk_limit", Where.POD, FailureClass.PROGRAM, Action.RELAUNCH,
        "The learner wrote more to its disk than its limit: raise resources.disk, or keep fewer files.",
        "test", f"{JOBS}::test_who_writes_more_than_its_disk_is_told_the_limit_and_the_field", reasons=("Evicted",),
        says=("exceeds the total limit of containers", "exceeds the limit", "exceeded its local ephemeral storage"),
        told=True),
    FailureRule("node.evicted", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node ran low on memory, disk or processes and removed the pod. Others on the node may use too much.",
        "test", f"{LOCAL}::test_an_evicted_learner_is_the_nodes_fault", reasons=("Evicted",)),
    FailureRule("node.lost", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node does not answer any more. Its learners may still run there; nothing of what they do counts.",
        "recording", f"{KUBELET}/util/node", reasons=("NodeLost",)),
    FailureRule("node.shutdown", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node was shut down or taken back by its provider.",
        "recording", f"{KUBELET}/nodeshutdown", reasons=("Terminated", "Shutdown", "NodeShutdown")),
    FailureRule("node.preempted", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node removed the pod to make room for a critical pod of the cluster.",
        "recording", f"{KUBELET}/preemption", reasons=("Preempting",)),
    FailureRule("pod.deadline", Where.POD, FailureClass.DEADLINE, Action.STOP,
        "The pod ran past its activeDeadlineSeconds; raise budget.max_runtime.",
        "test", f"{LOCAL}::test_a_pod_past_its_deadline_is_told_so", reasons=("DeadlineExceeded",)),
)  # fmt: skip

# The node refused the pod, or lost it while its program had not ended: no program is to blame.
REFUSED_ROWS = (
    FailureRule("node.full", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node had less room than the scheduler believed.",
        "recording", f"{KUBELET}/lifecycle/predicate.go", reasons=("OutOf*",)),
    FailureRule("gpu.refused", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node could not give the pod its devices; its GPUs may be unhealthy.",
        "recording", f"{KUBELET}/cm/devicemanager", reasons=("UnexpectedAdmissionError",),
        says=("devices", "allocate failed")),
    FailureRule("node.refused", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node did not accept the pod.",
        "recording", f"{KUBELET}/lifecycle/predicate.go",
        reasons=("NodeAffinity", "NodePorts", "NodeUnschedulable", "TopologyAffinityError", "ResourceAllocationError",
                 "InvalidNodeInfo", "PodOS*", "SupplementalGroups*", "Unexpected*", "Unknown*")),
    FailureRule("pod.failed", Where.POD, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The pod failed, and no program of it did. Look at the events of the pod and at its node.",
        "recording", "containers that never started, after a node's restart"),
)  # fmt: skip

CONDITION_ROWS = (
    FailureRule("pod.preempted", Where.CONDITION, FailureClass.PREEMPTED, Action.RELAUNCH,
        "The cluster's scheduler gave the place to a pod of higher priority.",
        "test", f"{NODES}::test_a_pod_of_higher_priority_takes_the_place_and_that_costs_nothing",
        reasons=("PreemptionByScheduler",), rank=Precedence.GONE),
    FailureRule("node.lost", Where.CONDITION, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node does not answer any more, or is tainted so that the pod may not stay. Its learners may still run "
        "there; nothing of what they do counts.",
        "test", f"{NODES}::test_what_lives_on_on_a_lost_node_has_no_effect",
        reasons=("DeletionByTaintManager",), rank=Precedence.GONE),
    FailureRule("node.drained", Where.CONDITION, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The pod was asked to leave its node through the eviction API, as `kubectl drain` does.",
        "test", "tests/cluster/test_cluster_losses.py::test_a_node_that_is_drained_gives_its_jobs_to_the_other",
        reasons=("EvictionByEvictionAPI",), rank=Precedence.GONE),
    FailureRule("node.removed", Where.CONDITION, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node does not exist any more, and its pods were collected.",
        "recording", DISRUPTIONS, reasons=("DeletionByPodGC",), rank=Precedence.GONE),
    FailureRule("node.disrupted", Where.CONDITION, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The cluster removed the pod from its node.",
        "recording", DISRUPTIONS, reasons=("*",), rank=Precedence.GONE),
)  # fmt: skip

WAITING_ROWS = (
    FailureRule("image.unreachable", Where.WAITING, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The registry did not answer, or not in time, when the node asked for the image.",
        "test", f"{LOCAL}::test_a_registry_that_does_not_answer_is_not_the_jobs_fault",
        reasons=IMAGE_WAITS, says=UNREACHABLE),
    FailureRule("image.registry_unknown", Where.WAITING, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The image's registry was not found by its name: check that; a name server that fails says the same.",
        "test",
        "tests/cluster/test_cluster_jobs.py::test_a_registry_that_is_not_found_is_tried_again_within_the_budget",
        reasons=IMAGE_WAITS, says=("no such host",)),
    FailureRule("node.disk_full", Where.WAITING, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node's disk is full: the image has no room.",
        "recording", f"{KUBELET}/images", reasons=IMAGE_WAITS, says=("no space left on device",)),
    FailureRule("image.unexplained", Where.WAITING, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node waits before it asks for the image again, and does not say why it did not get it (a kubelet before "
        "1.32): check the image's name.",
        "recording", "kubernetes/kubernetes#127918", reasons=("ImagePullBackOff",), unless=(": ",)),
    FailureRule("image.missing", Where.WAITING, FailureClass.CONFIGURATION, Action.STOP,
        "The image cannot be had: check its name and tag, and whether the cluster may read it.",
        "test", f"{LOCAL}::test_an_image_that_does_not_exist_is_a_configuration_error",
        reasons=(*IMAGE_WAITS, "InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed")),
    FailureRule("container.slow", Where.WAITING, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node could not create the container in time.",
        "recording", f"{KUBELET}/kuberuntime",
        reasons=("CreateContainerError", "RunContainerError", "CreatePodSandboxError"), says=UNREACHABLE),
    FailureRule("container.config", Where.WAITING, FailureClass.CONFIGURATION, Action.STOP,
        "The container cannot be made as the pod says; mostly a secret or a key of one that does not exist.",
        "test", f"{LOCAL}::test_a_container_that_cannot_be_configured_is_a_configuration_error",
        reasons=("CreateContainerConfigError", "CreateContainerError", "RunContainerError")),
)  # fmt: skip

STAGE_ROWS = (
    FailureRule("stage.configuration", Where.STAGE, FailureClass.CONFIGURATION, Action.STOP,
        "The pod was told something impossible before its program began.",
        "test", f"{LOCAL}::test_staging_ends_with_the_class_of_its_exit_code", codes=(int(ExitCode.CONFIGURATION),)),
    FailureRule("stage.data", Where.STAGE, FailureClass.DATA, Action.STOP,
        "Staged code or data is missing or does not match its digest; submit the job again.",
        "test", f"{LOCAL}::test_staging_ends_with_the_class_of_its_exit_code", codes=(int(ExitCode.DATA),)),
    FailureRule("checkpoint.damaged", Where.STAGE, FailureClass.INFRASTRUCTURE, Action.OLDER_CHECKPOINT,
        "The checkpoint to go on from is damaged or not whole. It is quarantined, and an older one is used.",
        "test", f"{LOCAL}::test_staging_ends_with_the_class_of_its_exit_code", codes=(int(ExitCode.CHECKPOINT),)),
    FailureRule("node.disk_full", Where.STAGE, FailureClass.INFRASTRUCTURE, Action.ELSEWHERE,
        "The node's disk is full. If it is so everywhere, the data set is larger than the nodes' disks.",
        "test", f"{LOCAL}::test_a_full_disk_in_staging_is_the_nodes", codes=(int(ExitCode.STORAGE),),
        says=("no space left",)),
    FailureRule("store.unreachable", Where.STAGE, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "The object store could not be reached, or refused.",
        "test", f"{LOCAL}::test_staging_ends_with_the_class_of_its_exit_code", codes=(int(ExitCode.STORAGE),)),
    FailureRule("stage.failed", Where.STAGE, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "Staging, which is the platform's, ended with an error of its own.",
        "test", f"{LOCAL}::test_staging_ends_with_the_class_of_its_exit_code"),
)  # fmt: skip

GANG_ROWS = (
    FailureRule("pod.deleted", Where.GANG, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "A user or a controller deleted the pod, and the program ended, in whatever way, as it had to leave; or "
        "nothing tells how, for longer than its grace period.",
        "test", f"{LOCAL}::test_what_a_program_says_as_its_pod_is_deleted_does_not_count", rank=Precedence.GONE),
    FailureRule("pod.gone", Where.GANG, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "The pod does not exist any more and left no result: a user or a controller deleted it.",
        "test", f"{LOCAL}::test_a_pod_that_somebody_deletes_is_gone", rank=Precedence.GONE),
    FailureRule("pod.unseen", Where.GANG, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "The pod stored its results and was gone before it was seen how its program ended.",
        "test", f"{LOCAL}::test_a_pod_that_somebody_deletes_is_gone", rank=Precedence.STOPPED),
    FailureRule("pod.never_ran", Where.GANG, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "The pod ended before its program ran.",
        "recording", "containers that never started, after a node's restart", rank=Precedence.STOPPED),
    FailureRule("results.not_stored", Where.GANG, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "The program ended with 0, but not all of its results reached the store.",
        "test", f"{LOCAL}::test_done_needs_a_marker_of_everything_stored", rank=Precedence.STOPPED),
    FailureRule("done", Where.GANG, FailureClass.DONE, Action.NONE,
        "All learners ended with 0 and everything is stored.",
        "test", f"{LOCAL}::test_done_needs_a_marker_of_everything_stored", rank=Precedence.STOPPED),
)  # fmt: skip

CONTROLLER_ROWS = (
    FailureRule("progress.stalled", Where.CONTROLLER, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "No new step for longer than budget.no_progress allows; the stacks of the stuck program are in its log.",
        "recording", "updraft.recovery.progress"),
    FailureRule("program.no_checkpoint", Where.CONTROLLER, FailureClass.PROGRAM, Action.STOP,
        "The manifest asks for checkpoints, and the program wrote none, though it ran for long enough (twice "
        "`checkpoints.every` and a minute).",
        "test", "tests/system/test_bad_input.py::test_a_program_that_never_writes_a_checkpoint_is_told_how"),
    FailureRule("pod.not_started", Where.CONTROLLER, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "The learners had their place and did not start in the time that the platform allows (settings: "
        "deploy_timeout_seconds): their node is too slow, or its network or images are.",
        "recording", "updraft.controller"),
    FailureRule("pod.no_room", Where.CONTROLLER, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "The job has its place in the platform's books, and the cluster has no room for it: a node has gone, or others "
        "than this platform use it. Costs nothing if the job has run before, if other jobs hold room, or if a pool can "
        "get a node for it: it gives its place back, waits in the queue, and is tried again until there is room.",
        "test", "tests/unit/controller/test_no_room.py::test_a_job_that_has_run_waits_for_room_as_long_as_it_takes"),
    FailureRule("secret.gone", Where.CONTROLLER, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "A user deleted the secret of the launch before its learners began; the next launch has one of its own.",
        "test", f"{API_FAULTS}::test_a_launch_whose_secret_is_deleted_is_made_again"),
    FailureRule("quota.exceeded", Where.CONTROLLER, FailureClass.INFRASTRUCTURE, Action.RELAUNCH,
        "A ResourceQuota of the tenant's namespace has no room for the learners; the reason names it, with what is "
        "asked for and used. Costs nothing: the job gives its place back, goes to the end of the line, and is tried "
        "again until there is room, or an administrator raises the quota.",
        "test", f"{API_FAULTS}::test_a_quota_that_is_used_up_is_named_and_waited_for"),
    FailureRule("quota.too_small", Where.CONTROLLER, FailureClass.CONFIGURATION, Action.STOP,
        "The limit of a ResourceQuota of the tenant's namespace is below what all learners need together, even if "
        "no other pod used any. Ask for fewer or smaller learners, or have the quota raised and submit the job again.",
        "test", f"{API_FAULTS}::test_a_quota_that_can_never_hold_the_job_ends_it_at_once"),
    FailureRule("grant.reclaimed", Where.CONTROLLER, FailureClass.PREEMPTED, Action.RELAUNCH,
        "The planner needed the room: the job used more than its tenant's quota and another tenant needs what it had "
        "lent, or the job had passed one that can start now. The program was asked to save and leave; the job waits "
        "in its earlier place of the queue and goes on from its checkpoint. Costs nothing.",
        "recording", "updraft.controller"),
    FailureRule("grant.resized", Where.CONTROLLER, FailureClass.PREEMPTED, Action.RELAUNCH,
        "The planner gave an elastic job another number of learners. The program was asked to save and leave, and goes "
        "on from its checkpoint with the new size. Costs nothing.",
        "recording", "updraft.controller"),
    FailureRule("job.halted", Where.CONTROLLER, FailureClass.HALTED, Action.STOP,
        "A person halted the job; it goes on from its last checkpoint when it is resumed.",
        "recording", "updraft.controller"),
    FailureRule("job.cancelled", Where.CONTROLLER, FailureClass.CANCELLED, Action.STOP,
        "A person cancelled the job.",
        "test", "tests/system/test_queue.py::test_a_cancelled_job_ends_cancelled_and_leaves_nothing"),
    FailureRule("job.deadline", Where.CONTROLLER, FailureClass.DEADLINE, Action.STOP,
        "The job used up budget.max_runtime. Time in which it is halted or waits in the queue does not count.",
        "recording", "updraft.controller"),
)  # fmt: skip

WAITING_REASONS = frozenset(reason for row in WAITING_ROWS for reason in row.reasons)

CLUSTER_ROWS = (*POD_ROWS, *REFUSED_ROWS, *CONDITION_ROWS, *WAITING_ROWS, *STAGE_ROWS, *GANG_ROWS, *CONTROLLER_ROWS)
