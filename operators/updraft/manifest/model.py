"""Define the manifest of a training job as one pydantic model. The JSON Schema, the reference page, Airflow's trigger
form and the error messages are made from it.

Validators here check one field at a time; `updraft.manifest.checks` checks fields against each other. Callers use
`updraft.manifest.parse` and `load`, which report all wrong fields at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from updraft.manifest import limits, values
from updraft.manifest.adopting import check_pattern
from updraft.manifest.collecting import MOST_COLLECTORS, MetricsSource
from updraft.manifest.elastic import smallest_batch
from updraft.manifest.environment import PackageEnvironment
from updraft.manifest.gate import Gate
from updraft.manifest.part import Part, Text
from updraft.manifest.pod import Pod
from updraft.manifest.processes import Processes
from updraft.manifest.results import Results
from updraft.manifest.rules import PromotionRule, parse_rule
from updraft.manifest.sizes import SIZES, SizeName
from updraft.manifest.sources import Source, parse_source
from updraft.manifest.task import expanded
from updraft.manifest.units import Bytes, DiskBytes, Duration

Count = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Name = Annotated[Text, AfterValidator(values.check_name), Field(json_schema_extra={"pattern": values.NAME_PATTERN})]
SecretName = Annotated[Text, AfterValidator(values.check_secret_name)]
Command = Annotated[str, Field(strict=True), AfterValidator(values.check_command)]
MetricName = Annotated[Text, AfterValidator(values.check_metric_name)]
Scalars = Annotated[
    dict[str, str | int | float | bool],
    PlainValidator(values.check_params),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "integer", "number", "boolean"]}}),
]
Environment = Annotated[
    dict[str, str],
    PlainValidator(values.check_env),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]
Task = Annotated[
    Literal["text-classification"],
    WithJsonSchema({"type": "string", "enum": ["text-classification"]}),
]
Strategy = Annotated[
    Literal["shared_memory"],
    WithJsonSchema({"type": "string", "enum": ["shared_memory"]}),  # Airflow's form shows no choice for a `const`
]
Suite = Annotated[
    str | dict[str, Any],
    PlainValidator(values.check_expectations),
    WithJsonSchema({"type": ["string", "object"]}),
]
Promote = Annotated[
    dict[str, str],
    PlainValidator(values.check_promote_if),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


class Framework(Part):
    """A framework that the platform has an image for."""

    name: Text = Field(description="Name of the framework", examples=["pytorch"])
    version: Annotated[Text | None, PlainValidator(values.check_version)] = Field(
        None,
        description="Version or range of versions, quoted in YAML; without it, the version that the platform has",
        examples=["2.15", ">=2.10,<3"],
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "null"}]},
    )


class Secret(Part):
    """One value of a stored secret, given to the program as an environment variable."""

    name: SecretName = Field(description="Name of the stored secret", examples=["hub"])
    key: Text = Field("value", description="Key inside the secret", examples=["token"])
    env_name: Annotated[Text, AfterValidator(values.check_env_name)] = Field(
        alias="as", description="Environment variable of the program that holds the value", examples=["HUB_TOKEN"]
    )


class Resources(Part):
    """The resources of each learner. A size stands for cpus, memory, gpus and gpu_type together."""

    size: SizeName | None = Field(
        None, description="A size by name, instead of cpus, memory, gpus and gpu_type", examples=["small"]
    )
    learners: Count = Field(1, ge=1, le=1024, description="Pods of the job that train together", examples=[2])
    cpus: Number = Field(1.0, ge=0.01, le=4096, description="CPU cores per learner", examples=[0.5])
    memory_bytes: Bytes = Field(
        2 * 1024**3,
        alias="memory",
        description="Memory per learner: a number and a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB)",
        examples=["2GiB"],
        json_schema_extra={"default": "2GiB"},
    )
    disk_bytes: DiskBytes | None = Field(
        None,
        alias="disk",
        description="Disk per learner, set aside on its node: code, data, checkpoints, results, logs and all else that "
        "it writes. Without it, up to the platform's limit of what the node has free",
        examples=["20GiB"],
    )
    gpus: Count = Field(0, ge=0, le=64, description="GPUs per learner", examples=[1])
    gpu_type: Annotated[Text, AfterValidator(values.check_gpu_type)] | None = Field(
        None, description="Type of GPU as the cluster labels it; without it, any", examples=["nvidia-TeslaV100"]
    )
    processes_per_learner: Processes = Field(
        None,
        description="Processes of the command that the platform starts in each learner: a number, or gpus for one per "
        "GPU. Without it, the command is run once. With strategy, how many learners share the memory of the pod",
        examples=["gpus"],
    )
    mpi: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="The command runs in the first learner alone, and mpirun in it starts processes in all learners: "
        "processes_per_learner in each, or one",
        examples=[True],
    )
    shm_bytes: Bytes | None = Field(
        None,
        alias="shm",
        description="Largest size of /dev/shm, which counts as memory; without it, as much as the memory",
        examples=["1GiB"],
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_size(cls, raw: object) -> object:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("size"), str):
            return raw
        size = SIZES.get(raw["size"])
        return {**size.resources(), **raw} if size else raw


class Elastic(Part):
    """The limits within which the platform chooses the number of learners and the batch while the job runs."""

    min_learners: Count = Field(1, ge=1, le=64, description="Fewest learners", examples=[1])
    max_learners: Count = Field(ge=1, le=64, description="Most learners", examples=[4])
    min_batch: Count | None = Field(
        None,
        ge=1,
        description="Smallest global batch. Without it, the batch is the program's own matter",
        examples=[32],
    )
    max_batch: Count | None = Field(None, ge=1, description="Largest global batch", examples=[512])
    max_batch_per_learner: Count | None = Field(
        None, ge=1, description="Most samples of a batch that one learner has memory for", examples=[128]
    )
    lr: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description="How UPDRAFT_LR_SCALE grows with the batch: it is 1 for min_batch, and with linear 2 for a batch "
        "twice as large",
    )
    resize: Literal["restart", "in_place"] = Field(
        "restart",
        description="restart: at each change the program saves, ends, and goes on from its checkpoint; in_place: "
        "learners join and leave while the others train, for programs that use updraft_learner.elastic",
        examples=["in_place"],
    )

    @property
    def in_place(self) -> bool:
        """Return whether learners join and leave while the others train."""
        return self.resize == "in_place"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of learners that can share a batch in equal parts."""
        every = range(self.min_learners, self.max_learners + 1)
        return tuple(n for n in every if self.min_batch is None or self.batch(n) is not None)

    def batch(self, learners: int) -> int | None:
        """Return the smallest batch that so many learners can share; None if there is none."""
        if self.min_batch is None or self.max_batch is None:
            return None
        return smallest_batch(learners, self.min_batch, self.max_batch, self.max_batch_per_learner)


