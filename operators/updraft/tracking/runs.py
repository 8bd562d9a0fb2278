"""Use a job's MLflow run: opened once, the same for all tasks and attempts, with the verdict's status at the end.

Called by the operators. A second call of each function changes nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from updraft.exceptions import NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft_learner.mlflow_rest import TAG_MODEL_NEWEST, TAG_ROOT_RUN

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TAG_JOB = "updraft.job_id"
TAG_TENANT = "updraft.tenant"
TAG_CHAMPION = "updraft.champion"  # of a run below a job's run: the version that is evaluated
TAG_PARENT = "mlflow.parentRunId"  # MLflow shows a run with it below that run
PARAM_LIMIT = 6_000  # MLflow's limit for a param's value
PARAMS_PER_REQUEST = 100
GRANT_TRIES, GRANT_SECONDS = 10, 0.5
GONE = "RESOURCE_DOES_NOT_EXIST"
MAY_HELP = frozenset({408, 409, 425, 429, 499})  # 4xx statuses after which a retry may help
DATABASE_TROUBLE = "sqlalche.me/"  # in every error text of SQLAlchemy, the library behind MLflow's database


@dataclass(frozen=True)
class RunRef:
    run_id: str
    experiment_id: str


def open_run(
    client: MlflowClient,
    *,
    job_id: str,
    experiment: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    manifest: Mapping[str, Any],
) -> RunRef:
    """Return the job's run, created at the first call and found by its tag at every later one.

    Raises UnavailableError when the tracking server does not answer.
    """
    from mlflow.entities import Param, RunTag

    with answering(client):
        experiment_id = experiment_of(client, experiment)
        run = _find(client, experiment_id, job_id)
        if run is None:
            run = client.create_run(
                experiment_id, run_name=job_id, tags={TAG_JOB: job_id, **{k: v[:5000] for k, v in tags.items()}}
            )
        known = run.data.params
        fresh = [Param(k, str(v)[:PARAM_LIMIT]) for k, v in params.items() if k not in known]
        client.log_batch(run.info.run_id, tags=[RunTag(k, v[:5000]) for k, v in tags.items()])
        for start in range(0, len(fresh), PARAMS_PER_REQUEST):
            client.log_batch(run.info.run_id, params=fresh[start : start + PARAMS_PER_REQUEST])
        client.log_text(run.info.run_id, json.dumps(manifest, indent=2, sort_keys=True), "manifest.json")
    return RunRef(run.info.run_id, experiment_id)


@contextmanager
def answering(client: MlflowClient) -> Iterator[None]:
    """Turn MLflow's errors, and those of its HTTP library that it lets through, into the platform's.

    Raises NotFoundError for what does not exist (any more), RefusedError for what a retry would not cure, and
    UnavailableError for all else: no answer, an overloaded or broken server, a lost race.
    """
    from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS, MlflowException
    from requests import RequestException

    try:
        yield
    except MlflowException as exc:
        raise _error(client, ERROR_CODE_TO_HTTP_STATUS.get(exc.error_code, 500), exc.error_code, str(exc)) from exc
    except RequestException as exc:
        status = exc.response.status_code if exc.response is not None else None
        raise _error(client, status, GONE if status == 404 else "", str(exc)) from exc


def _error(client: MlflowClient, status: int | None, code: str, text: str) -> UpdraftError:
    server, said = f"MLflow at {client.tracking_uri}", text[:300]
    if code == GONE:
        return NotFoundError(f"{server}: {said}")
    # The server answers 400 if its own database failed; the request is not at fault then.
    if status is None or not 400 <= status < 500 or status in MAY_HELP or DATABASE_TROUBLE in text:
        return UnavailableError(f"{server} did not do what was asked: {said}")
    if status in (401, 403):
        return RefusedError(f"{server} does not let the platform do this; check its credentials: {said}")
    return RefusedError(f"{server} refused: {said}")


def experiment_of(client: MlflowClient, name: str, *, pause_seconds: float = GRANT_SECONDS) -> str:
    """Return the id of the experiment, which is created if it does not exist.

    The server's authentication grants a new experiment to its creator a moment after it exists. Another first job of
    the series that asks in between is refused, and asks again after `pause_seconds`.
    """
    from mlflow.exceptions import MlflowException
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

    def not_granted_yet(exc: BaseException) -> bool:
        return isinstance(exc, MlflowException) and exc.error_code == "PERMISSION_DENIED"

    for attempt in Retrying(
        retry=retry_if_exception(not_granted_yet),
        stop=stop_after_attempt(GRANT_TRIES),
        wait=wait_fixed(pause_seconds),
        reraise=True,
    ):
        with attempt:
            return _found_or_made(client, name)
    raise AssertionError("not reached")


def _found_or_made(client: MlflowClient, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # two first jobs of a series at once: the other one has created it
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _find(client: MlflowClient, experiment_id: str, job_id: str) -> Run | None:
    runs = client.search_runs(
        [experiment_id], filter_string=f"tags.`{TAG_JOB}` = '{job_id}'", max_results=5, order_by=["start_time ASC"]
    )
    return runs[0] if runs else None


def open_child(client: MlflowClient, run_id: str, experiment_id: str, name: str) -> str:
    """Return the run below the job's run that what the platform evaluates under this name logs to; made at the first
    call. Raises UnavailableError."""
    with answering(client):
        which = f"{name} beside {run_id}"
        found = client.search_runs([experiment_id], filter_string=f"tags.`{TAG_CHAMPION}` = '{which}'")
        if found:
            return str(found[0].info.run_id)
        tags = {TAG_PARENT: run_id, TAG_ROOT_RUN: run_id, TAG_CHAMPION: which}
        return str(client.create_run(experiment_id, run_name=f"champion: {name}", tags=tags).info.run_id)


def attach_page(client: MlflowClient, run_id: str, model_id: str | None, path: str, page: str) -> None:
    """Write a page into the artifacts of the run, and into those of the model that the run logged. A later call
    replaces it."""
    with answering(client):
        client.log_text(run_id, page, path)
        if model_id is not None:
            with tempfile.TemporaryDirectory(prefix="updraft-page-") as folder:
                target = Path(folder) / path
                target.parent.mkdir(parents=True)
                target.write_text(page, encoding="utf-8")
                client.log_model_artifacts(model_id, folder)


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    with answering(client):
        client.log_batch(run_id, tags=[RunTag(k, str(v)[:5000]) for k, v in tags.items()])


def requested_model(client: MlflowClient, run_id: str) -> str | None:
    """Return the name under which the job's program asked to register its model last; None if it did not ask."""
    with answering(client):
        text = client.get_run(run_id).data.tags.get(TAG_MODEL_NEWEST)
    try:
        name = json.loads(text or "{}").get("name")
    except (ValueError, AttributeError):
        return None
    return str(name) if name else None


