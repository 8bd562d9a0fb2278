"""The command `updraft`: an HTTP client of Airflow and of the plugin's routes, and control of the embedded stack.

app.py       the commands, one module per subject: jobs.py, runs.py, recovery.py, stack.py, secrets.py
console.py   output, `--json`, errors, exit codes
live.py      follow a job on the terminal
plot.py      show metrics as text
"""

from __future__ import annotations


def main() -> None:
    """Run the command line; the entry point of the console script."""
    from updraft.cli.app import app

    app(prog_name="updraft")