class Data(Part):
    """A data set of the job, which the program finds below DATA_DIR, or reads as a stream."""

    source: Annotated[Text, AfterValidator(values.check_data_source)] = Field(
        description="s3://bucket/prefix, a folder or file beside the manifest (the CLI uploads it), or "
        "pvc://claim/folder of a persistent volume",
        examples=["s3://datasets/digits/"],
    )
    mount: Annotated[Text, AfterValidator(values.check_mount)] = Field(
        ".", alias="as", description="Folder below DATA_DIR; '.' is DATA_DIR itself", examples=["training"]
    )
    mode: Literal["copy", "stream", "mount"] | None = Field(
        None,
        description="copy: each learner gets its own files below DATA_DIR; stream: nothing is copied, and "
        "updraft_learner.data reads objects as the program asks for them; mount: learners of one node share its "
        "files, which are read-only. Without it, copy, and mount for pvc://",
        examples=["stream"],
    )
    format: Literal["auto", "csv", "parquet", "jsonl", "npz", "images", "files"] = Field(
        "auto", description="How the expectations read the data; auto goes by the file names"
    )
    expectations: Suite | None = Field(
        None,
        description="Great Expectations suite that the data must pass: a JSON file beside the manifest, or the suite",
        examples=["digits.suite.json"],
    )
    increment: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="Train only on the files that are new or changed since the data that the champion was trained on; "
        "without a champion, on all",
        examples=[True],
    )
    secret: SecretName | None = Field(
        None,
        description="Stored secret with access_key and secret_key (and endpoint, region) of the bucket; "
        "without it, the platform's own store",
        examples=["vision-bucket"],
    )
    limit_bytes: Bytes | None = Field(
        None, alias="limit", description="Largest size of this data set, below the platform's limit", examples=["10GiB"]
    )

    def parsed(self) -> Source:
        """Return the data's source, split into its parts."""
        return parse_source(self.source, git=False)

    @property
    def how(self) -> Literal["copy", "stream", "mount"]:
        """Return the mode, with its default."""
        return self.mode or ("mount" if self.parsed().kind == "pvc" else "copy")

    @property
    def is_listed(self) -> bool:
        """Return whether the learners read the objects of a bucket, of which the platform only keeps a list."""
        return self.how == "stream" and self.parsed().kind == "s3"

    @property
    def needs_node_cache(self) -> bool:
        """Return whether the learners of a node share a copy."""
        return self.how == "mount" and self.parsed().kind != "pvc"


