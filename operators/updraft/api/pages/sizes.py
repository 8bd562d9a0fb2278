"""Make the page of the sizes of elastic jobs."""

from __future__ import annotations

from updraft.api.pages.render import render
from updraft.schemas import RoundList


def sizes_page(found: RoundList, *, nonce: str = "") -> str:
    """Return the page of the rounds as HTML, newest first: what changed for each job, why, and what it brought."""
    return render("sizes.html", title="Updraft sizes of elastic jobs", live=True, nonce=nonce, found=found)
