"""The list of the checks of ``penstock pipeline verify NAME``.

A check is a job that reads the lake again, recomputes all derived values, shows the faults row by
row, and raises ``Unsound`` if there is any.
"""

from collections.abc import Mapping
from typing import Final

from penstock.pipeline import archive_check, audit_check
from penstock.pipeline.job import Job

JOBS: Final[Mapping[str, Job]] = {job.name: job for job in (archive_check.JOB, audit_check.JOB)}
