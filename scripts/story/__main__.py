"""Play the story of docs/howto/story.md on the platform that is up, and say what happens.

make story                              # the approval is given by REST
make story ARGS="--pictures FOLDER"     # in a headless Chromium, which also photographs Airflow and MLflow
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from story import REASON, SERIES, Story, StoryError

from updraft.client import Client
from updraft.exceptions import UpdraftError
from updraft.schemas import JobDetail
from updraft.stack.layout import find_home

PICTURES = Path(__file__).resolve().parents[1] / "pictures"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="folder to write pictures to; needs Chromium")
    folder: Path | None = parser.parse_args().pictures
    console = Console(highlight=False)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s[/dim]  {text}", soft_wrap=True)

    home = find_home()
    try:
        with Client() as client, console.status("The story plays; each step waits for the next minute"):
            story = Story(client, home.root, home.repository, say)
            if folder is not None:
                story.approve = approving(client, folder)
            story.play()
            if folder is not None:
                photograph(story, folder)
            found = client.series_of(SERIES)
    except (StoryError, UpdraftError) as exc:
        console.print(f"[red]{exc}[/red]", soft_wrap=True)
        return 1
    say(f"Version {found.champion} is the champion. `updraft series {SERIES}` shows all of it.")
    return 0


def approving(client: Client, folder: Path) -> Callable[[JobDetail], None]:
    from approving import approve_in_browser

    def approve(job: JobDetail) -> None:
        connection = client.http.connection
        log_in = (connection.username, connection.password)
        approve_in_browser(connection.airflow_url, *log_in, job, REASON, folder / "story-question.png")

    return approve


def photograph(story: Story, folder: Path) -> None:
    """Save the page of the series, and in MLflow the report of a gate and the version that it is about."""
    from approving import HEIGHT, WIDTH, open_airflow
    from browser import Browser, leave_assistant

    from updraft.stack.config import ADMIN_USER, load_secrets

    connection = story.client.http.connection
    judged = story.jobs["better"]
    if judged.links.mlflow_run is None or judged.model is None or judged.model.url is None:
        raise StoryError(f"job {judged.id} has no run or no model in MLflow")
    with Browser() as browser:
        open_airflow(browser, connection.airflow_url, connection.username, connection.password)
        browser.open(f"{connection.airflow_url}/updraft/series/{SERIES}", WIDTH, HEIGHT)
        browser.wait_for_text("What happened to its models", "rolled back")
        browser.picture(folder / "story-series.png", height=1300)
        secrets = load_secrets(find_home())
        browser.show_log_in(ADMIN_USER, secrets.mlflow_admin_password.get_secret_value())
        page, mode = judged.links.mlflow_run.split("?")
        browser.open(f"{page}/artifacts/gate/report.html?{mode}", WIDTH, 1500)
        browser.wait("document.querySelector('iframe')")
        leave_assistant(browser)
        browser.picture(folder / "story-report.png")
        browser.open(judged.model.url, WIDTH, HEIGHT)
        browser.wait_for_text(judged.model.name, "updraft.gate")
        leave_assistant(browser)
        browser.picture(folder / "story-version.png")


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(PICTURES)]
    sys.exit(main())
