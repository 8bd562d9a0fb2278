"""Build the program of each role from a job's manifest and the site's settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from updraft.controller import environments
from updraft.controller.processes import devices_of, nccl_of, processes_in, shared_memory_of, started
from updraft.controller.records import disk_amounts, memory_limit_mib, memory_mib
from updraft.kubernetes import objects
from updraft.kubernetes.launch import Program
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.pod_section import extras_of
from updraft.lifecycle.workflow import (
    BEFORE_ROLES,
    BUILD_ROLE,
    EVALUATE_ROLE,
    EXPORT_ROLE,
    PREPARE_ROLE,
    TRAIN_ROLE,
    compares,
    evaluates_champion,
)
from updraft.taints import GPU_RESOURCE, GPU_TAINT
from updraft_learner import contract
from updraft_learner.prepare.documents import CREDENTIALS

if TYPE_CHECKING:
    from updraft.manifest import Manifest
    from updraft.settings import Settings

PREPARE_CPUS = 1.0  # a suite's libraries take seconds of a whole CPU to load
# -I: neither the working directory nor an environment variable changes where Python looks for modules.
PREPARE_COMMAND = "exec python -I -m updraft_data"
EXPORT_COMMAND = "exec python -I -m updraft_learner.export"
COMPARE_COMMAND = "exec python -I -m updraft_data.compare"


def command_of(manifest: Manifest, role: str) -> str | None:
    """Return the role's command, a line of shell; None if the manifest does not ask for the role."""
    from updraft.manifest import render_command

    if role == TRAIN_ROLE:
        return _with_scripts(manifest, render_command(manifest))
    if role == PREPARE_ROLE:
        return PREPARE_COMMAND
    if role == BUILD_ROLE:
        return environments.BUILD_COMMAND if manifest.environment else None
    if compares(role):
        return COMPARE_COMMAND
    if role == EVALUATE_ROLE or evaluates_champion(role):
        evaluation = render_command(manifest, manifest.evaluate.command) if manifest.evaluate else None
        return None if evaluation is None else _with_scripts(manifest, evaluation)
    if manifest.export is None:
        return None
    return f"{EXPORT_COMMAND} --formats {','.join(manifest.export.formats)}"


def _with_scripts(manifest: Manifest, command: str) -> str:
    """Return the command in a shell that finds the scripts of the job's packages: a pod cannot extend its image's
    PATH."""
    return f'PATH="{contract.ENVIRONMENT_DIR}/bin:$PATH"; export PATH; {command}' if manifest.environment else command


def program_of(
    settings: Settings,
    manifest: Manifest,
    launch: Launch,
    command: str,
    *,
    run_id: str = "",
    experiment_id: str = "",
    proxies: Mapping[str, str] | None = None,
) -> Program:
    """Return the program of the launch's role.

    `run_id`, `experiment_id`: the job's in MLflow; `proxies`: environment variables with which git reaches the outside.
    Raises ManifestError if the platform has no image for it.
    """
    resources, role = manifest.resources, launch.role
    requests = {"cpu": f"{resources.cpus:g}", "memory": f"{memory_mib(manifest)}Mi"}
    limits = {**requests, "memory": f"{memory_limit_mib(settings, manifest, role)}Mi"}
    selector: dict[str, str] = {}
    if role == PREPARE_ROLE or compares(role):  # alone in the job's grant, which has room for one learner at least
        limits["cpu"] = f"{max(resources.cpus, PREPARE_CPUS):g}"
    elif resources.gpus and role != BUILD_ROLE:
        requests[GPU_RESOURCE] = limits[GPU_RESOURCE] = str(resources.gpus)
        selector = {"updraft.dev/gpu-type": resources.gpu_type} if resources.gpu_type else {}
    if role == TRAIN_ROLE:
        devices = devices_of(settings, manifest)
        requests, limits = {**requests, **devices}, {**limits, **devices}
    disk_request, disk_limit = disk_amounts(settings, manifest)
    return Program(
        image=_image(manifest, role, settings),
        command=started(settings, manifest, role, command),
        requests={**requests, objects.DISK_RESOURCE: disk_request},
        limits={**limits, objects.DISK_RESOURCE: disk_limit},
        environment=_environment(settings, manifest, launch, command, run_id, experiment_id, proxies or {}),
        node_selector={**(manifest.pod.node_selector if manifest.pod else {}), **selector},
        # The job's grant is on nodes with GPUs.
        tolerations=(
            *(manifest.pod.tolerated if manifest.pod else ()),
            *((GPU_TAINT,) if (role in BEFORE_ROLES or compares(role)) and resources.gpus else ()),
        ),
        extras=extras_of(manifest.pod, users_program=role in (TRAIN_ROLE, EVALUATE_ROLE) or evaluates_champion(role)),
    )