class Keep(Part):
    """The checkpoints that are kept."""

    latest: Count = Field(3, ge=1, le=1000, description="Newest checkpoints to keep", examples=[3])
    best: Count = Field(
        0, ge=0, le=1000, description="Best checkpoints to keep; needs checkpoints.metric", examples=[1]
    )
    every_nth: Count | None = Field(None, ge=1, description="Keep each n-th checkpoint for ever", examples=[10])


class Checkpoints(Part):
    """The checkpoints that the program saves; the platform verifies, uploads and prunes them."""

    every: Duration | None = Field(
        None,
        description="Interval asked of the program (s, m, h, d); without it, the program decides",
        examples=["60s"],
    )
    adopt: Annotated[Text, AfterValidator(check_pattern)] | None = Field(
        None, alias="from", description="Glob of what an unchanged program saves", examples=["output/checkpoint-*"]
    )
    keep: Keep = Field(Keep(), description="Which checkpoints are kept")
    metric: MetricName | None = Field(None, description="Metric that says which is best", examples=["val_accuracy"])
    mode: Literal["max", "min"] = Field("max", description="Whether more or less of the metric is better")


class Evaluate(Part):
    """A command that evaluates the trained model, run in the job's own image after training."""

    command: Command = Field(
        description="Shell command; it starts with the training's results in RESULT_DIR",
        examples=["python evaluate.py"],
    )


class Budget(Part):
    """The limits of the job: lost attempts, run time, and time without progress."""

    infra_attempts: Count | None = Field(
        None,
        ge=0,
        le=1000,
        description="Launches that may be lost to infrastructure within 24 hours; without it 5",
        examples=[5],
    )
    app_attempts: Count | None = Field(
        None,
        ge=0,
        le=1000,
        description="Launches that may be lost to the program's own failure in all; without it 0",
        examples=[1],
    )
    max_wait: Duration | None = Field(
        None,
        description="Longest time in the queue before the first launch (s, m, h, d); then the job ends. With 1s it is "
        "turned away if there is no room when it comes",
        examples=["2h"],
    )
    max_runtime: Duration | None = Field(
        None, description="Longest time from the first launch to the end of training (s, m, h, d)", examples=["6h"]
    )
    no_progress: Duration | None = Field(
        None,
        description="Longest time without a new step (s, m, h, d), or, of a program that reports none, without a line "
        "in its log; without it 20 times the job's usual step, and at least 5 minutes",
        examples=["15m"],
    )
    on_no_progress: Literal["warn", "restart", "stop"] = Field(
        "warn",
        description="What is done about a job without progress, after its stacks are written to its log: tell people, "
        "launch it again as a loss to infrastructure, or end it",
    )


class Failure(Part):
    """A failure that the job can name better than the platform, found by exit code, by text in the log, or by both."""

    exit_code: Count | None = Field(None, ge=1, le=255, description="Exit code of the program", examples=[42])
    contains: Annotated[Text, AfterValidator(values.check_contained)] | None = Field(
        None,
        description="Text in one of the program's last lines, as it stands there: no pattern, at least 4 characters",
        examples=["license server is busy"],
    )
    cause: Literal["infrastructure", "program", "configuration", "data"] = Field(
        description="What it counts as; configuration and data are never tried again"
    )
    action: Literal["relaunch", "relaunch_elsewhere", "older_checkpoint", "stop"] = Field(
        description="What is done, as long as the budget of the cause lasts"
    )
    text: Annotated[Text, AfterValidator(values.check_failure_text)] = Field(
        description="What people read as the reason, at most 300 characters",
        examples=["All licenses are in use; they come back."],
    )


