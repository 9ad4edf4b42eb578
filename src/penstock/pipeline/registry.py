"""Finds jobs by the command that runs them, and by name.

A new job needs a line in the table here; it declares its own options. A job's module is imported
on first use, so ``--help`` and completion of names do not import all jobs, of which reports load a
plotting library. Modules must not import PySpark before a job runs. Jobs of other packages are
named ``package.module:ATTRIBUTE``."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, cast

from penstock.pipeline.job import Job

_MODULES: Final[Mapping[str, Mapping[str, str]]] = {
    "run": {
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
    },
    # Reports do not need Spark: they show sums of earlier jobs, which fit in memory.
    "report": {
        "usage": "penstock.pipeline.reports.usage",
        "billing": "penstock.pipeline.reports.billing",
        "hotspots": "penstock.pipeline.reports.hotspots",
        "invoice": "penstock.pipeline.reports.invoice",
    },
    # A check reads the lake again, recomputes all derived values, shows the faults row by row, and
    # raises ``Unsound`` if there is any.
    "verify": {
        "archive": "penstock.pipeline.jobs.archive_check",
        "audit": "penstock.pipeline.jobs.audit_check",
    },
    "cluster": {"up": "penstock.pipeline.jobs.cluster"},
}


class NoSuchJob(Exception):
    """The job does not exist. The text is one line for users."""


class _LazyJobs(Mapping[str, Job]):
    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> Job:
        return cast(Job, import_module(self._modules[name]).JOB)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def jobs_of(command: str) -> Mapping[str, Job]:
    """Return the jobs of ``penstock pipeline COMMAND NAME``, by name."""
    return _LazyJobs(_MODULES[command])


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
        raise NoSuchJob(f"'{name}' is not a Job of penstock.pipeline.job")
    return found
