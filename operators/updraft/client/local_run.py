"""Run a job's program as processes of this machine, without the platform: for trying a program before it is submitted.

The program finds the environment and the folders that it finds on the platform, below one folder of this machine. Its
Python and its packages are those of this machine; image, evaluation, export and registration are the platform's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from updraft.exceptions import DataError, RefusedError
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.manifest import FieldError, Manifest, ManifestError, render_command
from updraft.manifest.strategy import shared_learners
from updraft_learner import contract, trees
from updraft_learner.launcher_file import launcher_file

MARKER = ".updraft-run"  # only a folder that has it is removed for a fresh run
DEFAULT_FOLDER = "updraft-run"  # in the working folder; uploads and copies of code leave it out
TRACKING_FILE = "mlflow.db"
PACKAGES = "packages"  # holds `updraft_learner` alone, for programs that import it
STOP_SECONDS = 30.0


@dataclass(frozen=True)
class LocalRun:
    """How a local run ended, and what it left in its folder."""

    folder: Path
    exit_code: int

    @property
    def results(self) -> list[str]:
        """Return the files in RESULT_DIR, relative to it."""
        root = self.folder / "result"
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())

    @property
    def metrics(self) -> dict[str, float]:
        """Return the last value of each metric in the metrics file; a line that is no metric is passed over."""
        path = self.folder / "io" / "metrics.jsonl"
        found: dict[str, float] = {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with suppress(ValueError, AttributeError):
                found |= json.loads(line).get("metrics", {})
        return found

    @property
    def tracking_uri(self) -> str | None:
        """Return MLflow's address of what the program logged by MLflow; None if it logged nothing there."""
        path = self.folder / TRACKING_FILE
        return f"sqlite:///{path}" if path.exists() else None


def run_local(
    manifest: Manifest,
    base: Path,
    folder: Path,
    environment: Mapping[str, str],
    *,
    fresh: bool = False,
    to_stderr: bool = False,
) -> LocalRun:
    """Run the program in `folder` and wait for its end; its output goes to this process's.

    Checkpoints and results of earlier runs in `folder` are kept, so that a run goes on where the last one ended.

    Args:
        manifest: the job, with its local files checked.
        base: the folder that the manifest's local paths are relative to.
        environment: of this process; the program gets it, and secrets are taken from it.
        fresh: remove what earlier runs left in `folder`.
        to_stderr: send the program's standard output to standard error.

    Raises:
        ManifestError: names each field that needs the platform.
        RefusedError: `folder` holds something else or is in the code, or a secret is not in the environment.
        DataError: the code cannot be copied.
    """
    _check(manifest, environment)
    folder = folder.absolute()
    _require_outside(folder, base / str(manifest.code))
    _make(folder, fresh=fresh)
    attempt = _next_attempt(folder)
    _lay_code(manifest, base, folder)
    _link_data(manifest, base, folder)
    given = _environment(manifest, folder, environment, attempt)
    return LocalRun(folder, _run(manifest, folder, given, to_stderr))


def with_local_data(manifest: Manifest, given: Mapping[str, str]) -> Manifest:
    """Return the manifest with other sources for data sets: `given` maps their `as` to a folder or file.

    Raises:
        DataError: the manifest has no data set of that `as`, or there is no such folder or file.
    """
    raw = manifest.canonical()
    for mount, source in given.items():
        found = [item for item in raw["data"] if item["as"] == mount]
        if not found:
            known = ", ".join(item["as"] for item in raw["data"]) or "none"
            raise DataError(f"--data {mount}: the manifest has no data set of this `as`; it has {known}")
        path = Path(source).expanduser().absolute()
        if not path.exists():
            raise DataError(f"--data {mount}: {source} does not exist; give a folder or file of this machine")
        found[0].update(source=str(path), secret=None)
    return Manifest.model_validate(raw)


def _check(manifest: Manifest, environment: Mapping[str, str]) -> None:
    errors = []
    code = manifest.parsed_code()
    if code is None or code.kind != "local":
        errors.append(FieldError("code", manifest.code, "is fetched by the platform", "a folder beside the manifest"))
    for number, data in enumerate(manifest.data):
        if data.parsed().kind != "local":
            allowed = f"a folder or file of this machine, or give --data {data.mount}=FOLDER"
            errors.append(FieldError(f"data[{number}].source", data.source, "is fetched by the platform", allowed))
    if errors:
        raise ManifestError(errors)
    missing = sorted(secret.env_name for secret in manifest.secrets if secret.env_name not in environment)
    if missing:
        raise RefusedError(f"secrets: {', '.join(missing)} is not set here; export it, as the platform would set it")


