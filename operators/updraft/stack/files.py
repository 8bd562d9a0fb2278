"""Generate the parts' configuration files from a home's config and secrets, at each start.

Every file that contains a secret has mode 0600; no secret goes into an argument list. Called by `control`.
"""

from __future__ import annotations

import configparser
import io
import json
import secrets as random_secrets

from updraft.airflow_seams.switch import left_out
from updraft.stack.config import ADMIN_USER, HOST, MLFLOW_USER, Config, Secrets, reveal
from updraft.stack.layout import Home, write_private

NAMESPACE = "updraft-default"
NODE_CACHE_CLAIM = "updraft-node-cache"  # on the local node, which shows such a folder as a claim
AIRFLOW_PARALLEL_TASKS = 8


def write_all(home: Home, config: Config, secrets: Secrets) -> None:
    shown = reveal(secrets)
    for folder in home.folders():
        folder.mkdir(parents=True, exist_ok=True)
    home.root.chmod(0o700)
    write_private(home.credentials_file, platform_credentials(shown))
    write_private(home.airflow / "airflow.cfg", airflow_configuration(home, config, shown))
    write_private(home.airflow / "passwords.json", json.dumps(airflow_passwords(home, config, shown), indent=2) + "\n")
    write_private(home.mlflow / "auth.ini", mlflow_authentication(home, shown))
    write_private(home.mlflow / "aws-credentials", aws_credentials(shown))
    write_private(home.kubeconfig, kubeconfig(config, shown))
    write_private(home.node / "token", shown["node_token"] + "\n")
    if config.cluster is None:
        (home.node / "claims" / NAMESPACE / NODE_CACHE_CLAIM).mkdir(parents=True, exist_ok=True)


def platform_credentials(shown: dict[str, str]) -> str:
    """Return what `updraft.settings.Credentials` reads."""
    return (
        json.dumps(
            {
                "s3": {"access_key": shown["s3_access_key"], "secret_key": shown["s3_secret_key"]},
                "mlflow": {"username": MLFLOW_USER, "password": shown["mlflow_platform_password"]},
            },
            indent=2,
        )
        + "\n"
    )


def airflow_passwords(home: Home, config: Config, shown: dict[str, str]) -> dict[str, str]:
    """Return the passwords of Airflow's users: a user keeps the one that the home has, and a new user gets one."""
    try:
        known = json.loads((home.airflow / "passwords.json").read_text())
    except (OSError, ValueError):
        known = {}
    others = {user: str(known.get(user) or random_secrets.token_urlsafe(12)) for user in config.users}
    return {ADMIN_USER: shown["airflow_password"], **others}


LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"
BUNDLES: list[dict[str, object]] = [
    {"name": "dags-folder", "classpath": LOCAL_BUNDLE, "kwargs": {}},
    {"name": "updraft-tenants", "classpath": "updraft.bundle.TenantDagBundle", "kwargs": {}},
]
# Of the provider that sends lineage. Tasks that read and make nothing send no events; those of learners send their
# beginning and end.
EMISSION_POLICY: list[dict[str, object]] = [
    {"scope": {"dag_id": "reaper"}, "controls": {"emit": False}},
    {"scope": {"dag_id": "elastic_sizes"}, "controls": {"emit": False}},
    {"scope": {"operator": r"updraft\..*"}, "match_mode": "regex", "controls": {"emit": False}},
    {
        "scope": {"operator": r"updraft\.operators\.(stage\.Stage|registry\.Register|registry\.Promote)Operator"},
        "match_mode": "regex",
        "controls": {"emit": True},
    },
]


