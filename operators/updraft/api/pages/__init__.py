"""Make the pages for users: the list of jobs and the page of one job.

`jobs_page` and `job_page` convert records to a page's content; the HTML is in `templates/` (Jinja2, which escapes every
value). The only script is `static/pages.js`, and a page sends no request to another server.
"""

from updraft.api.pages.job import PageFacts, job_page
from updraft.api.pages.jobs import ShownMetric, jobs_page

__all__ = ["PageFacts", "ShownMetric", "job_page", "jobs_page"]
