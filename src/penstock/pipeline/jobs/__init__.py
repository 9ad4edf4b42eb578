"""The list of the jobs of ``penstock pipeline run``. Each job is one file with a ``JOB``.

A job's module is imported on first use, so that completion of names does not import all jobs.
"""

from collections.abc import Mapping
from typing import Final

from penstock.pipeline.job import Job
from penstock.pipeline.lazy_jobs import LazyJobs

MODULES: Final[Mapping[str, str]] = {
    "archive": "penstock.pipeline.jobs.archive",
    "audit": "penstock.pipeline.jobs.audit",
    "audit-search": "penstock.pipeline.jobs.audit_search",
    "billing": "penstock.pipeline.jobs.billing",
    "dead-letters": "penstock.pipeline.jobs.dead_letters",
    "quality": "penstock.pipeline.jobs.quality",
    "replay": "penstock.pipeline.jobs.replay",
    "retention": "penstock.pipeline.jobs.retention",
    "telemetry": "penstock.pipeline.jobs.telemetry",
    "usage": "penstock.pipeline.jobs.usage",
}

JOBS: Final[Mapping[str, Job]] = LazyJobs(MODULES)
