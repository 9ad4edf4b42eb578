"""Jobs by name, each imported on first use: completing a name must not wait for the imports of all
jobs, such as a plotting library."""

import importlib
from collections.abc import Iterator, Mapping
from typing import cast

from penstock.pipeline.job import Job


class LazyJobs(Mapping[str, Job]):
    def __init__(self, modules: Mapping[str, str]) -> None:
        """``modules``: names of modules, each with a ``JOB``."""
        self._modules = modules

    def __getitem__(self, name: str) -> Job:
        return cast(Job, importlib.import_module(self._modules[name]).JOB)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
