"""The pages for people: the list of jobs and the page of one job.

`jobs_page` and `job_page` turn records into what a page shows; the HTML is in `templates/` (Jinja2, every value is
escaped). The only script is ours (`static/pages.js`), and a page asks no other server for anything.
"""

from updraft.api.pages.job import PageFacts, job_page
from updraft.api.pages.jobs import ShownMetric, jobs_page

__all__ = ["PageFacts", "ShownMetric", "job_page", "jobs_page"]
