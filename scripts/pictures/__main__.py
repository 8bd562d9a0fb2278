"""Make every picture of the README and of the tour from one real run on the embedded stack.

    make up
    make pictures                                  # ARGS="FOLDER [JOB]"; default: docs/images

Submits jobs/digits-cnn as the README does, in a terminal of its own. Once a checkpoint is stored, the learner's process
is killed with SIGKILL; the platform does the rest. `terminal.svg` shows every screen that the terminal showed, with the
seconds of the run above it, in FILM_SECONDS. The others are photographed by a headless Chromium: the timeline of that
job's page, the page, its run and its log in Airflow, the form of its DAG, its metrics and its model in MLflow. Fails if
the job is not COMPLETED with two attempts. With JOB nothing is run: the pages of that job are photographed again.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import httpx
import psutil
import pyte
from browser import Browser, button, leave_assistant

from updraft.api.pages import timeline
from updraft.api.pages.render import style
from updraft.client import Client
from updraft.exceptions import UpdraftError
from updraft.schemas import JobDetail
from updraft.stack.config import ADMIN_USER, load_secrets
from updraft.stack.layout import find_home

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = ".venv/bin/updraft submit jobs/digits-cnn/manifest.yaml --params epochs=60 --follow"
COLUMNS, ROWS = 104, 27
FILM_SECONDS, LAST_SECONDS = 20.0, 6.0  # how long the film is, and its last screen stays
SHORTEST_SECONDS = 0.1
CHAR, LINE, SIZE, MARGIN, BAR = 7.8, 17, 13, 14, 34  # pixels
COLOURS = {
    "red": "#f4776d",
    "green": "#7ec98a",
    "brown": "#e0b252",
    "yellow": "#e0b252",
    "blue": "#7fb0ee",
    "magenta": "#c79bef",
    "cyan": "#6fc7cf",
    "default": "#d8dce2",
}
FAINT, GROUND, HEAD = "#868e99", "#16191e", "#23272e"
WIDTH_OF_TIMELINE = 1120
WIDTH, HEIGHT = 1500, 950  # of a page


@dataclass(frozen=True)
class Screen:
    """What the terminal showed `at` seconds after the command: each line as runs of text in one colour."""

    at: float
    lines: tuple[tuple[tuple[str, str, bool], ...], ...]
    note: str


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0] if arguments else REPOSITORY / "docs" / "images")
    screens, job_id = ([], arguments[1]) if len(arguments) > 1 else record()
    with Client() as client:
        connection = client.http.connection
        job = client.job(job_id)
        attempts = client.attempts(job_id).attempts
        checkpoints = client.checkpoints(job_id).checkpoints
    trained = [attempt for attempt in attempts if attempt.role == "train"]
    if job.state != "COMPLETED" or len(trained) != 2:
        raise SystemExit(f"{job_id} is {job.state} with {len(trained)} attempts of its training; run this again")
    if screens:
        (folder / "terminal.svg").write_text(film(thinned(screens)))
    log_in = {"username": connection.username, "password": connection.password}
    token = httpx.post(f"{connection.airflow_url}/auth/token", json=log_in).raise_for_status().json()["access_token"]
    with Browser() as browser:
        photograph_timeline(
            browser, timeline.draw(job, attempts, checkpoints, datetime.now(UTC)), folder / "attempts.png"
        )
        browser.show_cookie(connection.airflow_url, "_token", token)
        photograph_airflow(browser, connection.airflow_url, job, folder)
        # After Airflow's, which would take the header for a log-in of its own.
        browser.show_log_in(ADMIN_USER, load_secrets(find_home()).mlflow_admin_password.get_secret_value())
        photograph_mlflow(browser, job, folder)


def record() -> tuple[list[Screen], str]:
    """Run COMMAND; return every screen of it and the id of its job. Kills the learner once the job has a stored
    checkpoint."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    environment.pop("NO_COLOR", None)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    terminal = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(terminal)
    stream.feed(f"$ {COMMAND}\r\n".encode())
    screens = [Screen(0.0, lines_of(terminal), "")]
    note, job_id, looked = "", "", 0.0
    with subprocess.Popen(COMMAND.split(), cwd=REPOSITORY, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        began = time.monotonic()
        while (data := read(ours)) is not None:
            stream.feed(data)
            now = time.monotonic() - began
            shown = lines_of(terminal)
            job_id = job_id or submitted(terminal)
            if job_id and not note and now - looked > 2:
                looked, note = now, kill_learner(job_id)
            if shown != screens[-1].lines or note != screens[-1].note:
                screens.append(Screen(now, shown, note))
    os.close(ours)
    return screens, job_id


def read(descriptor: int) -> bytes | None:
    """Return what the terminal got within half a second; None when nobody writes to it any more."""
    if not select.select([descriptor], [], [], 0.5)[0]:
        return b""
    try:
        return os.read(descriptor, 65536) or None
    except OSError:  # how Linux says that the other side is closed
        return None


def submitted(terminal: pyte.Screen) -> str:
    found = re.search(r"^(\S+) submitted", "\n".join(terminal.display), re.MULTILINE)
    return found[1] if found else ""


def kill_learner(job_id: str) -> str:
    """Kill the program of the job if a checkpoint of it is stored; the command that a user would have typed, or
    nothing."""
    try:
        with Client() as client:
            stored = client.checkpoints(job_id).checkpoints
    except UpdraftError:  # before the job is recorded
        return ""
    if not stored:
        return ""
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("TRAINING_ID") == job_id
            if mine and process.cmdline()[-1] == "train.py":
                process.send_signal(signal.SIGKILL)
                return f"kill -KILL {process.pid}"
        except psutil.Error:
            continue
    return ""


def lines_of(terminal: pyte.Screen) -> tuple[tuple[tuple[str, str, bool], ...], ...]:
    return tuple(tuple(runs(terminal, row)) for row in range(ROWS))


def runs(terminal: pyte.Screen, row: int) -> Iterator[tuple[str, str, bool]]:
    text, style = "", ("default", False)
    for column in range(len(terminal.display[row].rstrip())):
        cell = terminal.buffer[row][column]
        if (cell.fg, cell.bold) != style and text:
            yield text, *style
            text = ""
        style = (cell.fg, cell.bold)
        text += cell.data
    if text:
        yield text, *style


def thinned(screens: list[Screen]) -> list[Screen]:
    """Return the screens without those that the film would show for less than SHORTEST_SECONDS."""
    whole, kept = screens[-1].at, [screens[0]]
    for screen in screens[1:]:
        if FILM_SECONDS * (screen.at - kept[-1].at) / whole < SHORTEST_SECONDS and len(kept) > 1:
            kept.pop()
        kept.append(screen)
    return kept


def film(screens: list[Screen]) -> str:
    """Return one SVG: the screens below each other behind a window, moved by CSS from one to the next."""
    ids: dict[tuple[tuple[str, str, bool], ...], int] = {}
    frames = []
    height = BAR + ROWS * LINE + 2 * MARGIN
    width = round(COLUMNS * CHAR) + 2 * MARGIN
    for number, screen in enumerate(screens):
        parts = [f'<text class="t" x="{width - MARGIN}" y="22" text-anchor="end">{clock(screen.at)}</text>']
        if screen.note:
            parts.append(f'<text class="k" x="{width // 2}" y="22">in another terminal: {screen.note}</text>')
        for row, line in enumerate(screen.lines):
            if line:
                name = ids.setdefault(line, len(ids))
                parts.append(f'<use href="#l{name}" y="{BAR + MARGIN + (row + 1) * LINE - 5}"/>')
        frames.append(f'<g transform="translate(0 {number * height})">{"".join(parts)}</g>')
    lines = "".join(f'<g id="l{name}">{"".join(tspans(line))}</g>' for line, name in ids.items())
    seconds, steps = timing(screens)
    moves = "".join(f"{share:.3f}%{{transform:translateY(-{n * height}px)}}" for n, share in enumerate(steps))
    last = (len(screens) - 1) * height
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{escape(COMMAND)}: one run of {clock(screens[-1].at)} in {FILM_SECONDS:.0f} seconds</title>
<style>text{{font:{SIZE}px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
.t,.k{{fill:{FAINT}}}.k{{fill:{COLOURS["red"]};text-anchor:middle}}.b{{font-weight:700}}
#film{{animation:film {seconds:.1f}s step-end infinite}}@keyframes film{{{moves}}}
@media (prefers-reduced-motion){{#film{{animation:none;transform:translateY(-{last}px)}}}}</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>
<path d="M0 {BAR}V8q0-8 8-8h{width - 16}q8 0 8 8v{BAR - 8}z" fill="{HEAD}"/>
<text class="t" x="{MARGIN}" y="22">updraft</text>
<g id="film">{"".join(frames)}</g>
</svg>
"""


def timing(screens: list[Screen]) -> tuple[float, list[float]]:
    """Return the length of the film in seconds, and the share of it, in per cent, after which each screen is shown."""
    whole = FILM_SECONDS + LAST_SECONDS
    return whole, [100 * FILM_SECONDS / whole * screen.at / screens[-1].at for screen in screens]


def tspans(line: tuple[tuple[str, str, bool], ...]) -> Iterator[str]:
    """Yield each run at its own column, so that columns are aligned in any font."""
    column = 0
    for text, colour, bold in line:
        if text.strip():
            left = len(text) - len(text.lstrip())
            word = text.strip()
            x = MARGIN + (column + left) * CHAR
            fill = COLOURS.get(colour, f"#{colour}" if re.fullmatch(r"[0-9a-f]{6}", colour) else COLOURS["default"])
            weight = ' class="b"' if bold else ""
            yield (
                f'<text x="{x:.1f}" textLength="{len(word) * CHAR:.1f}" lengthAdjust="spacingAndGlyphs" '
                f'fill="{fill}"{weight}>{escape(word)}</text>'
            )
        column += len(text)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def photograph_timeline(browser: Browser, body: str, target: Path) -> None:
    """Photograph the timeline on a page of its own, as high as it is."""
    head = f"<style>{style()}body{{margin:0;padding:12px 16px;background:#fff;min-height:0}}</style>"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "timeline.html"
        page.write_text(f"<!doctype html><meta charset=utf-8>{head}<body>{body}")
        browser.open(page.as_uri(), WIDTH_OF_TIMELINE, 800, scale=2)
        browser.wait("document.querySelector('.timeline')")
        browser.picture(target, height=browser.evaluate("Math.ceil(document.body.getBoundingClientRect().bottom)"))


def photograph_airflow(browser: Browser, airflow_url: str, job: JobDetail, folder: Path) -> None:
    browser.open(f"{airflow_url}/updraft/jobs/{job.id}", WIDTH, HEIGHT)
    browser.wait("document.querySelector('.curves svg')", "document.querySelector('pre.log')")
    # From the top to the end of the log: what follows is tables.
    end = "Math.ceil(document.querySelector('pre.log').getBoundingClientRect().bottom + scrollY) + 24"
    browser.picture(folder / "updraft-job.png", height=browser.evaluate(end))
    run = f"{airflow_url}/dags/{job.dag_id}/runs/{job.run_id}"
    browser.open(run, WIDTH, HEIGHT)
    browser.wait_for_text("Task Instances", "admit", "release", "ReleaseOperator")
    browser.picture(folder / "airflow-run.png")
    browser.open(f"{run}/tasks/train", WIDTH, 785)
    browser.wait_for_text("LearnerOperator", "val_accuracy")
    browser.picture(folder / "airflow-train-log.png")
    browser.open(f"{airflow_url}/dags/{job.dag_id}", WIDTH, 1100)
    browser.click(button("Trigger"))
    browser.wait_for_text("Run Parameters", "learning_rate", "Resources")
    browser.picture(folder / "trigger-form.png")


def photograph_mlflow(browser: Browser, job: JobDetail, folder: Path) -> None:
    """Photograph MLflow in its mode for training, as every link of the platform opens it."""
    if job.links.mlflow_run is None or job.model is None or job.model.url is None:
        raise SystemExit(f"{job.id} has no run or no model in MLflow")
    page, mode = job.links.mlflow_run.split("?")
    browser.open(f"{page}/model-metrics?{mode}", WIDTH, HEIGHT)
    browser.wait_for_text("Model training", "Model metrics", "learning_rate")
    leave_assistant(browser)
    browser.wait("document.querySelectorAll('.js-plotly-plot, .plot-container').length > 2")
    browser.picture(folder / "mlflow-metrics.png")
    browser.open(job.model.url, WIDTH, HEIGHT)
    browser.wait_for_text("Model training", job.model.name, f"Version {job.model.version}")
    leave_assistant(browser)
    browser.picture(folder / "mlflow-model.png")


if __name__ == "__main__":
    main(sys.argv[1:])
