"""A headless Chromium that is told what to do over its debugging port, for pictures and for the story."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import websocket

START_SECONDS, LOOK_SECONDS, PATIENCE_SECONDS = 30, 0.25, 60
SETTLE_SECONDS = 1.5  # after what was waited for is there: charts grow


class Browser:
    """One window. Raises SystemExit where there is no Chromium, or a page does not show what it should."""

    def __init__(self) -> None:
        names = ("chromium", "google-chrome", "chromium-browser")
        program = next(filter(None, map(shutil.which, names)), None)
        if program is None:
            raise SystemExit("no Chromium on the PATH; on Debian: apt-get install chromium")
        self._folder = tempfile.TemporaryDirectory(prefix="updraft-pictures-", ignore_cleanup_errors=True)
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0"]
        command = [program, *options, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._calls = 0
        self._socket = websocket.create_connection(self._window(), suppress_origin=True, timeout=PATIENCE_SECONDS)
        self.call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(10)
        self._folder.cleanup()

    def _window(self) -> str:
        told, deadline = Path(self._folder.name) / "DevToolsActivePort", time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if told.is_file() and (lines := told.read_text().splitlines()):
                with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
                    pages = [item for item in json.load(answer) if item["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
            time.sleep(0.1)
        raise SystemExit(f"Chromium did not start within {START_SECONDS} s")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._calls:
            pass  # of what happens in the page
        if "error" in answer:
            raise SystemExit(f"Chromium refuses {method}: {answer['error']}")
        return dict(answer["result"])

    def evaluate(self, expression: str) -> Any:
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return told["result"].get("value")

    def show_cookie(self, url: str, name: str, value: str) -> None:
        self.call("Network.setCookie", url=url, name=name, value=value)

    def show_log_in(self, username: str, password: str) -> None:
        """Send the log-in to every server from now on: only for servers that are meant to get it."""
        token = base64.b64encode(f"{username}:{password}".encode()).decode()
        self.call("Network.enable")
        self.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {token}"})

    def open(self, url: str, width: int, height: int, scale: float = 1) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")  # an address that differs in its fragment only is no new page
        self.call("Page.navigate", url=url)

    def wait(self, *conditions: str) -> None:
        """Wait until each JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for condition in conditions:
            while not self.evaluate(f"Boolean({condition})"):
                if time.monotonic() > deadline:
                    seen = self.evaluate("document.body && document.body.innerText.slice(0, 600)")
                    raise SystemExit(f"{self.evaluate('location.href')}: never so: {condition}\nIt shows:\n{seen}")
                time.sleep(LOOK_SECONDS)
        time.sleep(SETTLE_SECONDS)

    def wait_for_text(self, *words: str) -> None:
        self.wait(*(f"document.body && document.body.innerText.includes({json.dumps(word)})" for word in words))

    def click(self, finder: str) -> None:
        """Click the element that a JavaScript expression finds, once it is there."""
        self.wait(finder)
        self.evaluate(f"({finder}).click()")

    def picture(self, target: Path, height: int | None = None) -> None:
        """Save what the window shows, or the upper `height` pixels of the page."""
        clip: dict[str, Any] = {}
        if height is not None:
            width = self.evaluate("innerWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=height is not None, **clip)
        target.write_bytes(base64.b64decode(told["data"]))
        print(f"{target}: {target.stat().st_size:,} bytes", flush=True)


def button(text: str) -> str:
    """Return JavaScript that finds the button with this text."""
    return f"[...document.querySelectorAll('button')].find((b) => b.innerText.trim() === {json.dumps(text)})"


def leave_assistant(browser: Browser) -> None:
    """Close the panel beside the page, if MLflow shows one, and take away the tools that hover over its charts."""
    close = "document.querySelector('[data-component-id=\"mlflow.assistant.chat_panel.close\"]')"
    browser.evaluate(f"{close} && {close}.click()")
    style = "Object.assign(document.createElement('style'), {textContent: '.modebar { display: none !important }'})"
    browser.evaluate(f"document.head.append({style})")
    browser.wait(f"!{close}")
