"""What ``penstock pipeline verify NAME`` can check: one line for each.

A check is a job of its own. It reads the lake again, trusts nothing that it can make anew, shows
what is wrong row by row, and ends with ``Unsound`` if there is anything.
"""

from collections.abc import Mapping
from typing import Final

from penstock.pipeline import archive_check, audit_check
from penstock.pipeline.job import Job

JOBS: Final[Mapping[str, Job]] = {job.name: job for job in (archive_check.JOB, audit_check.JOB)}
