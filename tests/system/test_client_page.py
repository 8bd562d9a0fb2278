"""The commands of docs/howto/client.md, typed where nothing but the client is installed, against a real platform."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pages
import pytest
from system_helpers import Stack, copy_sources, installer

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(600)]
PAGE = "docs/howto/client.md"
COMMANDS_SECONDS = 400


def test_the_client_alone_sends_a_job_to_a_platform_elsewhere(stack: Stack, tmp_path: Path) -> None:
    copy_sources(tmp_path)
    connection = stack.client.http.connection
    (tmp_path / "password").write_text(f"{connection.password}\n")
    environment = {
        **{name: os.environ[name] for name in ("LANG", "SSL_CERT_FILE", "UV_CACHE_DIR") if name in os.environ},
        **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(Path(installer()).parent), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "URL": connection.airflow_url,
        "USER_NAME": str(connection.username),
    }
    found = pages.blocks(PAGE)
    shell = "\n".join(block.text for block in found if block.language == "sh")
    [program] = [block.text for block in found if block.language == "python"]
    said = run(["bash", "-c", f"set -e\n{shell}"], tmp_path, environment)
    assert "my own code" in said
    assert "COMPLETED" in said
    assert run(["client/bin/python", "-c", program], tmp_path, environment).strip() == "COMPLETED"
    installed = run(["client/bin/pip", "list", "--format", "freeze"], tmp_path, environment)
    assert "apache-airflow" not in installed


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=COMMANDS_SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
