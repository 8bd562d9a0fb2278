"""The HTTP client: `Client` and what it raises. Nothing heavy is imported here.

config.py      where Airflow is, and the log-in
http.py        the authenticated session
client.py      the verbs
submission.py  packing and starting
requests.py    halting and resuming, and waiting for the answer
transfer.py    bytes in bulk
"""

from __future__ import annotations

from updraft.client.client import Client, Job
from updraft.client.config import Connection, load_config
from updraft.client.http import ConflictError, InvalidRequestError

__all__ = ["Client", "ConflictError", "Connection", "InvalidRequestError", "Job", "load_config"]
