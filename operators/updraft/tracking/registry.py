"""Use the model registry: one version per job, one move of the alias per promotion, however often a task runs.

The model folder was made and checked in a pod of the platform's image; nothing here loads the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from updraft.exceptions import RefusedError
from updraft.tracking.runs import TAG_JOB, TAG_TENANT, answering

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

CHAMPION = "champion"
PREVIOUS = "previous"  # the champion before, which a roll-back restores
MODELS = "models:/"
BATCH_METRICS = 1_000  # MLflow's limit for one request


@dataclass(frozen=True)
class VersionRef:
    name: str
    version: str
    model_id: str | None
    run_id: str
    job_id: str | None = None  # the platform's job that made it

    @property
    def label(self) -> str:
        """Return `digits version 3`."""
        return f"{self.name} version {self.version}"


def find_version(client: MlflowClient, name: str, run_id: str) -> VersionRef | None:
    """Return the version that this run has registered under the name, if any."""
    found = [v for v in client.search_model_versions(f"run_id = '{run_id}'") if v.name == name]
    return _ref(min(found, key=lambda v: int(v.version))) if found else None


def _ref(version: ModelVersion) -> VersionRef:
    model_id, source = version.model_id, version.source or ""
    if model_id is None and source.startswith(MODELS):  # the answer to a search leaves it empty
        model_id = source.removeprefix(MODELS)
    job_id = (version.tags or {}).get(TAG_JOB)
    return VersionRef(version.name, str(version.version), model_id, version.run_id or "", job_id)


def register(
    client: MlflowClient,
    *,
    name: str,
    folder: Path,
    job_id: str,
    run_id: str,
    experiment_id: str,
    params: Mapping[str, str],
    tags: Mapping[str, str],
    description: str,
) -> VersionRef:
    """Upload the MLflow model folder as a logged model of the run, and make one registry version of it.

    It may be interrupted and called again: an existing version of this run is returned, a logged model that is READY is
    used, and one that never became READY is replaced. The name is the tenant's by `claim`. Raises UnavailableError.
    """
    from mlflow.entities import LoggedModelOutput

    with answering(client):
        done = find_version(client, name, run_id)
        if done is not None:
            return done
        model_id = _logged_model(client, name, folder, job_id, run_id, experiment_id, params, tags)
        # The run's page shows the model that the run produced. The server refuses to log the same output twice.
        outputs = client.get_run(run_id).outputs
        if model_id not in {known.model_id for known in (outputs.model_outputs if outputs else ())}:
            client.log_outputs(run_id, [LoggedModelOutput(model_id, step=0)])
        version = client.create_model_version(
            name,
            source=f"{MODELS}{model_id}",
            run_id=run_id,
            tags={TAG_JOB: job_id, **tags},
            description=description,
            model_id=model_id,
        )
        return _ref(version)


def _logged_model(
    client: MlflowClient,
    name: str,
    folder: Path,
    job_id: str,
    run_id: str,
    experiment_id: str,
    params: Mapping[str, str],
    tags: Mapping[str, str],
) -> str:
    from mlflow.entities import LoggedModelStatus

    known = client.search_logged_models([experiment_id], filter_string=f"tags.`{TAG_JOB}` = '{job_id}'")
    for model in known:
        if model.source_run_id != run_id or model.name != name:
            continue
        if model.status == LoggedModelStatus.READY:
            return str(model.model_id)
        client.delete_logged_model(model.model_id)  # an interrupted upload
    model = client.create_logged_model(
        experiment_id,
        name=name,
        source_run_id=run_id,
        tags={TAG_JOB: job_id, **tags},
        params=dict(params),
        model_type="updraft",
    )
    client.log_model_artifacts(model.model_id, str(folder))
    _log_model_metrics(client, run_id, str(model.model_id))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)


def _log_model_metrics(client: MlflowClient, run_id: str, model_id: str) -> None:
    """Copy the run's own metrics, as of its end, to the model's page, with the data that it trained on.

    The points are those of the run, to the millisecond, so the run gets none twice.
    """
    from mlflow.entities import Metric

    run = client.get_run(run_id)
    datasets = [each.dataset for each in run.inputs.dataset_inputs] if run.inputs else []
    name, digest = (datasets[0].name, datasets[0].digest) if datasets else (None, None)
    points = [point for point in run.data.to_proto().metrics if not point.key.startswith("system/")]
    metrics = [
        Metric(p.key, p.value, p.timestamp, p.step, model_id=model_id, dataset_name=name, dataset_digest=digest)
        for p in points[:BATCH_METRICS]
    ]
    if metrics:
        client.log_batch(run_id, metrics=metrics)


def check_owner(client: MlflowClient, name: str, tenant: str) -> None:
    """Raise RefusedError when the registered model is not this tenant's, and cannot become it."""
    with answering(client):
        model = _find(client, name)
        if model is not None:
            _owner(client, model, tenant)


