"""Find problems of a machine or a home, and say what to do about them. Called by the CLI."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time

from updraft.exceptions import RefusedError, UpdraftError
from updraft.settings import (
    NOT_ISOLATED,
    OPEN_ADVICE,
    OPEN_LOGIN,
    OPEN_VARIABLE,
    Settings,
    is_true,
    tenants_of,
)
from updraft.stack import config as configuration
from updraft.stack import environments, footprint
from updraft.stack.config import port_owner, port_taken
from updraft.stack.control import NEEDED, parts_of, running
from updraft.stack.files import AIRFLOW_PARALLEL_TASKS
from updraft.stack.layout import Home, StackError
from updraft.stack.not_starting import tasks_not_starting
from updraft.stack.probes import not_ready_because
from updraft.stack.records import read_part
from updraft.tenants import tenants_at_start

MAX_CLOCK_SKEW_SECONDS = 60.0
COMMAND_SECONDS = 60.0


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    detail: str
    advice: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def doctor(home: Home, kubeconfig: Path | None = None, context: str | None = None) -> list[Check]:
    """Run every check; none of them changes anything. `kubeconfig`: a cluster to look at in place of the home's."""
    return [
        _python(),
        _program("uv", _uv(home), "installs packages", "run `make up`, which installs it"),
        _program("git", shutil.which("git"), "fetches code of jobs", "install git"),
        _disk(home),
        *_environments(home),
        *_permissions(home),
        *_parts(home),
        *_tenants(),
        _login(home),
        *_cluster(home, kubeconfig, context),
    ]


def _python() -> Check:
    version = platform.python_version()
    ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check("Python", ok, version, "" if ok else "use Python 3.11, 3.12 or 3.13")


def _uv(home: Home) -> str | None:
    try:
        return environments.find_uv(home)
    except StackError:
        return None


def _program(name: str, path: str | None, use: str, advice: str) -> Check:
    if path is None:
        return Check(name, False, f"not found; it {use}", advice)
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return Check(name, False, f"{path} does not run ({type(exc).__name__})", advice)
    return Check(name, run.returncode == 0, run.stdout.strip() or run.stderr.strip(), advice if run.returncode else "")


def _disk(home: Home) -> Check:
    keys = tuple(f.key for f in footprint.DEMO)
    problem = environments.missing_space(home, keys)
    folder = home.root if home.root.exists() else home.repository
    free = footprint.size(shutil.disk_usage(folder).free)
    return Check("disk", problem is None, f"{free} free at {folder}", problem or "")