class Export(Part):
    """The export of the trained model. Without this section the results are kept and nothing is exported."""

    formats: Annotated[
        tuple[Literal["onnx", "torch", "mlflow"], ...],
        Field(strict=False, max_length=limits.LISTED),
        AfterValidator(values.check_formats),
    ] = Field(
        ("onnx", "torch"),
        json_schema_extra={"minItems": 1},
        description="Formats of the exported model, which the platform makes and checks; or mlflow alone: the MLflow "
        "model folder that the program wrote to RESULT_DIR/model, unchecked (needs trust_code)",
        examples=[["onnx"]],
    )
    trust_code: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="Register a model that runs the job's own code when it is loaded (pickles, loaders); only for the "
        "format mlflow. The version's page says so",
        examples=[True],
    )
    register_as: Annotated[Text, AfterValidator(values.check_model_name)] | None = Field(
        None, description="Name in the model registry; without it, nothing is registered", examples=["digits-cnn"]
    )
    promote_if: Promote = Field(
        {},
        description="Rules under which the new version becomes @champion: metric to rule; all must hold",
        examples=[{"val_accuracy": ">= champion"}],
    )
    gate: Gate | None = Field(
        None,
        description="Rules for the predictions on held-out data that `evaluate` writes; all must hold for the version "
        "to become @champion",
        examples=[{"metric": "accuracy", "margin": 0.0}],
    )
    approval: Literal["none", "required"] = Field("none", description="Whether a person must approve the promotion")

    @property
    def judged(self) -> bool:
        """Return whether a rule decides about the version's promotion."""
        return bool(self.promote_if) or self.gate is not None

    @property
    def rules(self) -> tuple[PromotionRule, ...]:
        """Return the rules of `promote_if`, in its order. All must hold for the version to become the champion."""
        return tuple(parse_rule(metric, text) for metric, text in self.promote_if.items())


class Drift(Part):
    """How far new data must be from what the champion was trained on."""

    above: Number = Field(
        gt=0,
        le=1,
        description="Smallest distance that counts: of numbers the Kolmogorov-Smirnov distance, of texts the total "
        "variation distance; both are from 0, the same, to 1",
        examples=[0.1],
    )
    columns: Annotated[tuple[Text, ...], Field(strict=False, max_length=limits.LISTED)] = Field(
        (),
        description="Columns that count; one of them must differ. Without it, all that have numbers, or at most 1,000 "
        "different texts",
        examples=[["age", "country"]],
    )


class Schedule(Part):
    """When a manifest in `jobs/` runs by itself: at times, on new data, or both together."""

    cron: Annotated[Text, AfterValidator(values.check_cron)] | None = Field(
        None, description="Five cron fields, or @hourly, @daily, @weekly, @monthly, @yearly", examples=["0 3 * * *"]
    )
    and_new: Annotated[
        tuple[Annotated[Text, AfterValidator(values.check_s3)], ...], Field(strict=False, max_length=limits.LISTED)
    ] = Field(
        (),
        description="Run only if one of these has new data since the last run that the schedule started; without cron, "
        "as soon as there is some",
        examples=[["s3://datasets/digits/"]],
    )
    secret: SecretName | None = Field(
        None, description="Stored secret for the private buckets of and_new", examples=["bucket-read"]
    )
    quiet: Duration | None = Field(
        None, description="How long new data must be unchanged before it counts", examples=["10m"]
    )
    marker: Annotated[Text, AfterValidator(values.check_marker)] | None = Field(
        None,
        description="Name of the object that closes a delivery: only new or rewritten objects of this name count as "
        "new data",
        examples=["_SUCCESS"],
    )
    or_champion_older: Duration | None = Field(
        None, description="Run without new data, too, if the champion is older than this", examples=["30d"]
    )
    and_drift: Drift | None = Field(
        None,
        description="Train only if the data differs from what the champion was trained on. A job still begins: it "
        "stages and validates the data, and ends if there is no drift",
        examples=[{"above": 0.1}],
    )
    at_most_every: Duration | None = Field(
        None, description="Without cron: the least time between two runs; default: 1h", examples=["6h"]
    )
    timezone: Annotated[Text, AfterValidator(values.check_timezone)] = Field(
        "UTC", description="Time zone of the cron fields", examples=["Europe/Berlin"]
    )


