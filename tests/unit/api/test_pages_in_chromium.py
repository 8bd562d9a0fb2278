"""The jobs pages as a browser lays them out inside Airflow's frame, on a phone and on a desk."""

from __future__ import annotations

import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import airflow
import pytest
from unit.api import rich_pages

from updraft.api.routes import pages
from updraft.schemas import PAGES_PREFIX, QUEUE_PAGE, SERIES_PAGES_PREFIX, SIZES_PAGE

CHROMIUM = shutil.which("chromium")
SANDBOX = "allow-scripts allow-same-origin allow-forms allow-downloads"
WIDTHS = (390, 1440)
# The frame's own width: a window of a headless browser has a smallest one.
HOST = """<!doctype html><meta charset="utf-8"><title></title><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<iframe sandbox="{sandbox}" src="{page}" width="{width}" height="900"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => setTimeout(() => {{
  const inner = frame.contentWindow, root = inner.document.documentElement;
  inner.document.querySelectorAll("details").forEach((item) => (item.open = true));
  const log = inner.document.querySelector("pre.log");
  const end = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 1;
  document.title = [root.scrollWidth, inner.innerWidth, end, inner.document.querySelectorAll("tr").length].join(" ");
}}, 300);
</script>"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            made = {
                PAGES_PREFIX: rich_pages.list_page,
                f"{PAGES_PREFIX}/{rich_pages.ID}": rich_pages.job_page,
                QUEUE_PAGE: rich_pages.queue_page,
                SIZES_PAGE: rich_pages.sizes_page,
                SERIES_PAGES_PREFIX: rich_pages.series_list_page,
                f"{SERIES_PAGES_PREFIX}/digits": rich_pages.series_page,
            }
            if path in made:
                found = pages.answer(made[path])
                body, headers = bytes(found.body), dict(found.headers)
            elif path == f"{PAGES_PREFIX}/static/pages.js":
                found = pages.script()  # type: ignore[assignment]
                body, headers = bytes(found.body), dict(found.headers)
            else:
                width, _, page = query.partition("&")
                body, headers = HOST.format(sandbox=SANDBOX, page=page, width=width).encode(), {}
                headers["content-type"] = "text/html"
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def test_the_sandbox_is_airflows() -> None:
    assets = Path(airflow.__file__).parent / "ui" / "dist" / "assets"
    written = re.compile(r"sandbox:`(allow-scripts[^`]*)`")
    found = {name for path in assets.glob("*.js") for name in written.findall(path.read_text())}
    if not found:
        pytest.skip("this Airflow has no built pages")
    assert SANDBOX in found


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "page",
    [
        PAGES_PREFIX,
        f"{PAGES_PREFIX}/{rich_pages.ID}",
        QUEUE_PAGE,
        SIZES_PAGE,
        SERIES_PAGES_PREFIX,
        f"{SERIES_PAGES_PREFIX}/digits",
    ],
    ids=["list", "job", "queue", "sizes", "series list", "series"],
)
def test_a_page_fits_its_frame(server: str, tmp_path: Path, page: str, width: int) -> None:
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1600,1000"]
    command = [CHROMIUM, *options, "--virtual-time-budget=3000", "--dump-dom", f"{server}/host?{width}&{page}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    told = re.search(r"<title>(\d+) (\d+) (\w+) (\d+)</title>", ran.stdout)
    assert told is not None, ran.stdout[:2000] + ran.stderr[-2000:]
    scroll_width, inner_width, at_end, rows = int(told[1]), int(told[2]), told[3], int(told[4])
    assert inner_width == width
    assert scroll_width <= inner_width
    assert at_end == "true"
    assert rows > 20
