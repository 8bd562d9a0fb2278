"""Compare a job's new version with the champion, for the manifest's `export.gate`: what the pods get, and what they
found.

A comparison is made once for each champion: if another version becomes the champion before the promotion is decided,
the new version is compared again, in pods of other roles (`workflow.champion_role`, `workflow.compare_role`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from updraft.controller.data_versions import champions_job
from updraft.controller.records import manifest_of
from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, champion_role, compare_role, compares
from updraft.mlflow_pages import artifact_page
from updraft.recovery.outcome import FailureClass
from updraft_data.gate import TEXT_CHARACTERS, CompareRequest, judge, verdict
from updraft_learner import contract
from updraft_learner.contract import InputFile, Keys

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job
    from updraft.manifest import Manifest
    from updraft.manifest.gate import Gate
    from updraft.services import Services
    from updraft.tracking import VersionRef

ARTIFACTS = "gate"  # folder of the run's artifacts
REPORT = f"{ARTIFACTS}/{contract.GATE_REPORT_FILE}"


@dataclass(frozen=True)
class ComparedChampion:
    """The champion that a job's version is compared with.

    Args:
        version: None if there is no champion.
        job: The job that made it; None if no job of the tenant did.
        evaluated: Whether this job's evaluation is run on it.
        run_id: The run in MLflow that this evaluation logs to.
        problem: Why it cannot be evaluated; None if it can, or need not be.
    """

    version: str | None = None
    job: str | None = None
    evaluated: bool = False
    run_id: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class GateResult:
    """Whether a gate is passed, and why."""

    passed: bool
    reason: str


def _key(role: str) -> IdempotencyKey[ComparedChampion]:
    """Return the key of the champion that the role, of either kind, is about."""
    return IdempotencyKey(f"compared with {role.partition('-')[2]}", ComparedChampion)


def of_role(services: Services, job_id: str, role: str) -> ComparedChampion | None:
    """Return the champion that this role evaluates or compares with; None for every other role."""
    return services.ledger.idempotency.get(job_id, _key(role)) if "-" in role else None


def begin(services: Services, job: Job, gate: Gate, champion: VersionRef | None) -> ComparedChampion:
    """Return what the job's version is compared with, recorded once for each champion. Raises UnavailableError."""
    key = _key(compare_role(champion.version if champion else None))
    found = services.ledger.idempotency.get(job.id, key)
    return found or services.ledger.idempotency.record(job.id, key, _look(services, job, gate, champion))


def _look(services: Services, job: Job, gate: Gate, champion: VersionRef | None) -> ComparedChampion:
    from updraft import tracking
    from updraft.storage.comparisons import has_results

    if champion is None:
        return ComparedChampion()
    version = champion.version
    made_by = champions_job(services, job, champion)
    if made_by is None:
        return ComparedChampion(version, problem="no job of this platform made it")
    if not gate.compares:
        return ComparedChampion(version, made_by.id)
    if not has_results(job.tenant, made_by.id, store=services.store):
        problem = f"the results of job {made_by.id}, which made it, are no longer stored"
        return ComparedChampion(version, made_by.id, problem=problem)
    run_id = None
    if job.mlflow_run_id and job.mlflow_experiment_id:
        run_id = tracking.open_child(
            services.tracking, job.mlflow_run_id, job.mlflow_experiment_id, f"{champion.name} version {version}"
        )
    return ComparedChampion(version, made_by.id, evaluated=True, run_id=run_id)


def run_of(services: Services, job: Job, role: str) -> str | None:
    """Return the run in MLflow that a role's program logs to: the champion's evaluation has its own, so that its
    metrics are not taken for the new version's."""
    compared = None if compares(role) else of_role(services, job.id, role)
    return job.mlflow_run_id if compared is None else compared.run_id


