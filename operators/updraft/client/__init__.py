"""The HTTP client: `Client` and the errors that it raises. Importing it is cheap.

config.py        where Airflow is, and the log-in
http.py          the authenticated session
client.py        the methods for users
submission.py    pack, upload and start
airflow_runs.py  Airflow's own run of a job
job_requests.py  halt and resume, and wait for the answer
transfer.py      upload and download many bytes
"""

from __future__ import annotations

from updraft.client.client import Client, Job
from updraft.client.config import Connection, load_config
from updraft.client.http import ConflictError, InvalidRequestError

__all__ = ["Client", "ConflictError", "Connection", "InvalidRequestError", "Job", "load_config"]
