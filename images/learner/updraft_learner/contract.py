"""Define the contract between the platform and a learner's pod: names, paths, exit codes, storage keys.

It is written only here. The platform (`updraft`) imports it to build pods and to read what they store; the sidecar and
the program's Python API import it inside the pod. Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

# --- Paths inside every container of a learner's pod -------------------------------------------------
ROOT_DIR = "/updraft"  # one emptyDir, shared by sidecar and program
CODE_DIR = f"{ROOT_DIR}/code"  # working directory of the program
DATA_DIR = f"{ROOT_DIR}/data"
RESULT_DIR = f"{ROOT_DIR}/result"
CHECKPOINT_DIR = f"{ROOT_DIR}/checkpoints"
LOG_DIR = f"{ROOT_DIR}/logs"
IO_DIR = f"{ROOT_DIR}/io"
TREES_DIR = f"{ROOT_DIR}/trees"  # role prepare: the unpacked archives and repositories, by source
PREPARE_FILE = f"{IO_DIR}/prepare.json"  # the input of the program of the role prepare
PREPARE_REPORT_FILE = f"{IO_DIR}/report.json"  # and its output
BUILD_DIR = f"{ROOT_DIR}/build"  # role build: uv, its work, and what it makes
INIT_DIR = f"{ROOT_DIR}/init"  # another job's checkpoint, which the program begins with
INIT_FROM_ENV = "UPDRAFT_INIT_FROM"  # the same as an absolute path; the folder is missing without such a checkpoint
BATCH_ENV = "UPDRAFT_BATCH"  # the global batch that the platform chose for the learners of this attempt
LR_SCALE_ENV = "UPDRAFT_LR_SCALE"  # the factor of the learning rate that goes with it
SHARED_LEARNERS_ENV = "UPDRAFT_SHARED_LEARNERS"  # how many processes of the pod train through shared memory
MEMORY_ENV = "UPDRAFT_MEMORY_BYTES"  # the memory limit of the pod that they share
ENVIRONMENT_DIR = f"{ROOT_DIR}/environment"  # the packages that the job adds to its image
METRICS_FILE = f"{IO_DIR}/metrics.jsonl"  # the program appends; the sidecar reads
STOP_FILE = f"{IO_DIR}/stop"  # if it exists: save a checkpoint and exit with ExitCode.PREEMPTED
DUMP_FILE = f"{IO_DIR}/dump"  # when its number changes: write the stacks of all threads to the log and to LOG_DIR
ALIVE_FILE = f"{IO_DIR}/alive"  # the lock of a learner that is resized in place: `elastic.alive`
PARAMS_FILE = f"{IO_DIR}/params.json"  # the manifest's `params`
RESUME_FROM_FILE = f"{IO_DIR}/resume-from"  # the restored adopted checkpoint, as a path below CODE_DIR
RESUME_FROM_ENV = "UPDRAFT_RESUME_FROM"  # the same as an absolute path, in the program's environment
LAUNCHER_FILE = f"{IO_DIR}/launcher.pyz"  # starts the processes of a learner that has several
OUTPUT_DIR = f"{IO_DIR}/output"  # copies of what the program prints, `stdout` and `stderr`, to take metrics from
STAGED_FILE = f"{IO_DIR}/staged"  # if it exists: code, data and checkpoint are staged, and the program may start
STAGING_FAILED_FILE = f"{IO_DIR}/staging-failed"  # one line: the exit code of the pod, a space, the reason
STAGING_FAILED = "updraft: staging failed: "  # the program's container prints this, followed by the reason
MEMORY_FILE = f"{IO_DIR}/memory"  # the newest sample of the program's memory: bytes used, reclaimable, limit or "max"
MEMORY_INTERVALS = 3  # intervals of system metrics between two samples of memory; each costs a shell in the container
CGROUP_DIR = "/sys/fs/cgroup"  # where a container finds its kernel's counters
GPU_FILE = f"{IO_DIR}/gpus.csv"  # the newest sample of the program's GPUs, a line of GPU_FIELDS for each
GPU_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "power.draw")  # nvidia-smi's names
CREDENTIALS_FILE = "/run/updraft/credentials/credentials.json"  # mounted in the sidecar only
CONFIG_ENV = "UPDRAFT_POD_CONFIG"  # PodConfig as JSON, for the sidecar; contains no secret
# The sidecar gets these two paths only from the environment, because the local node rewrites paths only there.
ROOT_ENV = "UPDRAFT_ROOT_DIR"  # set to ROOT_DIR
PRIVATE_DIR = "/run/updraft/private"  # an emptyDir for the sidecar's state, which only the sidecar mounts
PRIVATE_ENV = "UPDRAFT_PRIVATE_DIR"  # set to a folder in PRIVATE_DIR
PRIVATE_VOLUME = "private"
CREDENTIALS_ENV = "UPDRAFT_CREDENTIALS_FILE"  # set to CREDENTIALS_FILE
# The node's cache of data, a claim that the sidecar writes to and the program reads; not every platform has one.
CACHE_DIR = "/updraft-cache"
CACHE_ENV = "UPDRAFT_CACHE_DIR"  # set to CACHE_DIR

# --- Containers and volumes of a learner's pod -------------------------------------------------------
MAIN_CONTAINER = "base"  # KubernetesPodOperator's name for the program's container
SIDECAR_CONTAINER = "updraft-sidecar"  # native sidecar: `python -m updraft_learner.sidecar`
JOB_VOLUME = "job"
CREDENTIALS_VOLUME = "credentials"
MLFLOW_PORT = 5000  # the sidecar's endpoint for MLflow and streamed data, on the pod's loopback address only
DATA_URL_ENV = "UPDRAFT_DATA_URL"  # where the endpoint serves streamed data
DATA_PATH = "/updraft/data"
# The token of that endpoint, random for each launch: the key in the launch's secret, and the variable from which
# MLflow's client reads it. The program's container refers to the secret; the sidecar finds the token in its
# credentials.
ENDPOINT_TOKEN_KEY = "endpoint-token"
ENDPOINT_TOKEN_ENV = "MLFLOW_TRACKING_TOKEN"
MASTER_PORT = 29500  # torch's rendezvous, on learner 1
# Of a job that is resized in place: where its learners find its coordinator, and after how many seconds without a word
# a learner is lost.
ELASTIC_ENV = "UPDRAFT_ELASTIC"
ELASTIC_HANG_ENV = "UPDRAFT_ELASTIC_HANG_SECONDS"
ALIVE_ENV = "UPDRAFT_ALIVE_FILE"  # where such a learner holds a lock as long as it lives
COORDINATOR_PORT = 29501
COORDINATOR_LEARNER = 0  # the value of LABEL_LEARNER of its pod, which is no learner

# --- Roles of pods that this package treats in a special way -----------------------------------------
TRAIN_ROLE = "train"
EXPORT_ROLE = "export"
EXPORT_REPORT = "export/export.json"  # below the RESULT_DIR of the pod that exports
PREDICTIONS = "predictions.parquet"  # below the RESULT_DIR of the pod that evaluates
# What the pod that compares two models reads, below DATA_DIR, and writes, below RESULT_DIR.
COMPARE_REQUEST = "request.json"
CHALLENGER_PREDICTIONS, CHALLENGER_EXPORT = f"challenger/{PREDICTIONS}", "challenger/export.json"
CHAMPION_PREDICTIONS, CHAMPION_EXPORT = f"champion/{PREDICTIONS}", "champion/export.json"
COMPARISON_FILE = "comparison.json"
GATE_REPORT_FILE = "report.html"
BUILD_ROLE = "build"  # builds the packages of the manifest's `environment`, with attempt numbers of its own
PREPARE_ROLE = "prepare"  # prepares code and data; it has attempt numbers of its own, so a program's first attempt is 1

# --- Labels on every object of a job -----------------------------------------------------------------
LABEL_JOB = "updraft.dev/job"
LABEL_TENANT = "updraft.dev/tenant"
LABEL_ROLE = "updraft.dev/role"  # as PodConfig's role
LABEL_ATTEMPT = "updraft.dev/attempt"
LABEL_LEARNER = "updraft.dev/learner"  # from 1

SYSTEM_METRICS_SECONDS = 10.0


class ExitCode(IntEnum):
    """Exit codes with a meaning for the platform. Every other code is the program's own failure."""

    DONE = 0
    CONFIGURATION = 64  # the pod's configuration is invalid; never retried
    DATA = 65  # staged data is missing or does not match its digest
    CHECKPOINT = 66  # the checkpoint to resume from is damaged or incomplete; an older one may work
    STORAGE = 74  # the object store could not be reached or refused
    PREEMPTED = 75  # stopped on request after saving; can be resumed
    OUT_OF_MEMORY = 137  # SIGKILL; the container's reason is OOMKilled if memory was the cause


