"""Make the pages for users: jobs, series, the queue, sizes of elastic jobs, and tenants.

The functions convert records to a page's content; the HTML is in `templates/` (Jinja2, which escapes every
value). The only script is `static/pages.js`, and a page sends no request to another server.
"""

from updraft.api.pages.job import PageFacts, job_page
from updraft.api.pages.jobs import ShownMetric, jobs_page
from updraft.api.pages.queue import queue_page
from updraft.api.pages.series import series_list_page, series_page
from updraft.api.pages.sizes import sizes_page
from updraft.api.pages.tenants import tenants_page

__all__ = [
    "PageFacts",
    "ShownMetric",
    "job_page",
    "jobs_page",
    "queue_page",
    "series_list_page",
    "series_page",
    "sizes_page",
    "tenants_page",
]
