"""What the program's start waits for: the probe's answer, and imports that are not made."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from updraft_learner.contract import CONFIG_ENV, ExitCode
from updraft_learner.sidecar import probe


def test_the_probe_knows_the_contracts_words() -> None:
    assert probe.CONFIG_ENV == CONFIG_ENV


@pytest.mark.parametrize("config", [None, "{", "{}", '{"listen": 5}', '{"listen": "127.0.0.1:x"}', "[]"])
def test_a_configuration_that_is_none_is_no_failure_of_the_sidecar(
    monkeypatch: pytest.MonkeyPatch, config: str | None
) -> None:
    monkeypatch.delenv(CONFIG_ENV, raising=False)
    if config is not None:
        monkeypatch.setenv(CONFIG_ENV, config)
    assert probe.main([]) == ExitCode.CONFIGURATION


def serve(listener: socket.socket, answer: bytes) -> Callable[[], None]:
    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    return run


@pytest.mark.parametrize(
    ("answer", "code"), [(b"HTTP/1.1 200 OK\r\n\r\n", 0), (b"HTTP/1.1 503 No\r\n\r\n", 1), (b"", 1)]
)
def test_only_an_answer_that_says_200_is_one(monkeypatch: pytest.MonkeyPatch, answer: bytes, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv(CONFIG_ENV, json.dumps({"listen": f"127.0.0.1:{port}"}))
        threading.Thread(target=serve(listener, answer), daemon=True).start()
        assert probe.main(["0" if code else "30"]) == code


def test_the_probe_waits_for_a_sidecar_that_is_not_there_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv(CONFIG_ENV, json.dumps({"listen": f"127.0.0.1:{port}"}))
    assert probe.main(["0"]) == 1
    assert f"no answer at 127.0.0.1:{port}" in capsys.readouterr().err
    listening: list[socket.socket] = []

    def begin(seconds: float) -> None:  # while the probe pauses
        if not listening:
            listening.append(socket.create_server(("127.0.0.1", port)))
            threading.Thread(target=serve(listening[0], b"HTTP/1.1 200 OK\r\n\r\n"), daemon=True).start()

    monkeypatch.setattr(probe.time, "sleep", begin)
    assert probe.main(["30"]) == 0
    listening[0].close()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("updraft_learner.sidecar.probe", ("updraft_learner.contract", "http.client", "dataclasses", "ssl", "hashlib")),
        ("updraft_learner.stage", ("botocore", "psutil", "zipfile", "http.server", "xml.etree.ElementTree", "torch")),
        ("updraft_learner.sidecar.__main__", ("botocore", "psutil", "zipfile", "xml.etree.ElementTree", "torch")),
        ("updraft_learner", ("updraft_learner.runtime", "json", "threading")),
    ],
)
def test_nothing_is_imported_that_only_some_pods_need(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