@dataclass(frozen=True)
class DataMount:
    """A data set, and its folder below DATA_DIR (`.` is DATA_DIR itself)."""

    tree: str  # sha256 of the tree document, or of the document of a listing
    mount: str = "."
    mode: str = "copy"  # copy: the learner's own files; stream: read over the endpoint; mount: the node's files
    source: str = ""  # as the manifest has it, for messages
    bucket: str | None = None  # of a listing's objects; None: `tree` is a tree
    secret: str | None = None  # for that bucket; None: the platform's own access


@dataclass(frozen=True)
class InputFile:
    """An object of the platform's bucket that is laid out below DATA_DIR; it may be missing."""

    path: str
    key: str


@dataclass(frozen=True)
class ResultsBucket:
    """A bucket of the user's that RESULT_DIR is written to when the training ends."""

    bucket: str
    prefix: str  # of the job's files, no slash at either end
    secret: str
    source: str  # as the manifest has it, for messages


@dataclass(frozen=True)
class Collector:
    """One way to take metrics from what the program prints or writes; see `collectors`."""

    type: str  # regex, tensorboard or jsonl
    source: str | None = None  # a glob, as `collectors.split_source` reads it; None: what the program prints
    pattern: str | None = None  # of a line
    values: dict[str, str] = field(default_factory=dict)  # metric's name -> group of the pattern that holds its value
    step: str | None = None  # group, or field of a JSON object, that holds the step
    lines: int = 1  # how many lines the pattern may span
    prefix: str = ""  # goes before each name, with a slash