def metrics(client: MlflowClient, run_id: str) -> dict[str, float]:
    """Return the last value of each metric of the run."""
    with answering(client):
        return dict(client.get_run(run_id).data.metrics)


def metrics_of(
    client: MlflowClient, experiment_ids: Sequence[str], run_ids: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the last value of each metric of each run, by run, in one request. Deleted runs are left out."""
    listed = ",".join(f"'{run_id}'" for run_id in run_ids)
    with answering(client):
        found = client.search_runs(
            list(experiment_ids), f"attributes.run_id IN ({listed})", max_results=max(len(run_ids), 1)
        )
    return {run.info.run_id: dict(run.data.metrics) for run in found}


def log_json(client: MlflowClient, run_id: str, path: str, document: Any) -> None:
    """Write a small JSON document into the run's artifacts; a later call replaces it."""
    with answering(client):
        client.log_text(run_id, json.dumps(document, indent=2), path)


def _source_type(source: str) -> str:
    scheme = source.partition("://")[0]
    return scheme if scheme in ("s3", "pvc") else "updraft"


def log_datasets(client: MlflowClient, run_id: str, data: Sequence[Mapping[str, Any]]) -> None:
    """Name the data that the run was given: source, digest of its content, number of files."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(
                name=str(item["source"])[:500],
                digest=str(item["tree"])[:36],
                source_type=_source_type(str(item["source"])),
                source=json.dumps({"uri": item["source"], "tree": item["tree"]}),
                profile=json.dumps({"files": item["files"], "bytes": item["bytes"]}),
            ),
            [InputTag("mlflow.data.context", str(item["mount"]))],
        )
        for item in data
    ]
    if inputs:
        with answering(client):
            client.log_inputs(run_id, inputs)