def airflow_configuration(home: Home, config: Config, shown: dict[str, str]) -> str:
    """Return airflow.cfg: what differs from Airflow's defaults, and why."""
    url = config.ports.url("airflow")
    wakes = left_out("scheduler_sleep") is None
    sections: dict[str, dict[str, object]] = {
        "core": {
            "dags_folder": home.repository / "dags",
            "plugins_folder": home.repository / "plugins",
            "executor": "updraft.airflow_seams.task_processes.TaskExecutor",
            "parallelism": AIRFLOW_PARALLEL_TASKS,  # tasks are processes that mostly wait; the default is 32
            "max_active_tasks_per_dag": 64,  # per run; the platform's own queue decides
            "max_active_runs_per_dag": 64,
            "load_examples": False,
            "dags_are_paused_at_creation": False,
            "fernet_key": shown["airflow_fernet_key"],
            "auth_manager": "updraft.auth.TenantAuthManager",
            "simple_auth_manager_users": ",".join(
                f"{user}:{role}" for user, role in ({ADMIN_USER: "admin"} | config.users).items()
            ),
            "simple_auth_manager_passwords_file": home.airflow / "passwords.json",
            "execution_api_server_url": f"{url}/execution/",
            "hostname_callable": "socket.gethostname",  # the default asks DNS
            "min_serialized_dag_update_interval": 5,
        },
        "database": {
            # Writers wait for each other; SQLite's default lets them fail after 5 s.
            "sql_alchemy_conn": f"sqlite:///{home.airflow_database}?timeout=15",
            "sql_alchemy_session_maker": "updraft.airflow_seams.sqlite_sessions.session_maker",
            # Connections are only file handles. With a limit, the api-server's event loop could wait for a connection
            # that is returned only when the same loop continues another request.
            "sql_alchemy_max_overflow": -1,
        },
        "logging": {
            "base_log_folder": home.airflow / "logs",
            "dag_processor_child_process_log_directory": home.airflow / "logs" / "dag_processor",
            "colored_console_log": False,
            "uvicorn_logging_level": "WARNING",
            "namespace_levels": "http.access=WARNING",  # it logs a line for each heartbeat of each task
        },
        "api": {
            "base_url": url,
            "host": HOST,
            "port": config.ports.airflow,
            "workers": 1,
            "secret_key": shown["airflow_api_key"],
            "instance_name": "Updraft",
            "expose_config": False,
        },
        # An hour, not a day: a leaked token is valid for this long. Commands log in again by themselves.
        "api_auth": {"jwt_secret": shown["airflow_jwt_key"], "jwt_expiration_time": 3600},
        "scheduler": {
            "catchup_by_default": False,
            "enable_health_check": False,  # the api-server reports it; this would be another process
            "orphaned_tasks_check_interval": 30,  # how long tasks of a dead scheduler may wait
            "task_instance_heartbeat_timeout": 120,
            "parsing_cleanup_interval": 60,
            # The seam `scheduler_sleep` ends this sleep as soon as there is something to do.
            "scheduler_idle_sleep_time": 5 if wakes else 1,
        },
        "workers": {
            # By default a healthy task is ended after three failed heartbeats, less than a restart of the api-server
            # takes.
            "max_failed_heartbeats": 24,
            # An api-server that starts on a busy machine takes longer to answer than the default of 5 s. After five
            # such tries the task dies.
            "execution_api_timeout": 30,
        },
        # By default, the provider that sends lineage forks each task twice.
        "openlineage": {"execute_in_thread": True, "emission_policy": json.dumps(EMISSION_POLICY)},
        "triggerer": {
            "capacity": 2500,  # two triggers for each of a DAG's 1,000 runs, in training and in the queue
            # A program that trains on both cores of a laptop delays the loop by more than the default, 0.2 s.
            "blocked_main_thread_warning_threshold": 1.0,
        },
        "dag_processor": {
            "dag_bundle_storage_path": home.airflow / "bundles",  # the default is shared by all users of the machine
            "refresh_interval": 10,
            "bundle_refresh_check_interval": 5,
            "min_file_process_interval": 300,  # changed files are parsed sooner; parsing all costs 1.5 s of a core
            "parsing_processes": 1,
            "print_stats_interval": 0,
            "dag_bundle_config_list": json.dumps(BUNDLES),
        },
    }
    if home.own_dags.is_dir():
        bundles = [*BUNDLES, {"name": "own-dags", "classpath": LOCAL_BUNDLE, "kwargs": {"path": str(home.own_dags)}}]
        sections["dag_processor"]["dag_bundle_config_list"] = json.dumps(bundles)
    parser = configparser.RawConfigParser()
    for section, values in sections.items():
        # Airflow's own parser interpolates `%`.
        parser[section] = {name: str(value).replace("%", "%%") for name, value in values.items()}
    text = io.StringIO()
    text.write("# Generated at each start; changes are lost.\n")
    parser.write(text)
    return text.getvalue()


def mlflow_authentication(home: Home, shown: dict[str, str]) -> str:
    parser = configparser.RawConfigParser()
    parser["mlflow"] = {
        "default_permission": "NO_PERMISSIONS",
        "database_uri": f"sqlite:///{home.mlflow / 'auth.db'}".replace("%", "%%"),
        "admin_username": ADMIN_USER,
        "admin_password": shown["mlflow_admin_password"],
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        # Checking a password costs tens of milliseconds, and the platform often logs metrics.
        "auth_cache_ttl_seconds": "60",
    }
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def aws_credentials(shown: dict[str, str]) -> str:
    return (
        f"[default]\naws_access_key_id = {shown['s3_access_key']}\naws_secret_access_key = {shown['s3_secret_key']}\n"
    )


def kubeconfig(config: Config, shown: dict[str, str]) -> str:
    """Return the kubeconfig of the local node, as JSON, which is YAML too."""
    return (
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "updraft",
                "clusters": [{"name": "updraft", "cluster": {"server": config.ports.url("node")}}],
                "users": [{"name": "updraft", "user": {"token": shown["node_token"]}}],
                "contexts": [
                    {
                        "name": "updraft",
                        "context": {"cluster": "updraft", "user": "updraft", "namespace": NAMESPACE},
                    }
                ],
            },
            indent=2,
        )
        + "\n"
    )