@dataclass(frozen=True)
class PodConfig:
    """The sidecar's configuration. It contains no secret: everybody who may read the pod may read it."""

    job_id: str
    tenant: str
    role: str  # prepare, build, train, evaluate, export, champion-N, compare-N
    attempt: int  # fencing number of this launch, from 1
    learner: int  # from 1
    learners: int
    bucket: str
    prefix: str  # the tenant's prefix in the bucket, no slash at either end
    mlflow_run_id: str
    mlflow_experiment_id: str
    code_tree: str | None = None
    data: tuple[DataMount, ...] = ()
    cache_bytes: int = 0  # most bytes of streamed data that are kept on the disk, and of mounted data on the node
    environment_tree: str | None = None  # sha256 of the tree of ENVIRONMENT_DIR
    params: dict[str, Any] = field(default_factory=dict)
    restore_checkpoint: str | None = None  # name of the checkpoint to restore into CHECKPOINT_DIR
    init_job: str | None = None  # the job whose checkpoint of the name `init_checkpoint` is laid out in INIT_DIR
    init_checkpoint: str | None = None
    adopt: str | None = None  # glob below CODE_DIR: what the program writes there becomes checkpoints
    collect: tuple[Collector, ...] = ()  # how metrics are taken from what the program prints or writes
    results_to: ResultsBucket | None = None
    own_model: bool = False  # whether the export takes the program's own MLflow model, which it may have logged
    restore_results: bool = False  # evaluate and export start from the training's RESULT_DIR
    results_job: str | None = None  # the job whose results those are; None: this one
    inputs: tuple[InputFile, ...] = ()
    restore_own_results: bool = False  # a later attempt starts with what this learner had stored in RESULT_DIR
    listen: str = f"127.0.0.1:{MLFLOW_PORT}"  # address of the sidecar's MLflow endpoint
    system_metrics_seconds: float = SYSTEM_METRICS_SECONDS  # sampling interval; 0 switches it off
    heartbeat_seconds: float = 2.0
    launcher: bool = False  # whether the program's container starts its processes through LAUNCHER_FILE
    in_place: bool = False  # learners join and leave while the others train: any of them may report for the job
    members: int = 0  # for the coordinator: the learners that begin the training
    result_learners: tuple[int, ...] | None = None  # whose results `restore_results` takes; None: everybody's

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> PodConfig:
        raw = json.loads(text)
        raw["data"] = tuple(DataMount(**item) for item in raw["data"])
        raw["results_to"] = ResultsBucket(**raw["results_to"]) if raw.get("results_to") else None
        raw["inputs"] = tuple(InputFile(**item) for item in raw["inputs"])
        raw["collect"] = tuple(Collector(**item) for item in raw["collect"])
        raw["result_learners"] = None if raw["result_learners"] is None else tuple(raw["result_learners"])
        return cls(**raw)