def _environments(home: Home) -> Iterator[Check]:
    try:
        uv = environments.find_uv(home)
        run = subprocess.run(
            [
                uv,
                "sync",
                "--frozen",
                "--extra",
                "platform",
                "--check",
                "--no-dev",
                "--inexact",
                "--no-install-workspace",
                "--python",
                sys.executable,
            ],
            cwd=home.repository,
            env={**os.environ, "UV_PROJECT_ENVIRONMENT": sys.prefix, "UV_PYTHON_DOWNLOADS": "never"},
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        ok = run.returncode == 0
    except (OSError, StackError, subprocess.TimeoutExpired):
        ok = False
    yield Check(
        "environment of the platform",
        ok,
        f"{sys.prefix} {'matches' if ok else 'does not match'} uv.lock",
        "" if ok else "run `make up`, which brings it in line",
    )
    for key in (footprint.MLFLOW.key, *environments.image_names(home)):
        title = footprint.known()[key].title if key in footprint.known() else key
        built = environments.is_built(home, key)
        missing = not built and key in NEEDED and running(home) is not None  # before a start, `updraft up` builds it
        detail = "built" if built else "gone, and the running stack needs it" if missing else "built when it is needed"
        advice = "run `updraft down`, then `updraft up`, which builds it" if missing else ""
        yield Check(f"environment of {title}", not missing, detail, advice)


def _permissions(home: Home) -> Iterator[Check]:
    for path in (
        home.secrets_file,
        home.credentials_file,
        home.kubeconfig,
        home.airflow / "airflow.cfg",
        home.airflow / "passwords.json",
        home.mlflow / "auth.ini",
        home.mlflow / "aws-credentials",
    ):
        if path.exists():
            yield _private(path)


def _private(path: Path) -> Check:
    mode = stat.S_IMODE(path.stat().st_mode)
    ok = mode & 0o077 == 0 and path.stat().st_uid == os.getuid()
    return Check(f"permissions of {path.name}", ok, f"{mode:04o}", "" if ok else f"run `chmod 600 {path}`")


def _parts(home: Home) -> Iterator[Check]:
    if not home.config_file.exists():
        yield Check("home", True, "not set up yet; `updraft up` does it")
        return
    try:
        parts = parts_of(home)
    except StackError as exc:
        yield Check("home", False, str(exc))
        return
    watcher = running(home)
    if watcher is None:
        yield Check("stack", True, "not running")
    for part in parts:
        if part.probe is None:
            continue
        record = read_part(home, part.name)
        if record is not None and record.alive():
            why = not_ready_because(part.probe)
            yield Check(
                part.title, why is None, why or f"answers (pid {record.pid})", "" if why is None else f"read {part.log}"
            )
        elif part.port is not None and port_taken(part.port, part.host):
            advice = f"stop that program, or `updraft up --port-{part.port_name} N`"
            yield Check(part.title, False, f"port {part.port} is taken by {port_owner(part.port)}", advice)
        elif watcher is not None:
            yield Check(part.title, False, "not running", f"it is being restarted; read {part.log}")
    if watcher is not None:
        stuck = tasks_not_starting(home.airflow_database, slots=AIRFLOW_PARALLEL_TASKS)
        advice = f"read {home.log_of('airflow-scheduler')}; it is started again by itself when it is to blame"
        yield Check("Airflow's tasks", stuck is None, stuck or "those that are queued start", advice if stuck else "")
        yield _clock(configuration.load_config(home).url("s3"))


def _cluster(home: Home, kubeconfig: Path | None, context: str | None) -> Iterator[Check]:
    """Yield the cluster that is named, the home's own, or its local node where that runs."""
    from updraft.kubernetes.clients import cluster_api
    from updraft.kubernetes.kubeconfig import choose, client_of
    from updraft.kubernetes.preflight import examine

    if kubeconfig is None and home.config_file.exists():
        try:
            config = configuration.load_config(home)
        except StackError:  # another check reports it
            return
        if config.cluster is not None:
            kubeconfig, context = Path(config.cluster.kubeconfig), context or config.cluster.context
        elif (node := read_part(home, "node")) is not None and node.alive():
            kubeconfig = home.kubeconfig
    if (named := os.environ.get("KUBECONFIG")) and (kubeconfig is None or kubeconfig == home.kubeconfig):
        yield Check("KUBECONFIG", True, f"names {named}, which is not used; `updraft up --kubeconfig FILE` uses one")
    if kubeconfig is None:
        return
    try:
        chosen = choose(kubeconfig.expanduser(), context)
        core = cluster_api(client_of(chosen))
    except RefusedError as exc:
        problem, _, advice = str(exc).removeprefix("kubeconfig: ").partition("; ")
        yield Check("kubeconfig", False, problem, advice)
        return
    yield Check("kubeconfig", True, f"{chosen.path}, context {chosen.context}, {chosen.server}")
    for found in examine(core, _namespaces(), _gpu_types(home)):
        yield Check(found.name, found.ok, found.detail, found.advice)


def _tenants() -> Iterator[Check]:
    try:
        names = tenants_at_start(os.environ).names
    except UpdraftError as exc:
        problem, _, advice = str(exc).rpartition("; ")
        yield Check("tenants", False, problem, advice)
        return
    if len(names) > 1:
        yield Check("tenants", True, f"{', '.join(names)} {NOT_ISOLATED}")


def _login(home: Home) -> Check:
    """Check the log-in of the home's Airflow, or of one that takes its configuration from this environment."""
    written = ConfigParser(interpolation=None)
    written.read(home.airflow / "airflow.cfg")
    said = written.get("core", "simple_auth_manager_all_admins", fallback="")
    is_open = is_true(os.environ.get(OPEN_VARIABLE, "")) or is_true(said)
    return Check(
        "log-in", not is_open, OPEN_LOGIN if is_open else "Airflow asks for one", OPEN_ADVICE if is_open else ""
    )


def _namespaces() -> list[str]:
    """Return the namespaces as the platform's processes will have them, whatever else their settings lack here."""
    fields = Settings.model_fields
    prefix = os.environ.get("UPDRAFT_NAMESPACE_PREFIX") or str(fields["namespace_prefix"].default)
    try:
        names = tenants_at_start(os.environ).names
    except UpdraftError:
        names = tenants_of(os.environ)[0]  # the check of the tenants says what is wrong
    return [f"{prefix}{tenant}" for tenant in names]


def _gpu_types(home: Home) -> dict[str, str]:
    """Return the types of GPU that the manifests in jobs/ ask for, and which manifests do."""
    from updraft.manifest import load_jobs

    asked: dict[str, list[str]] = {}
    for job in load_jobs(home.repository / "jobs"):
        kind = job.manifest.resources.gpu_type if job.manifest else None
        if kind:
            asked.setdefault(kind, []).append(f"jobs/{job.path.parent.name}")
    return {kind: ", ".join(names) for kind, names in asked.items()}


def _clock(url: str) -> Check:
    """Check the clocks. S3 refuses requests whose time is far from its own; here both are this machine's, unless the
    clock jumps."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method="HEAD"), timeout=5) as response:
            header = response.headers.get("Date")
    except urllib.error.HTTPError as exc:
        header = exc.headers.get("Date")
    except OSError as exc:
        return Check("clock", False, f"{url} does not answer ({exc})", "see the check of the S3 server")
    skew = abs(time() - parsedate_to_datetime(header).timestamp()) if header else 0.0
    ok = skew <= MAX_CLOCK_SKEW_SECONDS
    return Check("clock", ok, f"{skew:.0f} s from the store's", "" if ok else "set the machine's clock")