def hand_over(services: Services, job: Job, attempt: Attempt) -> tuple[InputFile, ...]:
    """Write the request of a comparison's pod, and return the files that it reads."""
    from updraft.storage import comparisons

    compared = of_role(services, job.id, attempt.role)
    assert compared is not None  # recorded before the role's first attempt
    manifest, keys = manifest_of(job), Keys(job.tenant)
    request = request_of(services, job, manifest, compared)
    comparisons.put_request(job.tenant, job.id, attempt.role, attempt.number, request, store=services.store)
    results = keys.results(job.id, EVALUATE_ROLE, 1)
    export = keys.results(job.id, EXPORT_ROLE, 1)
    files = [
        InputFile(contract.COMPARE_REQUEST, keys.compare_request(job.id, attempt.role, attempt.number)),
        InputFile(contract.CHALLENGER_PREDICTIONS, f"{results}/{contract.PREDICTIONS}"),
        InputFile(contract.CHALLENGER_EXPORT, f"{export}/{contract.EXPORT_REPORT}"),
    ]
    if compared.version is not None and compared.evaluated:
        role = champion_role(compared.version)
        files.append(
            InputFile(contract.CHAMPION_PREDICTIONS, f"{keys.results(job.id, role, 1)}/{contract.PREDICTIONS}")
        )
    if compared.job is not None:
        other = keys.results(compared.job, EXPORT_ROLE, 1)
        files.append(InputFile(contract.CHAMPION_EXPORT, f"{other}/{contract.EXPORT_REPORT}"))
    return tuple(files)


def request_of(services: Services, job: Job, manifest: Manifest, compared: ComparedChampion) -> CompareRequest:
    """Return what the pod is asked. Its rules are the manifest's."""
    from updraft.controller.idempotency import MODEL_VERSION

    export = manifest.export
    assert export is not None
    assert export.gate is not None
    problem = compared.problem
    if compared.version is not None and compared.evaluated:
        attempt = services.ledger.attempts.current(job.id, champion_role(compared.version))
        if attempt is None or attempt.outcome != FailureClass.DONE:
            why = attempt.reason if attempt is not None else "it was never launched"
            problem = f"this job's evaluate failed on it: {why}"
    version = services.ledger.idempotency.get(job.id, MODEL_VERSION)
    return CompareRequest(
        rules=export.gate.rules,
        model=f"{version.name} version {version.version}" if version else str(export.register_as),
        champion=compared.version,
        problem=problem[:TEXT_CHARACTERS] if problem else None,
        validated=bool(manifest.data) and all(item.expectations is not None for item in manifest.data),
        trusted=export.trust_code,
    )


def result(services: Services, job: Job, champion: str | None) -> GateResult | None:
    """Return whether the gate is passed against this champion; None if the two were not compared yet.

    Raises UnavailableError.
    """
    from updraft.storage import comparisons

    role = compare_role(champion)
    compared = of_role(services, job.id, role)
    attempt = services.ledger.attempts.current(job.id, role)
    if compared is None or attempt is None or attempt.ended_at is None or attempt.relaunch is not None:
        return None
    if attempt.outcome != FailureClass.DONE:
        return GateResult(False, f"the comparison with the champion failed: {attempt.reason}")
    found = comparisons.read(job.tenant, job.id, role, store=services.store)
    return GateResult(*verdict(judge(request_of(services, job, manifest_of(job), compared), found)))


def reported(services: Services, job_id: str, champion: str | None) -> bool:
    """Return whether the comparison with this champion has ended, its pods are gone, and MLflow has its report."""
    return services.ledger.idempotency.get(job_id, _reported(champion)) is not None


def attach_report(services: Services, job: Job, mine: VersionRef, champion: str | None) -> None:
    """Attach the report of the comparison to the version in MLflow, to the artifacts of its run and of its model, and
    record that. Twice is harmless."""
    from updraft import tracking
    from updraft.storage import comparisons

    gate = result(services, job, champion)
    assert gate is not None  # its pod has ended
    client, settings = services.tracking, services.settings
    tags = {
        "updraft.gate": f"{'passed' if gate.passed else 'not passed'}: {gate.reason}",
        "updraft.gate_champion": champion or "",
    }
    report = comparisons.report(job.tenant, job.id, compare_role(champion), store=services.store)
    if report is not None and job.mlflow_run_id:
        tracking.attach_page(client, job.mlflow_run_id, mine.model_id, REPORT, report)
        experiment_id = job.mlflow_experiment_id or ""
        page = artifact_page(settings.mlflow_browser_uri, experiment_id, job.mlflow_run_id, REPORT)
        tags["updraft.gate_report"] = page
    tracking.tag_version(client, mine, tags)
    services.ledger.idempotency.record(job.id, _reported(champion), True)


def _reported(champion: str | None) -> IdempotencyKey[bool]:
    return IdempotencyKey(f"report of {compare_role(champion)}", bool)
