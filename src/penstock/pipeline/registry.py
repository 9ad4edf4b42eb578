"""Finds a job by its command and name.

To add a job, add it to ``_JOBS``. A job's module is imported on first use, so ``--help`` and shell
completion do not import all jobs. Modules must not import PySpark before a job runs. A job of
another package is named ``package.module:ATTRIBUTE``."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, cast

from penstock.pipeline.job import Job

# By command and job name: a module of this package, and its attribute if that is not JOB.
_JOBS: Final[Mapping[str, Mapping[str, str]]] = {
    "run": {
        "archive": "jobs.archive",
        "audit": "jobs.audit",
        "audit-search": "jobs.audit:SEARCH",
        "billing": "jobs.billing",
        "dead-letters": "jobs.dead_letters",
        "deliveries": "jobs.deliveries",
        "quality": "jobs.quality",
        "replay": "jobs.replay",
        "retention": "jobs.retention",
        "telemetry": "jobs.telemetry",
        "usage": "jobs.usage",
    },
    # Reports do not need Spark: they show sums of earlier jobs, which fit in memory.
    "report": {
        "usage": "reports.usage",
        "billing": "reports.billing",
        "hotspots": "reports.hotspots",
        "invoice": "reports.billing:INVOICES",
    },
    # A check reads the lake again, recomputes all derived values, shows the faults row by row, and
    # raises ``Unsound`` if there is any.
    "verify": {
        "archive": "jobs.archive:VERIFY",
        "audit": "jobs.audit:VERIFY",
        "deliveries": "jobs.delivery_balance:VERIFY",
    },
    "cluster": {"up": "jobs.cluster"},
}


class NoSuchJob(Exception):
    pass


class _LazyJobs(Mapping[str, Job]):
    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> Job:
        module, _, attribute = self._places[name].partition(":")
        return cast(Job, getattr(import_module(f"penstock.pipeline.{module}"), attribute or "JOB"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def jobs_of(command: str) -> Mapping[str, Job]:
    """Return the jobs of ``penstock pipeline COMMAND`` by name."""
    return _LazyJobs(_JOBS[command])


def find_job(command: str, name: str) -> Job:
    job = jobs_of(command).get(name)
    if job is not None:
        return job
    module, colon, attribute = name.partition(":")
    if not colon:
        raise NoSuchJob(f"unknown job '{name}'")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise NoSuchJob(f"'{name}' cannot be imported: {error}") from None
    if not isinstance(found, Job):
        raise NoSuchJob(f"'{name}' is not a Job (penstock.pipeline.job.Job)")
    return found