def _image(manifest: Manifest, role: str, settings: Settings) -> str:
    from updraft.manifest import export_image_of, image_of

    if role == EXPORT_ROLE:
        return export_image_of(manifest, settings.framework_images, settings.sidecar_image)
    if role == PREPARE_ROLE or compares(role):
        return settings.data_image
    return image_of(manifest, settings.framework_images)


def _environment(
    settings: Settings,
    manifest: Manifest,
    launch: Launch,
    command: str,
    run_id: str,
    experiment_id: str,
    proxies: Mapping[str, str],
) -> list[objects.Manifest]:
    from updraft.kubernetes.secrets import object_name

    checkpoints = manifest.checkpoints
    platform = contract.learner_environment(
        job_id=launch.job_id,
        role=launch.role,
        attempt=launch.attempt,
        learner=1,
        learners=launch.membership.size,
        gpus=manifest.resources.gpus,
        run_id=run_id,
        experiment_id=experiment_id,
        master_addr=launch.master_address,
        master_port=contract.MASTER_PORT,
        command=command,
        checkpoint_seconds=checkpoints.every.total_seconds() if checkpoints and checkpoints.every else None,
        processes=processes_in(manifest, launch.role) or max(1, manifest.resources.gpus),
        batch=launch.batch,
        lr_scale=launch.lr_scale,
        coordinator=launch.coordinator_address if launch.in_place else None,
        hang_seconds=settings.elastic_hang_seconds,
    )
    if launch.role == BUILD_ROLE:
        own = objects.environment({**platform, **proxies}, ())
        return [*own, *environments.log_ins(settings, manifest)]
    platform |= (shared := shared_memory_of(manifest, launch.role))
    processes = processes_in(manifest, launch.role) or int(shared.get(contract.SHARED_LEARNERS_ENV, 1))
    threads = {"OMP_NUM_THREADS": str(max(1, int(manifest.resources.cpus / processes)))}
    if launch.role == EXPORT_ROLE or compares(launch.role):
        return objects.environment({**threads, **platform}, ())
    if launch.role == PREPARE_ROLE:
        own = objects.environment({**threads, **platform, contract.ROOT_ENV: contract.ROOT_DIR, **proxies}, ())
        return [*own, *_code_credentials(manifest.code_secret)]
    secrets = tuple((s.env_name, object_name(s.name), s.key) for s in manifest.secrets)
    variables = with_packages(manifest.env) if manifest.environment else dict(manifest.env)
    if manifest.init_from is not None and launch.role == TRAIN_ROLE:
        platform[contract.INIT_FROM_ENV] = contract.INIT_DIR
    return objects.environment({**threads, **nccl_of(settings, manifest), **variables, **platform}, secrets)


def with_packages(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program that has packages beside its image: Python finds them before the image's."""
    paths = [contract.ENVIRONMENT_DIR, variables.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": ":".join(path for path in paths if path)}


def git_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy variables of `environment` that git needs in a pod, without proxies that hold a password."""
    names = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    return {name: environment[name] for name in names if "@" not in environment.get(name, "@")}


def _code_credentials(secret: str | None) -> list[objects.Manifest]:
    """Return the entries that give git the secret; each key of the secret is optional."""
    from updraft.kubernetes.secrets import object_name

    if secret is None:
        return []
    name = object_name(secret)
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": True}}}
        for key, variable in CREDENTIALS.items()
    ]
