"""Describe the stack's parts: a frozen value for each, from a pure function of home, config and secrets.

`supervisor` starts the parts; `status` shows them. A *service* runs until it is stopped; a *task* ends before the parts
that depend on it start.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from updraft.settings import Settings
from updraft.stack import environments
from updraft.stack.config import HOST, Config, Secrets, reveal
from updraft.stack.files import NODE_CACHE_CLAIM
from updraft.stack.layout import HOME_VARIABLE, MARK_VARIABLE, PART_VARIABLE, Home, bin_folder
from updraft.stack.processes import without_lines

GPU_TYPE = "nvidia"
CONNECTION = "AIRFLOW_CONN_UPDRAFT_KUBERNETES"
# Warnings of libraries about other libraries, at each start or before each task; only their authors can act on them.
# Each is named by the beginning of its text, so new warnings are still shown.
OTHERS_WARNINGS = (
    "ignore:GitWildMatchPattern ('gitwildmatch') is deprecated",  # Airflow's ignore files
    "ignore:Using `httpx` with `starlette.testclient` is deprecated",  # FastAPI, which Airflow imports as a whole
    "ignore:starlette.middleware.wsgi is deprecated",  # MLflow's server
)
# Variables of a user's shell that would change a part's behaviour.
FOREIGN_PREFIXES = ("AIRFLOW_", "AIRFLOW__", "MLFLOW_", "AWS_", "RCLONE_", "PYTHON", "VIRTUAL_ENV", "KUBECONFIG")


@dataclass(frozen=True)
class Probe:
    """The sign that a part is ready: a URL that answers; for Airflow's daemons, a component of its health report."""

    url: str
    any_answer: bool = False  # an error below 500 counts as an answer too (S3 wants a signature)
    component: str | None = None


@dataclass(frozen=True)
class Stamp:
    """The condition under which a task is skipped: `file` contains `text` and the products exist.

    A product without a stamp is incomplete: the process that made it was killed. SQLite's tables are not made in one
    transaction, so nothing can continue from there.
    """

    file: Path
    text: str
    products: tuple[Path, ...]
    made_by: str | None = None  # the service that makes the products at its first start; None: the task itself

    def current(self) -> bool:
        made = all(product.exists() for product in self.products)
        return made and self.file.is_file() and self.file.read_text() == self.text

    def to_be_made(self) -> bool:
        """Return whether the service makes all products itself, so that the task has nothing to update."""
        return self.made_by is not None and not any(product.exists() for product in self.products)

    def set_unfinished_aside(self) -> list[Path]:
        """Return where they are now, under names that are not requested."""
        if self.file.exists():
            return []
        found = [path for product in self.products for path in product.parent.glob(f"{product.name}*")]
        return [path.rename(path.with_name(f"unfinished-{path.name}")) for path in found]


@dataclass(frozen=True)
class Part:
    name: str
    title: str
    argv: tuple[str, ...]
    cwd: Path
    log: Path
    environment: Mapping[str, str] = field(repr=False)
    after: tuple[str, ...] = ()
    probe: Probe | None = None  # None: a task
    port: int | None = None
    host: str = HOST
    port_name: str | None = None  # its key in config.json and in `updraft up --port-<name>`
    ready_within_seconds: float = 180.0
    stop_within_seconds: float = 10.0
    stamp: Stamp | None = None
    runs_tasks: bool = False  # the other processes of its session are Airflow's tasks

    @property
    def is_task(self) -> bool:
        return self.probe is None

    @property
    def digest(self) -> str:
        """Return a digest that changes with everything of the platform that makes a running process of this part out of
        date."""
        ours = sorted(
            (name, value)
            for name, value in self.environment.items()
            if name.startswith(("UPDRAFT_", *FOREIGN_PREFIXES))  # a user's own values of these are dropped
        )
        return hashlib.sha256(json.dumps([self.argv, ours, str(self.cwd)]).encode()).hexdigest()