def claim(client: MlflowClient, name: str, tenant: str) -> None:
    """Make the registered model, or see that it is this tenant's: who moves its champion decides what others load.

    The first tenant that registers under a name owns it, by a tag that programs cannot set. The caller holds a lock
    on the name. Raises RefusedError and UnavailableError.
    """
    from mlflow.exceptions import MlflowException

    with answering(client):
        model = _find(client, name)
        if model is not None:
            if _owner(client, model, tenant) is None:
                client.set_registered_model_tag(name, TAG_TENANT, tenant)
            return
        try:
            client.create_registered_model(name, tags={TAG_TENANT: tenant})
        except MlflowException as exc:
            if exc.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            raise RefusedError(
                f"export.register_as: MLflow has a registered model {name!r} that the platform may not see; choose "
                "another name, or have MLflow's administrator let the platform's user manage it"
            ) from exc


def _find(client: MlflowClient, name: str) -> RegisteredModel | None:
    """Find the model by a search: if it does not exist, the server's authentication answers a direct request with
    403."""
    return next((m for m in client.search_registered_models(f"name = '{name}'") if m.name == name), None)


def _owner(client: MlflowClient, model: RegisteredModel, tenant: str) -> str | None:
    """Return this tenant, or None when no tenant owns the model yet. Raises RefusedError when it is another's."""
    owner: str | None = model.tags.get(TAG_TENANT)
    if owner is None:  # made by a person, or by an earlier version of the platform
        versions = client.search_model_versions(f"name = '{model.name}'")
        if not versions:
            return None
        owner = _made_by(client, sorted(versions, key=lambda v: int(v.version)))
        if owner is None:
            raise RefusedError(
                f"export.register_as: the registered model {model.name!r} has versions that no tenant's job made; "
                f"choose another name, or have MLflow's administrator set its tag {TAG_TENANT} to {tenant!r}"
            )
        if owner == tenant:
            client.set_registered_model_tag(model.name, TAG_TENANT, tenant)
    if owner != tenant:
        raise RefusedError(
            f"export.register_as: the registered model {model.name!r} is another tenant's; choose another name"
        )
    return owner


def _made_by(client: MlflowClient, versions: Sequence[ModelVersion]) -> str | None:
    """Return whose job made the first of these versions whose run still exists: `mlflow gc` removes deleted ones."""
    from mlflow.exceptions import MlflowException

    for version in versions:
        try:
            tags: Mapping[str, str] = client.get_run(version.run_id).data.tags if version.run_id else {}
        except MlflowException as exc:
            if exc.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            return tags.get(TAG_TENANT)
    return None


def champion(client: MlflowClient, name: str) -> tuple[VersionRef, dict[str, float]] | None:
    """Return the version that holds the alias, and the metrics of its run (none, if it has no run any more)."""
    from mlflow.exceptions import MlflowException

    with answering(client):
        if _find(client, name) is None:
            return None
        try:
            version = client.get_model_version_by_alias(name, CHAMPION)
        except MlflowException as exc:
            if exc.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
        try:
            metrics = dict(client.get_run(version.run_id).data.metrics) if version.run_id else {}
        except MlflowException as exc:
            if exc.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            metrics = {}
        return _ref(version), metrics


def owner_of(client: MlflowClient, name: str) -> str | None:
    """Return the tenant that owns the registered model; None for no model, and for one that no job registered."""
    with answering(client):
        model = _find(client, name)
    return None if model is None else model.tags.get(TAG_TENANT)


def find_version_number(client: MlflowClient, name: str, version: str) -> VersionRef | None:
    """Return a version by its number; None if the registry has none, or no longer."""
    with answering(client):
        found = client.search_model_versions(f"name = '{name}'")
    return next((_ref(each) for each in found if str(each.version) == version), None)


def move_champion(client: MlflowClient, name: str, version: str, previous: str | None) -> None:
    """Give the alias `champion` to a version, and `previous` to the one that a roll-back would restore.

    `previous` is moved first: a process that dies between the two does both again.
    """
    with answering(client):
        if previous is not None:
            client.set_registered_model_alias(name, PREVIOUS, previous)
        elif PREVIOUS in client.get_registered_model(name).aliases:
            client.delete_registered_model_alias(name, PREVIOUS)
        client.set_registered_model_alias(name, CHAMPION, version)


def tag_version(client: MlflowClient, version: VersionRef, tags: Mapping[str, str]) -> None:
    with answering(client):
        for key, value in tags.items():
            client.set_model_version_tag(version.name, version.version, key, value[:5000])
