"""The reports of ``penstock pipeline report``. Each is one file with a ``JOB``; this is the list.

A report's module is imported when the report is asked for: plotting takes a second to load. None of
them needs Spark: what they show was added up by jobs before, and fits in memory.
"""

from collections.abc import Mapping
from typing import Final

from penstock.pipeline.job import Job
from penstock.pipeline.lazy_jobs import LazyJobs

MODULES: Final[Mapping[str, str]] = {
    "usage": "penstock.pipeline.reports.usage",
    "billing": "penstock.pipeline.reports.billing",
    "hotspots": "penstock.pipeline.reports.hotspots",
    "invoice": "penstock.pipeline.reports.invoice",
}

JOBS: Final[Mapping[str, Job]] = LazyJobs(MODULES)
