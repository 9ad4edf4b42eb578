"""Defines a job: a name, one line of help, and a function that gets a ``JobContext``. The function
reads topics with ``context.read_options``, writes to ``context.lake``, stores offsets of streaming
queries in ``context.checkpoint_of(name)``, and waits for queries with ``context.follow``."""

from __future__ import annotations

import datetime
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.lake import Lake

TRIGGER_S_DEFAULT = 10


def is_job_name(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", text) is not None


def utc(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC)


class Mode(StrEnum):
    ONCE = "once"  # process all records that exist now, then end
    CONTINUOUS = "continuous"  # process new records every ``trigger_s`` seconds, until stopped


class Stopped(Exception):
    """Raised by ``follow`` after the job was asked to stop; this is not a failure."""


class Unsound(Exception):
    """Raised by a job that found faulty data. The text is one line. The job is not retried."""


class JobMisused(Exception):
    """Raised by a job with invalid options. The text is one line with the option and the reason."""


class NotFound(JobMisused):
    """Raised if a job needs a topic or a table that does not exist. ``fix`` is a command to run."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason, fix)
        self.reason = reason
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.reason}: {self.fix}"


def require_table(lake: Lake, table: str, *, job: str) -> None:
    """Raise NotFound if the lake does not have a table. ``job`` is the job that creates it."""
    if not lake.exists(table):
        raise NotFound(f"the lake {lake.path} has no table {table}", f"penstock pipeline run {job}")


class Progress(Protocol):
    """An interface through which a job reports its progress, from any thread."""

    def note(self, text: str) -> None:
        """Show one line to the user, and write it to the job's log."""

    def tasks(self, label: str) -> AbstractContextManager[None]:
        """Show a progress bar for the tasks of Spark jobs that start within the context."""


@dataclass(frozen=True, slots=True)
class JobContext:
    spark: SparkSession
    server: str  # HOST:PORT of the Kafka listener
    lake: Lake
    checkpoint: Path  # a folder of the job
    progress: Progress
    mode: Mode = Mode.ONCE
    since_ms: int | None = None
    until_ms: int | None = None
    trigger_s: int = TRIGGER_S_DEFAULT
    arguments: Mapping[str, Any] = field(default_factory=dict)  # values of ``Job.options``
    security: Mapping[str, str] = field(default_factory=dict, repr=False)  # for the server
    stopping: threading.Event = field(default_factory=threading.Event)
    show: Callable[[Iterable[Mapping[str, Any]]], None] = lambda _rows: None  # prints result rows

    @property
    def read_options(self) -> dict[str, str]:
        """Return the connection options for ``format("penstock")``, for reading and writing."""
        return {"kafka.bootstrap.servers": self.server, **self.security}

    @property
    def trigger(self) -> dict[str, Any]:
        if self.mode is Mode.ONCE:
            return {"availableNow": True}
        return {"processingTime": f"{self.trigger_s} seconds"}

    def checkpoint_of(self, query: str = "query") -> str:
        """Return the folder in which Spark keeps the offsets of one query of this job."""
        return str(self.checkpoint / query)

    def follow(self, *queries: StreamingQuery) -> None:
        """Wait until all queries have ended. If one fails, stop the others and raise its error."""
        streams = self.spark.streams
        streams.resetTerminated()  # forgets queries that ended in an earlier run
        try:
            for query in queries:
                if not query.isActive:
                    query.awaitTermination()
            while any(query.isActive for query in queries):
                streams.awaitAnyTermination()  # raises the query's error
                streams.resetTerminated()
            for query in queries:  # raises the error of a query that failed during another wait
                query.awaitTermination()
        finally:
            for query in queries:
                if query.isActive:
                    query.stop()
        if self.stopping.is_set():
            raise Stopped


def option(name: str, metavar: str | None, help_text: str | None, **more: Any) -> click.Option:
    """Return a command-line option of a job. Its help shows the default, if there is one."""
    more.setdefault("show_default", more.get("default") is not None)
    return click.Option(name.split(), metavar=metavar, help=help_text, **more)


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    summary: str
    run: Callable[[JobContext], None]
    options: Sequence[click.Option] = ()  # further options of `penstock pipeline run NAME`
    modes: frozenset[Mode] = frozenset(Mode)
    # Called before Spark starts, with a context that has no session. Raises JobMisused and
    # KafkaTrouble for errors in options, files, tables, topics and the server.
    check: Callable[[JobContext], object] | None = None
    needs_spark: bool = True  # False: the context has no usable session
    is_draining: bool = False  # the job checks context.stopping and ends at a safe point

    def __post_init__(self) -> None:
        assert is_job_name(self.name), f"'{self.name}' is not a valid job and folder name"
