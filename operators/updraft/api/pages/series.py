"""Make the list of series and the page of one series."""

from __future__ import annotations

from collections.abc import Sequence

from updraft.api.pages.render import render
from updraft.schemas import SeriesDetail, SeriesSummary

DIGEST_CHARACTERS = 8


def series_list_page(found: Sequence[SeriesSummary], *, nonce: str = "") -> str:
    """Return the list of series as HTML, most recent job first."""
    return render("series_list.html", title="Updraft series", live=True, nonce=nonce, found=found)


def series_page(found: SeriesDetail, champion_url: str | None, *, nonce: str = "") -> str:
    """Return the page of a series as HTML.

    Args:
        found: The series.
        champion_url: MLflow's page of the champion; None if there is none.
        nonce: Allows the page's script under its Content-Security-Policy.
    """
    return render(
        "series.html",
        title=found.name,
        live=True,
        nonce=nonce,
        series=found,
        champion_url=champion_url,
        digest_characters=DIGEST_CHARACTERS,
    )
