"""Sign MLflow's requests with the credentials file, so that no environment variable contains a password.

Registered as the entry point `mlflow.request_auth_provider`; `MLFLOW_TRACKING_AUTH=updraft` selects it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mlflow.tracking.request_auth.abstract_request_auth_provider import RequestAuthProvider
from requests.auth import HTTPBasicAuth

from updraft.settings import Settings
from updraft.settings import settings as process_settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

PROVIDER = "updraft"
REQUEST_TIMEOUT_SECONDS = 20
MAX_RETRIES = 4


class UpdraftAuthProvider(RequestAuthProvider):
    """Basic authentication as the platform's user."""

    def get_name(self) -> str:
        return PROVIDER

    def get_auth(self) -> HTTPBasicAuth:
        credentials = process_settings().credentials().mlflow  # MLflow makes this object without arguments
        return HTTPBasicAuth(credentials.username, credentials.password.get_secret_value())


def client(settings: Settings) -> MlflowClient:
    """Create a client of the tracking server and registry. Its calls raise MlflowException after bounded retries."""
    from mlflow import MlflowClient

    os.environ["MLFLOW_TRACKING_AUTH"] = PROVIDER
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(REQUEST_TIMEOUT_SECONDS)
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = str(MAX_RETRIES)
    # Download through the tracking server: browsers and workers may not reach the store's presigned URLs.
    os.environ["MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD"] = "false"
    return MlflowClient(tracking_uri=settings.mlflow_uri, registry_uri=settings.mlflow_uri)