def _require_outside(folder: Path, code: Path) -> None:
    """Refuse a folder that would be copied into itself, and uploaded with the code later."""
    with suppress(ValueError):
        inner = folder.resolve().relative_to(code.resolve())
        if DEFAULT_FOLDER not in inner.parts:
            allowed = f"give one outside it, or below a folder `{DEFAULT_FOLDER}`"
            raise RefusedError(f"{folder} is in the folder of the code, {code}; {allowed}, which uploads leave out")


def _make(folder: Path, *, fresh: bool) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise RefusedError(f"{folder} holds something else than a local run; give another folder with --folder")
    if fresh and folder.exists():
        shutil.rmtree(folder)
    for name in ("result", "checkpoints", "logs", "io", PACKAGES):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    (folder / ".gitignore").write_text("*\n")


def _next_attempt(folder: Path) -> int:
    counter = folder / "io" / "attempt"
    attempt = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(attempt))
    return attempt


def _lay_code(manifest: Manifest, base: Path, folder: Path) -> None:
    """Copy the files that an upload would take, so that the program cannot lack one on the platform alone."""
    target = folder / "code"
    if target.exists():
        shutil.rmtree(target)
    target.mkdir()
    try:
        for relative, path in trees.files_in(base / str(manifest.code)):
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / relative)
    except trees.TreeError as exc:
        raise DataError(f"code: {exc}") from exc


def _link_data(manifest: Manifest, base: Path, folder: Path) -> None:
    """Link each file of the data where the platform would lay it. The folders are real ones, because a program that
    walks them may not follow links."""
    target = folder / "data"
    if target.exists():
        shutil.rmtree(target)
    target.mkdir()
    for data in manifest.data:
        source = (base / data.source).resolve()
        files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        for path in files:
            place = target / data.mount / (path.name if path == source else path.relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)


def _environment(manifest: Manifest, folder: Path, environment: Mapping[str, str], attempt: int) -> dict[str, str]:
    checkpoints = manifest.checkpoints
    platform = contract.learner_environment(
        job_id=manifest.name,
        role=TRAIN_ROLE,
        attempt=attempt,
        learner=1,
        learners=1,
        gpus=manifest.resources.gpus,
        run_id="",
        experiment_id="",
        master_addr="127.0.0.1",
        master_port=_free_port(),
        command=render_command(manifest),
        checkpoint_seconds=checkpoints.every.total_seconds() if checkpoints and checkpoints.every else None,
        batch=manifest.elastic.batch(1) if manifest.elastic is not None else None,
    )
    if (sharing := shared_learners(manifest)) is not None:
        platform[contract.SHARED_LEARNERS_ENV] = str(sharing)
    here = {name: _here(value, folder) for name, value in platform.items() if not name.startswith("MLFLOW_RUN")}
    here.pop("MLFLOW_EXPERIMENT_ID", None)
    here["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / TRACKING_FILE}"
    here["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder / PACKAGES), environment.get("PYTHONPATH")]))
    params = folder / "io" / "params.json"
    params.write_text(json.dumps(dict(manifest.params), sort_keys=True, indent=1) + "\n", encoding="utf-8")
    _link_package(folder)
    return {**environment, "PATH": _path(environment.get("PATH", os.defpath)), **here, **manifest.env}


def _path(path: str) -> str:
    """Return PATH with a `python` at its end where there is only `python3`, or none."""
    return path if shutil.which("python", path=path) else os.pathsep.join([path, str(Path(sys.executable).parent)])


def _here(value: str, folder: Path) -> str:
    """Return a value of the platform's environment, with a path of the pod as a path below `folder`."""
    root = f"{contract.ROOT_DIR}/"
    return str(folder / value.removeprefix(root)) if value.startswith(root) else value


def _link_package(folder: Path) -> None:
    link = folder / PACKAGES / "updraft_learner"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(contract.__file__).parent)


def _run(manifest: Manifest, folder: Path, environment: dict[str, str], to_stderr: bool) -> int:
    """Start the launcher in the code's folder and wait for it; the signals of this process are passed on."""
    launcher = folder / "io" / "launcher.pyz"
    launcher.write_bytes(launcher_file())
    options = ["--processes", str(manifest.resources.learners), "--stop-seconds", f"{STOP_SECONDS:g}"]
    command = [sys.executable, "-I", str(launcher), *options, render_command(manifest)]
    out = sys.stderr.fileno() if to_stderr else None
    with subprocess.Popen(command, cwd=folder / "code", env=environment, stdout=out, start_new_session=True) as process:
        with _passing_on(process):
            return process.wait()


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into SIGTERM of the launcher, which ends the program within its time limit."""

    def stop(_number: int, _frame: object) -> None:
        process.terminate()

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
