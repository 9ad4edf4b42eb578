"""Finds jobs by the command that runs them, and by name.

    penstock pipeline run NAME       penstock.pipeline.jobs
    penstock pipeline report NAME    penstock.pipeline.reports
    penstock pipeline verify NAME    penstock.pipeline.verify
    penstock pipeline cluster NAME   penstock.pipeline.cluster

Each of these modules has ``JOBS``, a mapping of names to ``Job``; a new job only needs a line
there, and declares its own options. ``--help`` and tab completion import these modules, so they
must not import PySpark before a job runs. Jobs of other packages are named
``package.module:ATTRIBUTE``.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from penstock.pipeline.job import Job

MODULES: Mapping[str, str] = {
    "run": "penstock.pipeline.jobs",
    "report": "penstock.pipeline.reports",
    "verify": "penstock.pipeline.verify",
    "cluster": "penstock.pipeline.cluster",
}


class NoSuchJob(Exception):
    """The job does not exist. The text is one line for users."""


def jobs_of(command: str) -> Mapping[str, Job]:
    """Return the jobs of a command; none if its module is not installed."""
    module = MODULES[command]
    if find_spec(module) is None:
        return {}
    jobs: Mapping[str, Job] = getattr(import_module(module), "JOBS", {})
    return jobs


def find_job(command: str, name: str) -> Job:
    job = jobs_of(command).get(name)
    if job is not None:
        return job
    module, colon, attribute = name.partition(":")
    if not colon:
        raise NoSuchJob(f"there is no job '{name}'")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise NoSuchJob(f"'{name}' cannot be imported: {error}") from None
    if not isinstance(found, Job):
        raise NoSuchJob(f"'{name}' is not a Job of penstock.pipeline.job")
    return found