def base_environment(home: Home, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that every process of the stack starts from."""
    names = {f"UPDRAFT_{name.upper()}" for name in Settings.model_fields}
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(FOREIGN_PREFIXES)
        and (not name.startswith("UPDRAFT_") or name in names or name in environments.BUILDER_VARIABLES)
        # These belong to one terminal or shell; each start would look like a changed configuration.
        and name not in ("OLDPWD", "PWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES")
        # Container images set it. Without bytecode, each process and many tasks would compile their imports again.
        and name != "PYTHONDONTWRITEBYTECODE"
        and (not name.startswith(("MAKE", "MFLAGS", "SSH_", "UV_")) or name in environments.BUILDER_VARIABLES)
    }
    no_proxy = {HOST, "localhost", *filter(None, kept.get("NO_PROXY", kept.get("no_proxy", "")).split(","))}
    return {
        **kept,
        "PATH": os.pathsep.join(dict.fromkeys([str(bin_folder()), *kept.get("PATH", os.defpath).split(os.pathsep)])),
        "NO_PROXY": ",".join(sorted(no_proxy)),
        "no_proxy": ",".join(sorted(no_proxy)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": ",".join(OTHERS_WARNINGS),
        "SPT_NOENV": "1",  # process titles must not overwrite the environment, in which `down` finds the mark
        HOME_VARIABLE: str(home.root),
        MARK_VARIABLE: str(home.root),
    }


def _reaching(config: Config, environment: dict[str, str]) -> dict[str, str]:
    """Return the environment without proxies between the parts, wherever they listen."""
    direct = ",".join(dict.fromkeys([*environment["NO_PROXY"].split(","), config.host("s3")]))
    return {**environment, "NO_PROXY": direct, "no_proxy": direct}


def settings_environment(home: Home, config: Config) -> dict[str, str]:
    """Return `updraft.settings` as environment variables for Airflow's processes."""
    cache = {"UPDRAFT_NODE_CACHE_CLAIM": NODE_CACHE_CLAIM} if config.cluster is None else {}
    return {
        **cache,
        "UPDRAFT_LEDGER_URL": f"sqlite:///{home.ledger_file}",
        "UPDRAFT_S3_ENDPOINT": config.url("s3"),
        "UPDRAFT_MLFLOW_URI": config.url("mlflow"),
        "UPDRAFT_AIRFLOW_PUBLIC_URI": config.url("airflow"),
        "UPDRAFT_CREDENTIALS_FILE": str(home.credentials_file),
        # The DAGs of the manifests in jobs/ name their code by its folder on this machine.
        "UPDRAFT_LOCAL_SOURCES": str(home.repository / "jobs"),
    }


def _cluster(home: Home, config: Config) -> dict[str, str]:
    if config.cluster is None:
        return {"kube_config_path": str(home.kubeconfig)}
    return {"kube_config_path": config.cluster.kubeconfig, "cluster_context": config.cluster.context}


def airflow_environment(home: Home, config: Config) -> dict[str, str]:
    environment = {
        "AIRFLOW_HOME": str(home.airflow),
        "AIRFLOW_CONFIG": str(home.airflow / "airflow.cfg"),
        CONNECTION: json.dumps({"conn_type": "kubernetes", "extra": _cluster(home, config)}),
        **settings_environment(home, config),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",  # on INFO, its client reports waits on stderr, which Airflow shows as errors
        "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
        # Tasks are forked from a process that has loaded NumPy: a fork needs a parent without threads.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    if sys.platform == "darwin":
        environment["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"  # Airflow forks its tasks
    return environment


def build_parts(
    home: Home, config: Config, secrets: Secrets, inherited: Mapping[str, str] | None = None
) -> tuple[Part, ...]:
    """Return all parts, each after those that it waits for."""
    shown = reveal(secrets)
    base = _reaching(config, base_environment(home, os.environ if inherited is None else inherited))
    python = str(bin_folder() / "python")
    url = config.url
    # A folder named mlflow/ in the working directory must not shadow the library.
    safe = {**base, "PYTHONSAFEPATH": "1"}
    airflow_env = {**safe, **airflow_environment(home, config)}
    mlflow_env = {**safe, **_mlflow_environment(home, config, shown)}
    health = f"{url('airflow')}/api/v2/monitor/health"

    def part(
        name: str, title: str, argv: Iterable[str], cwd: Path, environment: Mapping[str, str], **more: object
    ) -> Part:
        return Part(
            name=name,
            title=title,
            argv=tuple(argv),
            cwd=cwd,
            log=home.log_of(name),
            environment={**environment, PART_VARIABLE: name},
            **more,  # type: ignore[arg-type]
        )

    def airflow_daemon(name: str, title: str, argv: list[str], component: str, *, runs_tasks: bool = False) -> Part:
        return part(
            name,
            title,
            argv,
            home.airflow,
            airflow_env,
            after=("airflow-db", "ledger"),
            probe=Probe(health, component=component),
            runs_tasks=runs_tasks,
        )

    parts = [
        part(
            "s3",
            "S3 server",
            # After each delete, rclone tries to remove every folder above the object, and logs an error if one is not
            # empty. If it removes one under an object that is being stored, it logs two errors, and the client stores
            # it again.
            without_lines(
                [str(bin_folder() / "rclone"), "serve", "s3", str(home.s3), "--addr", url("s3").removeprefix("http://")]
                + ["--vfs-cache-mode", "off", "--no-modtime", "--log-level", "NOTICE"]
                + ["--config", str(home.root / "rclone.conf")],
                r"Dir\.Remove not empty$|rclone_temp_put_.*Dir\.Rename error: file does not exist$"
                "|serve s3: file does not exist$",
            ),
            home.root,
            {**base, "RCLONE_AUTH_KEY": f'"{shown["s3_access_key"]},{shown["s3_secret_key"]}"'},
            probe=Probe(url("s3"), any_answer=True),
            port=config.ports.s3,
            host=config.host("s3"),
            port_name="s3",
        ),
        part(
            "node",
            "Local node",
            node_arguments(home, config, python),
            home.node,
            base,
            probe=Probe(f"{url('node')}/healthz"),
            port=config.ports.node,
            port_name="node",
        ),
        part("ledger", "Ledger's tables", [python, "-m", "updraft.stack.migrate"], home.root, airflow_env),
        part(
            "airflow-db",
            "Airflow's tables",
            [python, "-m", "airflow", "db", "migrate"],
            home.airflow,
            airflow_env,
            stamp=Stamp(home.airflow / "migrated", _version("apache-airflow-core"), (home.airflow_database,)),
        ),
        part(
            "mlflow-db",
            "MLflow's tables",
            [str(home.mlflow_environment / "bin" / "mlflow"), "db", "upgrade", _mlflow_database(home)],
            home.mlflow,
            mlflow_env,
            stamp=Stamp(
                home.mlflow / "migrated",
                _installed_mlflow(home),
                (home.mlflow / "mlflow.db", home.mlflow / "auth.db"),
                made_by="mlflow",
            ),
        ),
        part(
            "mlflow",
            "MLflow server",
            [str(home.mlflow_environment / "bin" / "mlflow"), "server", "--host", config.host("mlflow")]
            + ["--port", str(config.ports.mlflow), "--workers", "1", "--app-name", "basic-auth"]
            + ["--uvicorn-opts", "--log-level warning"]
            + ["--backend-store-uri", _mlflow_database(home)]
            + ["--serve-artifacts", "--artifacts-destination", "s3://mlflow/artifacts"],
            home.mlflow,
            mlflow_env,
            after=("s3", "mlflow-db"),
            probe=Probe(f"{url('mlflow')}/health"),
            port=config.ports.mlflow,
            host=config.host("mlflow"),
            port_name="mlflow",
        ),
        part(
            "mlflow-user",
            "The platform's log-in in MLflow",
            [python, "-m", "updraft.stack.mlflow_user"],
            home.mlflow,
            base,
            after=("mlflow",),
        ),
        part(
            "airflow-api",
            "Airflow api-server",
            [python, "-m", "airflow", "api-server", "--host", HOST, "--port", str(config.ports.airflow)]
            + ["--workers", "1"],
            home.airflow,
            airflow_env,
            after=("airflow-db", "ledger"),
            probe=Probe(health),
            port=config.ports.airflow,
            port_name="airflow",
        ),
        airflow_daemon(
            "airflow-scheduler",
            "Airflow scheduler",
            [python, "-m", "updraft.stack.airflow_scheduler"],
            "scheduler",
            runs_tasks=True,
        ),
        airflow_daemon(
            "airflow-dag-processor",
            "Airflow DAG processor",
            [python, "-m", "updraft.stack.airflow_dag_processor"],
            "dag_processor",
        ),
        airflow_daemon(
            "airflow-triggerer",
            "Airflow triggerer",
            [python, "-m", "updraft.stack.airflow_triggerer"],
            "triggerer",
        ),
    ]
    parts.append(
        part(
            "dags",
            "Airflow's knowledge of the DAGs",
            [python, "-m", "updraft.stack.dags_ready"],
            home.airflow,
            base,
            after=("airflow-api", "airflow-dag-processor"),
        )
    )
    return tuple(p for p in parts if p.name != "node" or config.cluster is None)


def node_arguments(home: Home, config: Config, python: str) -> list[str]:
    argv = [python, "-m", "updraft_localnode", "--port", str(config.ports.node)]
    argv += ["--state-dir", str(home.node), "--token-file", str(home.node / "token")]
    argv += ["--images-dir", str(home.images), "--catalogue", str(home.repository / "images" / "catalogue.toml")]
    argv += ["--builder", shlex.join([python, "-m", "updraft.stack", "images"])]
    if config.node.gpus:
        argv += ["--gpus", f"{GPU_TYPE}={config.node.gpus}"]
    if config.node.cpus is not None:
        argv += ["--cpus", f"{config.node.cpus:g}"]
    if config.node.memory_mib is not None:
        argv += ["--memory", f"{config.node.memory_mib}MiB"]
    return argv


def stop_order(parts: tuple[Part, ...]) -> list[list[Part]]:
    """Return waves of parts to stop one after the other: no part is stopped before those that need it."""
    remaining = {p.name: p for p in parts if not p.is_task}
    needs = {p.name: _needed(p, {q.name: q for q in parts}) for p in parts}
    # Airflow's daemons use its api-server while they run, although they start beside it.
    for name in ("airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"):
        needs.setdefault(name, set()).update({"airflow-api", "mlflow", "node", "s3"})
    waves = []
    while remaining:
        needed = set().union(*(needs[name] for name in remaining))
        wave = [p for name, p in remaining.items() if name not in needed] or list(remaining.values())
        waves.append(wave)
        for p in wave:
            del remaining[p.name]
    return waves


def _needed(part: Part, by_name: Mapping[str, Part]) -> set[str]:
    found: set[str] = set()
    for name in part.after:
        found |= {name} | _needed(by_name[name], by_name)
    return found


def _mlflow_database(home: Home) -> str:
    return f"sqlite:///{home.mlflow / 'mlflow.db'}"


def _mlflow_environment(home: Home, config: Config, shown: dict[str, str]) -> dict[str, str]:
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(home.mlflow / "auth.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": shown["mlflow_session_key"],
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Artifacts pass through the server in both directions: clients have no S3 key.
        "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
        "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
        **_hosts(config),
        "MLFLOW_S3_ENDPOINT_URL": config.url("s3"),
        "AWS_ENDPOINT_URL": config.url("s3"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home.mlflow / "aws-credentials"),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        # The embedded S3 server computes no checksum for ranged reads.
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    }


def _hosts(config: Config) -> dict[str, str]:
    """Return the host names that MLflow answers to; by default these are the loopback's."""
    if config.cluster is None:
        return {}
    host = config.host("mlflow")
    return {"MLFLOW_SERVER_ALLOWED_HOSTS": f"{host},{host}:*,localhost,localhost:*,{HOST},{HOST}:*"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _installed_mlflow(home: Home) -> str:
    """Return MLflow's version from the name of its metadata folder: it is installed in an environment of its own."""
    found = sorted((home.mlflow_environment / "lib").glob("python3*/site-packages/mlflow-[0-9]*.dist-info"))
    return found[-1].name if found else "unknown"
