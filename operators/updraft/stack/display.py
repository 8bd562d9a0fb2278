"""Print the stack's tables on a terminal. Called by `__main__`, the CLI and the demo."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pydantic import SecretStr
from rich.console import Console
from rich.text import Text

from updraft.mlflow_pages import home_page
from updraft.stack.config import ADMIN_USER, load_secrets
from updraft.stack.control import addresses
from updraft.stack.doctor import Check
from updraft.stack.layout import Home, find_home
from updraft.stack.status import StackStatus
from updraft.terminal import print_table, program, typed

STATE_STYLE = {"ready": "green", "starting": "yellow", "waiting": "yellow", "backoff": "red", "failed": "red"}
COLUMNS = ("part", "state", "pid", "port", "up", "memory", "CPU", "processes", "start", "again")


def show_status(status: StackStatus, console: Console | None = None) -> None:
    console = console or Console()
    if status.addresses is None:
        console.print(typed(f"{status.home} is not set up. `updraft up` sets it up and starts everything."))
        return
    home = Home(Path(status.home), find_home().repository)
    rows: list[tuple[object, ...]] = [
        (
            p.title,
            Text(p.state, STATE_STYLE.get(p.state, "")),
            _text(p.pid),
            _text(p.port),
            duration(p.uptime_seconds),
            f"{p.memory_mib:.0f} MiB" if p.processes else "",
            f"{p.cpu_percent:.1f} %" if p.processes else "",
            _text(p.processes or None),
            duration(p.ready_seconds) if p.ready_seconds is not None else "",
            f"{p.restarts} x" if p.restarts else "",
        )
        for p in status.parts
    ]
    total = (f"{status.memory_mib:.0f} MiB", f"{status.cpu_percent:.1f} %")
    rows.append(("all", status.phase, "", "", "", *total, "", "", ""))
    print_table(console, COLUMNS, rows, right=COLUMNS[2:])
    for p in status.parts:
        if p.last_exit and p.restarts:
            console.print(f"{p.title}: last end: {p.last_exit}; log: {p.log}", soft_wrap=True)
    if status.not_starting:
        console.print(
            f"[red]Airflow: {status.not_starting}.[/] Its log: {home.log_of('airflow-scheduler')}", soft_wrap=True
        )
    if status.phase == "unsupervised":
        console.print(
            typed("These processes have no supervisor: `updraft up` takes them over, `updraft down` ends them.")
        )
    show_addresses(home, console)


def show_addresses(home: Home, console: Console | None = None, *, prefix: str = sys.prefix) -> None:
    """Print URLs, and the log-ins of the owner of this home. Passwords are printed on a terminal only: a pipe, a file
    or the log of a CI run gets the name of the file that holds them.

    `prefix`: the virtual environment that holds the command `updraft`.
    """
    console = console or Console(soft_wrap=True)
    where, secrets = addresses(home), load_secrets(home)
    console.print(f"\nAirflow   {where.airflow}", highlight=False)
    console.print(f"          {_log_in(home, console, secrets.airflow_password, 'airflow_password')}", highlight=False)
    console.print(f"MLflow    {home_page(where.mlflow)}", highlight=False)
    name = "mlflow_admin_password"
    console.print(f"          {_log_in(home, console, secrets.mlflow_admin_password, name)}", highlight=False)
    console.print(f"S3        {where.s3} (keys in {home.credentials_file})", highlight=False)
    console.print(f"Stop everything with {typed('`updraft down`')}.{_activation(prefix)}", highlight=False)


def _activation(prefix: str) -> str:
    """Return how to have `updraft` on the PATH, where it is not."""
    script = Path(prefix) / "bin" / "activate"
    if program() == "updraft" or not script.is_file():
        return ""
    return f" `. {os.path.relpath(script)}` puts `updraft` on the PATH."


def show_logins(airflow_url: str) -> None:
    """Print the log-ins, if the home that is found here is that of this Airflow."""
    home = find_home()
    if home.secrets_file.is_file() and home.config_file.is_file() and addresses(home).airflow == airflow_url:
        show_addresses(home)


def _log_in(home: Home, console: Console, password: SecretStr, name: str) -> str:
    # Not `console.is_terminal`: with FORCE_COLOR it is also true for a pipe.
    shown = password.get_secret_value() if console.file.isatty() else f"the value of {name} in {home.secrets_file}"
    return f"log in as {ADMIN_USER} / {shown}"


def show_checks(checks: Iterable[Check], console: Console | None = None) -> None:
    console = console or Console(soft_wrap=True)
    for check in checks:
        sign = "[green]ok[/]   " if check.ok else "[red]wrong[/]"
        console.print(f"{sign} {check.name}: {typed(check.detail)}", highlight=False)
        if check.advice:
            console.print(f"      {typed(check.advice)}", highlight=False)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _text(value: object | None) -> str:
    return "" if value is None else str(value)