@dataclass(frozen=True)
class Keys:
    """Object keys of one tenant in the platform's bucket. The layout is documented in docs/reference/storage.md."""

    prefix: str

    def blob(self, sha256: str) -> str:
        return f"{self.prefix}/blobs/{sha256}"

    def tree(self, sha256: str) -> str:
        return f"{self.prefix}/trees/{sha256}.json"

    def listing(self, sha256: str) -> str:
        """Return the key of the document that names the objects of a streamed data set (`streams.listing`)."""
        return f"{self.prefix}/listings/{sha256}.json"

    def source(self, sha256: str) -> str:
        """Return the key of the last listing of a remote source, so that unchanged objects are not fetched again."""
        return f"{self.prefix}/sources/{sha256}.json"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}/jobs/{job_id}"

    def checkpoints(self, job_id: str) -> str:
        return f"{self.job(job_id)}/checkpoints"

    def checkpoint(self, job_id: str, name: str) -> str:
        return f"{self.checkpoints(job_id)}/{name}"

    def checkpoint_marker(self, job_id: str, name: str) -> str:
        """Return the key of the marker, which is uploaded last: a checkpoint without it does not exist."""
        return f"{self.checkpoint(job_id, name)}/{CHECKPOINT_MARKER}"

    def results(self, job_id: str, role: str, learner: int) -> str:
        part = f"learner-{learner}" if role == TRAIN_ROLE else role
        return f"{self.job(job_id)}/results/{part}"

    def learner(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        return f"{self.job(job_id)}/attempts/{role}-{attempt}/learner-{learner}"

    def stop(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return the key whose existence makes the sidecar touch STOP_FILE, so that the program saves and exits."""
        return f"{self.learner(job_id, role, attempt, learner)}/stop"

    def dump(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return the key of a number: when it changes, the program writes the stacks of all its threads (DUMP_FILE)."""
        return f"{self.learner(job_id, role, attempt, learner)}/dump"

    def members(self, job_id: str, role: str, attempt: int) -> str:
        """Return the key of the members that the coordinator of an attempt shall lead to: JSON, from the platform."""
        return f"{self.job(job_id)}/attempts/{role}-{attempt}/members.json"

    def group(self, job_id: str, role: str, attempt: int) -> str:
        """Return the key of what the coordinator of an attempt says of the group of learners: JSON."""
        return f"{self.job(job_id)}/attempts/{role}-{attempt}/group.json"

    def fence(self, job_id: str) -> str:
        """Return the key of {role: number of the only attempt that may have effect}; it is written before that
        attempt's pods exist."""
        return f"{self.job(job_id)}/fence.json"

    def first_seen(self, job_id: str, role: str, learner: int) -> str:
        """Return the key of {"t": when the first attempt of this learner started}: its system metrics count their steps
        from there."""
        return f"{self.job(job_id)}/first-seen/{role}-{learner}.json"

    def files(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return what the program wrote into LOG_DIR."""
        return f"{self.learner(job_id, role, attempt, learner)}/files"

    def compare_request(self, job_id: str, role: str, attempt: int) -> str:
        """Return what the pod that compares two models is asked for."""
        return f"{self.learner(job_id, role, attempt, 1)}/request.json"

    def prepare_request(self, job_id: str, attempt: int) -> str:
        """Return what the pod that prepares code and data is asked for (`prepare.documents.PrepareRequest`)."""
        return f"{self.learner(job_id, 'prepare', attempt, 1)}/request.json"

    def prepared(self, job_id: str, attempt: int) -> str:
        """Return what became of it (`prepare.documents.outcome`); written by the pod's sidecar."""
        return f"{self.learner(job_id, 'prepare', attempt, 1)}/prepared.json"

    def environment(self, key: str) -> str:
        """Return the key of {"tree": of an environment}, by `environment.builder.environment_key`."""
        return f"{self.prefix}/environments/{key}{'.json' if key else ''}"

    def resolved(self, sha256: str) -> str:
        """Return the key of what was built last for a request, by the request's digest: {built, at}."""
        return f"{self.prefix}/resolved/{sha256}.json"

    def environment_request(self, job_id: str, attempt: int) -> str:
        """Return what the pod that builds packages is asked for (`environment.documents.EnvironmentRequest`)."""
        return f"{self.learner(job_id, BUILD_ROLE, attempt, 1)}/request.json"

    def environment_built(self, job_id: str, attempt: int) -> str:
        """Return what became of it (`environment.documents.answer`); written by the pod's sidecar."""
        return f"{self.learner(job_id, BUILD_ROLE, attempt, 1)}/built.json"

    def artifacts(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return the folder of MLflow artifacts that the server could not take before the pod ended: `<n>.data`, and
        `<n>.json` with {"owner": "run" or a logged model's id, "path": path below the owner's artifacts}."""
        return f"{self.learner(job_id, role, attempt, learner)}/artifacts"

    def status(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return the key of the heartbeat, which the sidecar overwrites every few seconds (`LearnerStatus`)."""
        return f"{self.learner(job_id, role, attempt, learner)}/status.json"

    def done(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return the key of the completion marker: the sidecar writes it when everything of this learner is stored."""
        return f"{self.learner(job_id, role, attempt, learner)}/done.json"

    def metrics(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return the folder of numbered JSON-lines chunks of metrics."""
        return f"{self.learner(job_id, role, attempt, learner)}/metrics"

    def logs(self, job_id: str, role: str, attempt: int, learner: int) -> str:
        """Return the folder of numbered JSON-lines chunks of the log: {"n": line number, "t": RFC 3339 with
        nanoseconds, "line": text}."""
        return f"{self.learner(job_id, role, attempt, learner)}/logs"


# --- Limits of documents: a process that reads those of many jobs must not run out of memory because of one ----------
STATUS_LIMIT_BYTES = 1 << 20  # status.json and done.json; a sidecar shortens their content to fit, see below
MARKER_LIMIT_BYTES = 16 << 20  # MANIFEST.json, and all parts of one together: about 100,000 files
TREE_LIMIT_BYTES = (
    256 << 20
)  # trees/, listings/, sources/, which no program writes: 200,000 files with the longest names
SIGNAL_LIMIT_BYTES = 64 << 10  # fence.json, stop, dump, first-seen
TEXT_CHARACTERS = 500  # of one warning, or of one reason
TEXTS = 50  # warnings of one learner, and reasons of its quarantined checkpoints: together below 600 KB of JSON
STATUS_METRICS_BYTES = 256 << 10  # of a status' last_metrics, as JSON
CHECKPOINT_METRICS = 1_000  # of one checkpoint; the ledger stores each
NAME_CHARACTERS = 250  # of a metric's name: MLflow's limit
CHECKPOINT_METRICS_CHARACTERS = 100_000  # of all these names together
PATH_CHARACTERS = 1_000  # of the path of a checkpoint's file: an S3 key has at most 1,024 bytes

JsonText = str | bytes


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint in a learner's status."""

    name: str  # its name in the store
    step: int | None
    bytes: int
    uploaded: bool


@dataclass(frozen=True)
class LearnerStatus:
    """The heartbeat at `Keys.status`. Readers ignore fields that they do not know."""

    t: float
    phase: str  # running, storing, done
    progress: dict[str, int] = field(default_factory=dict)  # step, total, epoch, epochs
    last_metrics: dict[str, float | str] = field(default_factory=dict)  # NaN and infinities as text
    checkpoints: tuple[StoredCheckpoint, ...] = ()
    quarantined: tuple[str, ...] = ()  # checkpoints whose files did not match their digests, with the reason
    pending_bytes: int = 0  # of checkpoints, results and artifacts not yet stored
    metrics_sent: int = 0
    metrics_pending: int = 0  # not yet in MLflow
    warnings: tuple[str, ...] = ()
    nan: int = 0  # values that were NaN or infinite
    bad_lines: int = 0  # lines of the metrics file that did not parse
    steps: dict[str, int] = field(default_factory=dict)  # first and last step that this attempt reported
    fenced: bool = False  # a newer attempt exists: this one stores and sends nothing any more
    disk_free_bytes: int | None = None  # of the job's volume
    scaling: dict[str, Any] = field(default_factory=dict)  # see "The metrics file"
    training: dict[str, float] = field(default_factory=dict)  # newest line of that kind, and "first" of its steps

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: JsonText) -> LearnerStatus:
        raw = {key: value for key, value in json.loads(text).items() if key in cls.__dataclass_fields__}
        raw["checkpoints"] = tuple(StoredCheckpoint(**item) for item in raw.get("checkpoints", ()))
        raw["quarantined"] = tuple(raw.get("quarantined", ()))
        raw["warnings"] = tuple(raw.get("warnings", ()))
        return cls(**raw)


@dataclass(frozen=True)
class LearnerDone:
    """The completion marker at `Keys.done`: everything of this learner is stored."""

    t: float
    files: int = 0  # checkpoint, result and log files stored by this learner in this attempt
    bytes: int = 0
    metrics_sent: int = 0
    metrics_pending: int = 0  # more than 0: MLflow lacks these; they are in the chunks at `Keys.metrics`, see below
    artifacts_pending: int = 0  # more than 0: the same for artifacts, at `Keys.artifacts`
    final_checkpoint: str | None = None
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: JsonText) -> LearnerDone:
        raw = {key: value for key, value in json.loads(text).items() if key in cls.__dataclass_fields__}
        raw["warnings"] = tuple(raw.get("warnings", ()))
        return cls(**raw)


CHECKPOINT_MARKER = "MANIFEST.json"
# Step, metrics and digests, written by the Python API. Not "manifest.json": on file systems that ignore case,
# CHECKPOINT_MARKER would overwrite it.
CHECKPOINT_LOCAL_MANIFEST = "checkpoint.json"
CHECKPOINT_LOCAL_MARKER = "COMPLETE"  # the program creates it last; a program without Python uses `touch`
CHECKPOINT_LATEST = "latest"  # symbolic link in CHECKPOINT_DIR to the newest complete checkpoint

# --- The metrics file: JSON lines ---------------------------------------------------------------------
# {"t": unix seconds, "step": int, "metrics": {name: number}}       a point per name
# {"t": ..., "progress": {"step": int, "total": int, "epoch": int?, "epochs": int?}}
# {"t": ..., "training": {"step": int, "work": number, "seconds": number}}   by updraft_learner.elastic: steps of the
#   whole training; this learner's part of them and the time it computed for that, both summed up since it joined
# {"t": ..., "tags": {name: text}} / {"params": {name: text}}       for the job's MLflow run
# {"t": ..., "scaling": {"follows_batch": 1, "noise": samples, "gradient_bytes": bytes,
#   "timings": [[samples of one learner, seconds], ...], "exchange": [[bytes, seconds], ...]}}   each of them optional
# A line that does not parse is counted and reported, and is never fatal.

# --- The record of a job: chunks of JSON lines at Keys.metrics ------------------------------------------
# {"n": running number, "t": ..., "source": "file" | "mlflow" | "system" | "sidecar", and one of
#   "step": int, "metrics": {name: number, or "NaN", "Infinity", "-Infinity"}, "model": {"model_id", ...}?
#   "params": {name: text}    "tags": {name: text}    "call": {"path": MLflow API path, "body": {...}}}
# Names are those of the job's MLflow run (learner k > 1: "learner_<k>/<name>"), so a record is replayed as it is;
# at most one point per name and step goes to MLflow, NaN as "NaN", infinities not at all.
NAN_TAG = "updraft.warning.nan"  # the first metric and step that was NaN or infinite


def learner_environment(
    *,
    job_id: str,
    role: str,
    attempt: int,
    learner: int,
    learners: int,
    gpus: int,
    run_id: str,
    experiment_id: str,
    master_addr: str,
    master_port: int,
    command: str,
    checkpoint_seconds: float | None,
    processes: int = 1,
    batch: int | None = None,
    lr_scale: float = 1.0,
    coordinator: str | None = None,
    hang_seconds: float = 60.0,
) -> dict[str, str]:
    """Return the environment of the user's container: FfDL's names, torch's, MLflow's, then the platform's. It holds no
    credential: the token of the MLflow endpoint is added as a reference to the launch's secret.

    `processes`: how many a learner has; the launcher sets RANK, LOCAL_RANK and WORLD_SIZE for each. torchrun reads the
    variables PET_*, if the program's command starts it. `batch` and `lr_scale`: of an elastic job whose batch the
    platform chooses. `coordinator` and `hang_seconds`: of a job that is resized in place.
    """
    environment = {
        "DATA_DIR": DATA_DIR,
        "MODEL_DIR": CODE_DIR,
        "RESULT_DIR": RESULT_DIR,
        "CHECKPOINT_DIR": CHECKPOINT_DIR,
        "LOG_DIR": LOG_DIR,
        "JOB_STATE_DIR": IO_DIR,
        "TRAINING_ID": job_id,
        "TRAINING_COMMAND": command,
        "LEARNER_ID": str(learner),
        "LEARNER_NAME_PREFIX": f"{job_id}-{role}",
        "NUM_LEARNERS": str(learners),
        "GPU_COUNT": str(gpus),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "RANK": str(learner - 1),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(learners),
        "NODE_RANK": str(learner - 1),
        "PET_NNODES": str(learners),
        "PET_NODE_RANK": str(learner - 1),
        "PET_NPROC_PER_NODE": str(processes),
        "PET_MASTER_ADDR": master_addr,
        "PET_MASTER_PORT": str(master_port),
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{MLFLOW_PORT}",
        "MLFLOW_RUN_ID": run_id,
        "MLFLOW_EXPERIMENT_ID": experiment_id,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Links to the loopback endpoint would be useless outside the pod.
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        DATA_URL_ENV: f"http://127.0.0.1:{MLFLOW_PORT}{DATA_PATH}",
        "UPDRAFT_ROLE": role,
        "UPDRAFT_ATTEMPT": str(attempt),
        "UPDRAFT_METRICS_FILE": METRICS_FILE,
        "UPDRAFT_STOP_FILE": STOP_FILE,
        "UPDRAFT_DUMP_FILE": DUMP_FILE,
        "UPDRAFT_PARAMS_FILE": PARAMS_FILE,
        "PYTHONUNBUFFERED": "1",
    }
    if checkpoint_seconds is not None:
        environment["UPDRAFT_CHECKPOINT_SECONDS"] = f"{checkpoint_seconds:g}"
    if batch is not None:
        environment[BATCH_ENV] = str(batch)
        environment[LR_SCALE_ENV] = f"{lr_scale:g}"
    if coordinator is not None:
        environment[ELASTIC_ENV] = coordinator
        environment[ELASTIC_HANG_ENV] = f"{hang_seconds:g}"
        environment[ALIVE_ENV] = ALIVE_FILE
    return environment
