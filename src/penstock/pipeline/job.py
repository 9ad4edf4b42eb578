"""What a job is, and what it is given when it runs.

A job is a value: a name, one line of help, and a function that gets a ``JobContext``. It reads its
topics with ``context.read_options``, writes through ``context.lake``, keeps the offsets of each
query in ``context.checkpoint_of(name)`` and lets ``context.follow(query)`` wait for the end. How it
is started, watched, restarted and stopped is ``runner.py``'s to decide; how progress is shown is
behind the port ``Progress``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import click
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.lake import Lake

TRIGGER_S_DEFAULT = 10


_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def is_job_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


class Mode(StrEnum):
    ONCE = "once"  # all that is there now, then end
    CONTINUOUS = "continuous"  # look again every so often, until stopped


def _show_nothing(_rows: Iterable[Mapping[str, Any]]) -> None:
    """A job that runs in a test or a notebook has nobody to print for."""


class Stopped(Exception):
    """Raised out of ``follow`` when somebody asked the job to end: not a failure."""


class Unsound(Exception):
    """Raised by a job that ran and found what must not be, a broken chain or bad rows: one line
    that says so. The command ends with the exit code for that, and nothing is tried again."""


class JobMisused(Exception):
    """Raised by a job whose options cannot be meant: one line that says which and why."""


class NotFound(JobMisused):
    """Raised by a job that needs a topic or a table that does not exist. ``fix`` is a command."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why, fix)
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.why}: {self.fix}"


def require_table(lake: Lake, table: str, *, job: str) -> None:
    """Raise NotFound unless the job that writes a table has run on the lake."""
    if not lake.exists(table):
        raise NotFound(f"the lake {lake.path} has no table {table}", f"penstock pipeline run {job}")


class Progress(Protocol):
    """Where a job says how far it is. Called from any thread."""

    def on_progress(self, callback: Callable[[StreamingQueryProgress], None]) -> None:
        """Call back after every batch of any query, once its offsets are in the checkpoint."""

    def note(self, text: str) -> None:
        """One line for a person, and for the job's log."""

    def steps(self, label: str, total: int | None = None) -> AbstractContextManager[Steps]:
        """A bar for work that the job counts itself."""

    def tasks(self, label: str) -> AbstractContextManager[None]:
        """A bar over the tasks of the Spark jobs that are started within."""


class Steps(Protocol):
    def advance(self, count: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class JobContext:
    spark: SparkSession
    server: str  # HOST:PORT of the Kafka listener
    lake: Lake
    checkpoint: Path  # the job's own folder
    progress: Progress
    mode: Mode = Mode.ONCE
    since_ms: int | None = None
    until_ms: int | None = None
    trigger_s: int = TRIGGER_S_DEFAULT
    arguments: Mapping[str, Any] = field(default_factory=dict)  # the job's own options
    security: Mapping[str, str] = field(default_factory=dict, repr=False)  # source options
    stopping: threading.Event = field(default_factory=threading.Event)
    show: Callable[[Iterable[Mapping[str, Any]]], None] = _show_nothing  # rows for the user

    @property
    def read_options(self) -> dict[str, str]:
        """How to reach the server: options of ``format("penstock")``, for reading and writing."""
        return {"kafka.bootstrap.servers": self.server, **self.security}

    @property
    def trigger(self) -> dict[str, Any]:
        """For ``writeStream.trigger(**context.trigger)``."""
        if self.mode is Mode.ONCE:
            return {"availableNow": True}
        return {"processingTime": f"{self.trigger_s} seconds"}

    def checkpoint_of(self, query: str = "query") -> str:
        """Where Spark keeps the offsets of one query of this job."""
        return str(self.checkpoint / query)

    def follow(self, *queries: StreamingQuery) -> None:
        """Wait until all queries have ended. The first to fail ends the others and raises."""
        streams = self.spark.streams
        streams.resetTerminated()  # or the end of an earlier run would be taken for one of these
        try:
            for query in queries:
                if not query.isActive:
                    query.awaitTermination()
            while any(query.isActive for query in queries):
                streams.awaitAnyTermination()  # raises what the query died of
                streams.resetTerminated()
            for query in queries:  # one that ended while another was being waited for
                query.awaitTermination()
        finally:
            for query in queries:
                if query.isActive:
                    query.stop()
        if self.stopping.is_set():
            raise Stopped


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    summary: str
    run: Callable[[JobContext], None]
    options: Sequence[click.Option] = ()  # further options of `penstock pipeline run NAME`
    modes: frozenset[Mode] = frozenset(Mode)
    # Called before Spark starts, with a context that has no session. Raises JobMisused and
    # KafkaTrouble for what is wrong with options, files, tables, topics and the server.
    check: Callable[[JobContext], None] | None = None
    needs_spark: bool = True  # without, the context's session is not to be touched
    is_draining: bool = False  # looks at context.stopping itself and ends at a safe place

    def __post_init__(self) -> None:
        assert is_job_name(self.name), f"'{self.name}' cannot name a job: it names a folder too"
