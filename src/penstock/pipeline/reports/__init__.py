"""The list of the reports of ``penstock pipeline report``. Each is one file with a ``JOB``.

A report's module is imported on first use, because the plotting library takes a second to load.
Reports do not need Spark: they show sums of earlier jobs, which fit in memory.
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
