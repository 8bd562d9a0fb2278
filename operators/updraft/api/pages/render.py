"""Render the templates: every value is escaped, and an unknown name is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from updraft.schemas import API_PREFIX, PAGES_PREFIX, QUEUE_PAGE, SERIES_PAGES_PREFIX, SIZES_PAGE, TENANTS_PAGE
from updraft.wording import counted

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> Markup:
    """Return the HTML of `templates/<template>`. Markup: another template shows it unescaped."""
    return Markup(environment.get_template(template).render(**values))


def style() -> str:
    """Return the pages' style sheet."""
    return (TEMPLATES / "pages.css").read_text()


def span(seconds: float) -> str:
    """Return a duration for people: `31 ms`, `42 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    if 0 < seconds < 0.5:
        return f"{1000 * seconds:.0f} ms"
    whole = max(round(seconds), 0)
    if whole < 100:
        return f"{whole} s"
    if whole < 6_000:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 172_800:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def shown(value: Any) -> str:
    """Return a value of a manifest as text: JSON for all but strings."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def flat(changes: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield `resources.memory = 4GiB` for each value that changes."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {shown(value)}"


def path_segment(text: str) -> str:
    """Return `text` as one segment of a URL's path."""
    return quote(text, safe="")


environment = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
environment.filters |= {"span": span, "flat": flat, "counted": counted, "path_segment": path_segment}
environment.globals |= {
    "api_url": API_PREFIX,
    "pages_url": PAGES_PREFIX,
    "queue_url": QUEUE_PAGE,
    "series_pages_url": SERIES_PAGES_PREFIX,
    "sizes_url": SIZES_PAGE,
    "tenants_url": TENANTS_PAGE,
}
