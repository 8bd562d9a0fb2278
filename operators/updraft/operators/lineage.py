"""Say in OpenLineage's terms what a task read and made.

The provider `apache-airflow-providers-openlineage` (extra `openlineage`) asks each operator when its task has ended, in
a process that it forks, and sends the answer with its event. An operator notes what it knows while it runs, so that the
answer needs neither ledger nor network. Without the provider, the notes are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from updraft.ledger import Job

PRODUCER = "updraft"


@dataclass(frozen=True)
class DatasetVersion:
    """One version of a dataset.

    namespace, name: As OpenLineage names datasets: https://openlineage.io/docs/spec/naming.
    version: Of data, the tree of the content store; of a model, its version in MLflow.
    """

    namespace: str
    name: str
    version: str
    bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class Lineage:
    """What one task read and made, and facts of its job."""

    inputs: tuple[DatasetVersion, ...] = ()
    outputs: tuple[DatasetVersion, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


class TellsLineage:
    """An operator that tells the OpenLineage provider what its task read and made."""

    lineage: Lineage | None = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Return what `lineage` has in the provider's form. Called by the provider alone."""
        return None if self.lineage is None else _facets(self.lineage)


def trained_on(job: Job) -> tuple[DatasetVersion, ...]:
    """Return the data sets of a job whose data is staged."""
    return tuple(_data(record, job) for record in job.data or ())


def model(tenant: str, name: str, version: str, alias: str | None = None) -> DatasetVersion:
    """Return a version of a registered model, or the alias that is on it."""
    return DatasetVersion("updraft://models", f"{tenant}/{name}{'@' + alias if alias else ''}", version)


def facts_of(job: Job) -> dict[str, str]:
    """Return what connects a run of a task with the job: its id, MLflow's run and the code."""
    known = {"job": job.id, "mlflow_run": job.mlflow_run_id, "code_tree": job.code_tree}
    return {f"updraft.{key}": value for key, value in known.items() if value}


def _data(record: Mapping[str, Any], job: Job) -> DatasetVersion:
    parts = urlsplit(str(record["source"]))
    if parts.scheme in ("s3", "pvc"):
        namespace, name = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/"
    else:  # uploaded from the user's machine: it has no address of its own
        namespace, name = "updraft://uploads", f"{job.tenant}/{job.name}/{record['mount']}"
    return DatasetVersion(namespace, name, str(record["tree"]), int(record["bytes"]), int(record["files"]))


def _facets(lineage: Lineage) -> OperatorLineage[Any, Any]:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import tags_run

    facets = {}
    if lineage.tags:
        fields = [tags_run.TagsRunFacetFields(key, value, PRODUCER) for key, value in lineage.tags.items()]
        facets["tags"] = tags_run.TagsRunFacet(tags=fields)
    return OperatorLineage(inputs=_inputs(lineage.inputs), outputs=_outputs(lineage.outputs), run_facets=facets)


def _inputs(versions: Iterable[DatasetVersion]) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import input_statistics_input_dataset as statistics

    found = []
    for each in versions:
        size = statistics.InputStatisticsInputDatasetFacet(size=each.bytes, fileCount=each.files)
        facets: dict[str, Any] = {} if each.bytes is None else {"inputStatistics": size}
        found.append(InputDataset(each.namespace, each.name, facets=_version(each), inputFacets=facets))
    return found


def _outputs(versions: Iterable[DatasetVersion]) -> list[Any]:
    from openlineage.client.event_v2 import OutputDataset

    return [OutputDataset(namespace=each.namespace, name=each.name, facets=_version(each)) for each in versions]


def _version(each: DatasetVersion) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset

    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=each.version)}
