"""The reports of ``penstock pipeline report``. Each is one file with a ``JOB``; this is the list.

A report's module is imported when the report is asked for: plotting takes a second to load. None of
them needs Spark: what they show was added up by jobs before, and fits in memory.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Final, cast

from penstock.pipeline.job import Job

MODULES: Final[Mapping[str, str]] = {
    "usage": "penstock.pipeline.reports.usage",
    "billing": "penstock.pipeline.reports.billing",
    "hotspots": "penstock.pipeline.reports.hotspots",
}


class _Reports(Mapping[str, Job]):
    def __getitem__(self, name: str) -> Job:
        return cast(Job, importlib.import_module(MODULES[name]).JOB)

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


JOBS: Final[Mapping[str, Job]] = _Reports()
