"""A chat is told that a job has failed, through a connection of Airflow, as docs/howto/models.md says."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pages
import pytest
from system_helpers import NOTIFIER, Stack, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(600)]


@pytest.fixture
def chat() -> Iterator[tuple[str, queue.Queue[Any]]]:
    got: queue.Queue[Any] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook/secret", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_chat_is_told_of_each_failure(stack: Stack, chat: tuple[str, queue.Queue[Any]]) -> None:
    """By a run of the reaper each time."""
    url, got = chat
    (shown,) = [block.text for block in pages.blocks("docs/howto/models.md") if block.language == "json"]
    assert json.loads(shown) == {"team": NOTIFIER}
    connection = {"connection_id": "team_chat", "conn_type": "http", "password": url}
    stack.client.http.json("POST", "/api/v2/connections", body=connection)
    fails = shell_job("told", "echo no labels >&2; exit 3", notify={"to": ["team"], "on": ["failed"]})
    for _ in range(2):
        job = stack.submit(fails)
        detail = stack.end(job)
        assert detail.state == "FAILED", pretty(detail)
        said = got.get(timeout=120)
        assert said["text"].startswith(f"{job} has failed: ")
        assert detail.reason in said["text"]
        assert said["text"].endswith(f"/updraft/jobs/{job}")
        assert got.empty()
