"""Approve a model as a person does: in Airflow's page, with a browser."""

from __future__ import annotations

from pathlib import Path

import httpx
from browser import Browser, button

from updraft.schemas import JobDetail

WIDTH, HEIGHT = 1500, 950


def open_airflow(browser: Browser, airflow_url: str, username: str, password: str) -> None:
    """Log the browser in to Airflow."""
    log_in = {"username": username, "password": password}
    answer = httpx.post(f"{airflow_url}/auth/token", json=log_in, timeout=60).raise_for_status()
    browser.show_cookie(airflow_url, "_token", answer.json()["access_token"])


def approve_in_browser(
    airflow_url: str, username: str, password: str, job: JobDetail, reason: str, picture: Path | None = None
) -> None:
    """Open the question about the job's model in a headless Chromium, write the reason and press Approve.

    Args:
        picture: Where the page with the question is saved.

    Raises SystemExit if the page does not show what it should.
    """
    with Browser() as browser:
        open_airflow(browser, airflow_url, username, password)
        browser.open(str(job.approval), WIDTH, HEIGHT)
        browser.wait_for_text(job.reason)
        browser.wait(button("Approve"))
        field = "document.querySelector('[name=element_reason], textarea, input[id*=reason], input[name*=reason]')"
        browser.wait(field)
        browser.evaluate(f"{field}.focus()")
        browser.call("Input.insertText", text=reason)
        if picture is not None:
            browser.picture(picture)
        browser.click(button("Approve"))
        browser.wait(f"!{button('Approve')} || {button('Approve')}.disabled")