class Notify(Part):
    """Who is told what about the job."""

    to: Annotated[tuple[Name, ...], Field(strict=False, min_length=1, max_length=limits.LISTED)] = Field(
        description="Names of notifiers that the platform's operator has set up", examples=[["team"]]
    )
    on: Annotated[
        tuple[Literal["started", "failed", "waiting", "promoted", "rejected", "rolled back"], ...],
        Field(strict=False, min_length=1, max_length=limits.LISTED),
    ] = Field(
        ("failed", "waiting", "promoted", "rejected", "rolled back"),
        description="What they are told: that the training started, that the job failed, that its model waits for "
        "approval, was promoted or rejected, and that the champion was rolled back to it",
        examples=[["failed"]],
    )


class Manifest(Part):
    """One training job of Updraft."""

    name: Name = Field(
        description="Name of the job's series: lower-case letters, digits and hyphens, at most 40 characters",
        examples=["digits-cnn"],
    )
    description: Text = Field("", description="For people", examples=["Digits, 8x8"])
    tenant: Name = Field("default", description="Team that the job belongs to", examples=["vision"])
    priority: Literal["low", "normal", "high"] = Field(
        "normal",
        description="A job starts before those that came up to 12 hours earlier, for each level that their priority is "
        "lower; an administrator may set another time",
        examples=["high"],
    )
    framework: Framework | None = Field(
        None, description="Framework whose image runs the program; or give image", examples=[{"name": "pytorch"}]
    )
    image: Annotated[Text, AfterValidator(values.check_image)] | None = Field(
        None,
        description="Container image that runs the program; or give framework",
        examples=["registry/team/trainer:3"],
    )
    code: Annotated[Text, AfterValidator(values.check_code)] | None = Field(
        None,
        description="Folder or .zip file beside the manifest, s3://bucket/prefix, or "
        "git+https://host/repository@commit; without it, the image holds the code",
        examples=["."],
    )
    code_secret: SecretName | None = Field(
        None, description="Stored secret for a private repository or bucket that `code` names", examples=["git-read"]
    )
    command: Command = Field(
        description="Shell command (/bin/sh) that starts the program, in the code's folder; "
        "${params.NAME} stands for a parameter, quoted for the shell",
        examples=["python train.py --epochs ${params.epochs}"],
    )
    params: Scalars = Field(
        {},
        description="Parameters of the program: logged to MLflow, usable in commands, in the file UPDRAFT_PARAMS_FILE",
        examples=[{"epochs": 10, "lr": 0.001}],
    )
    env: Environment = Field(
        {}, description="Environment variables of the program, not for secrets", examples=[{"OMP_NUM_THREADS": "1"}]
    )
    environment: PackageEnvironment | None = Field(
        None,
        description="Packages that the programs need besides those of the image",
        examples=[{"requirements": "requirements.txt"}],
    )
    secrets: Annotated[tuple[Secret, ...], Field(strict=False, max_length=limits.LISTED)] = Field(
        (),
        description="Values of stored secrets, as environment variables of the program",
        examples=[[{"name": "hub", "key": "token", "as": "HUB_TOKEN"}]],
    )
    task: Task | None = Field(
        None,
        description="What to train on the data where you have no program: text-classification learns the labels of "
        "texts, in files named .csv, .tsv or .jsonl with the columns text and label. It brings program, resources and "
        "export, and a name made of that of the data; data may be the source alone",
        examples=["text-classification"],
    )
    strategy: Strategy | None = Field(
        None,
        description="How the learners exchange gradients, if the platform is to know: shared_memory are processes of "
        "one pod, resources.processes_per_learner of them or one for each CPU core, which updraft_learner.shared.train "
        "starts. Without it, that is the program's own matter",
        examples=["shared_memory"],
    )
    resources: Resources = Field(Resources(), description="What each learner gets")
    pod: Pod | None = Field(
        None, description="Where the job's pods may run and what they get, within the policy of the tenant"
    )
    elastic: Elastic | None = Field(None, description="How far the job may shrink and grow while it runs")
    data: Annotated[
        tuple[Data, ...], Field(strict=False, max_length=limits.LISTED), BeforeValidator(values.check_suites)
    ] = Field((), description="Data sets of the job")
    init_from: Annotated[Text, AfterValidator(values.check_init_from)] | None = Field(
        None,
        description="Checkpoint of another job that the training begins with, in the folder UPDRAFT_INIT_FROM: "
        "champion (the newest one of the champion's job; none if there is no champion), a job, or job/checkpoint. "
        "Without it the training begins from scratch",
        examples=["champion"],
    )
    checkpoints: Checkpoints | None = Field(
        None, description="Checkpoints; without this section none are expected, and those that appear are kept anyway"
    )
    metrics: Annotated[tuple[MetricsSource, ...], Field(strict=False, max_length=MOST_COLLECTORS)] = Field(
        (),
        description="Metrics taken from what the program prints or writes, besides those that it reports itself",
        examples=[[{"type": "regex", "pattern": "loss %{FLOAT:loss}"}]],
    )
    results: Results | None = Field(
        None, description="A bucket of your own that the results are written to as well; the platform keeps them anyway"
    )
    evaluate: Evaluate | None = Field(None, description="A command that judges the trained model")
    budget: Budget = Field(Budget(), description="What the job may spend")
    failures: Annotated[tuple[Failure, ...], Field(strict=False, max_length=50)] = Field(
        (), description="Ways to fail that the job knows better than the platform; the first that is met counts"
    )
    export: Export | None = Field(None, description="Export, registration and promotion of the model")
    notify: Notify | None = Field(None, description="Who is told what about the job")
    schedule: Schedule | None = Field(None, description="When a manifest in `jobs/` runs by itself")
    annotations: Annotated[
        dict[str, Any], PlainValidator(values.check_annotations), WithJsonSchema({"type": "object"})
    ] = Field(
        {}, description="Notes kept with the job; the platform does not act on them", examples=[{"ticket": "V-12"}]
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_task(cls, raw: object) -> object:
        return expanded(raw) if isinstance(raw, Mapping) else raw

    @model_validator(mode="before")
    @classmethod
    def _learners_of_elastic(cls, raw: object) -> object:
        """Fill in the fewest learners of an elastic job that does not name its learners."""
        if not isinstance(raw, Mapping) or not isinstance(elastic := raw.get("elastic"), Mapping):
            return raw
        resources = raw.get("resources", {})
        if not isinstance(resources, Mapping) or "learners" in resources:
            return raw
        return {**raw, "resources": {**resources, "learners": elastic.get("min_learners", 1)}}

    def lr_scale(self, batch: int | None) -> float:
        """Return the factor of the learning rate for this global batch."""
        elastic = self.elastic
        if elastic is None or elastic.min_batch is None or batch is None or elastic.lr == "none":
            return 1.0
        ratio = batch / elastic.min_batch
        return ratio if elastic.lr == "linear" else ratio**0.5

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        from updraft.manifest.checks import cross_field_errors

        values.raise_all(cross_field_errors(self.canonical()))
        return self

    def canonical(self) -> dict[str, Any]:
        """Return the manifest as plain JSON values, with every default written out.

        `parse` makes an equal manifest of them.

        Example:
            Manifest.model_validate(raw).canonical()["resources"]["memory"]  # "2GiB"
        """
        return self.model_dump(mode="json", by_alias=True)

    def given(self) -> dict[str, Any]:
        """Return what was written, as plain JSON values, without the defaults of what was left out. `parse` makes an
        equal manifest of them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, in hexadecimal. Equal manifests have equal digests."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def parsed_code(self) -> Source | None:
        """Return the source of the code, split into its parts; None if the image holds the code."""
        return None if self.code is None else parse_source(self.code, git=True)
