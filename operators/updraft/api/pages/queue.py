"""Make the page of the queue."""

from __future__ import annotations

from updraft.api.pages.render import render
from updraft.schemas import QueueList


def queue_page(found: QueueList, *, nonce: str = "") -> str:
    """Return the page of the queue as HTML: the jobs that wait, in their order, and those that have room."""
    return render("queue.html", title="Updraft queue", live=True, nonce=nonce, found=found)
